"""``PLYWriter``: vertices and faces with channels as PLY files."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ..windows.drawing import as_array
from ..windows.raster import Array

_TYPES = {
    **{"char": np.int8, "uchar": np.uint8, "short": np.int16, "ushort": np.uint16},
    **{"int": np.int32, "uint": np.uint32, "float": np.float32, "double": np.float64},
}


class PLYWriter:
    """Collects channels of vertices and faces, and writes them as a PLY file.

    Args:
        num_vertices: of the file.
        num_faces: likewise.
        face_type: "tri" or "quad".
        comment: a line of the header.

    Raises:
        AssertionError: a number or the type is not possible.
    """

    def __init__(
        self, num_vertices: int, num_faces: int = 0, face_type: str = "tri", comment: str = "created by PLYWriter"
    ) -> None:
        _expect(num_vertices > 0, "num_vertices should be greater than 0")
        _expect(num_faces >= 0, "num_faces shouldn't be less than 0")
        _expect(face_type in ("tri", "quad"), "faces are of the type tri or quad")
        self.num_vertices, self.num_faces, self.face_type, self.comment = num_vertices, num_faces, face_type, comment
        self._vertices: dict[str, tuple[str, Array]] = {}
        self._faces: dict[str, tuple[str, Array]] = {}
        self.face_indices = np.full((num_faces, 3 if face_type == "tri" else 4), -1, np.int32)

    def _add(self, channels: dict[str, tuple[str, Array]], n: int, key: str, kind: str, data: Any) -> None:
        if kind not in _TYPES:
            warnings.warn(f"channel {key!r} is left out: PLY has no type {kind!r}", RuntimeWarning, stacklevel=3)
            return
        a = as_array(data)
        _expect(a.size and a.size % n == 0 and (a.ndim > 1 or a.size == n), f"channel {key!r} has {a.size} numbers for {n}")
        columns = a.reshape(n, -1).astype(_TYPES[kind])
        names = [key] if a.ndim == 1 else [f"{key}_{k + 1}" for k in range(columns.shape[1])]
        for name, column in zip(names, columns.T, strict=True):
            if name in channels:
                warnings.warn(f"channel {name!r} is replaced", RuntimeWarning, stacklevel=3)
            channels[name] = (kind, column)

    def add_vertex_channel(self, key: str, data_type: str, data: Any) -> None:
        """Add a channel, one of PLY's types; a matrix gives ``key_1``, ``key_2``, .."""
        self._add(self._vertices, self.num_vertices, key, data_type, data)

    def add_face_channel(self, key: str, data_type: str, data: Any) -> None:
        """Add a channel of the faces."""
        self._add(self._faces, self.num_faces, key, data_type, data)

    def _floats(self, names: str, *data: Any) -> None:
        for name, a in zip(names.split(), data, strict=True):
            self.add_vertex_channel(name, "float", a)

    def add_vertex_pos(self, x: Any, y: Any, z: Any) -> None:
        """Add positions."""
        self._floats("x y z", x, y, z)

    def add_vertex_normal(self, nx: Any, ny: Any, nz: Any) -> None:
        """Add normals."""
        self._floats("nx ny nz", nx, ny, nz)

    def add_vertex_vel(self, vx: Any, vy: Any, vz: Any) -> None:
        """Add velocities."""
        self._floats("vx vy vz", vx, vy, vz)

    def add_vertex_color(self, r: Any, g: Any, b: Any) -> None:
        """Add colours."""
        self._floats("red green blue", r, g, b)

    def add_vertex_alpha(self, alpha: Any) -> None:
        """Add opacities."""
        self._floats("Alpha", alpha)

    def add_vertex_rgba(self, r: Any, g: Any, b: Any, a: Any) -> None:
        """Add colours and opacities."""
        self._floats("red green blue Alpha", r, g, b, a)

    def add_vertex_id(self) -> None:
        """Add the number of each vertex."""
        self.add_vertex_channel("id", "int", np.arange(self.num_vertices))

    def add_vertex_piece(self, piece: Any) -> None:
        """Add the piece that each vertex belongs to."""
        self.add_vertex_channel("piece", "int", piece)

    def add_faces(self, indices: Any) -> None:
        """Set the vertices of the faces: three or four numbers for each."""
        a = as_array(indices)
        _expect(
            a.size == self.face_indices.size, f"{self.num_faces} faces have {self.face_indices.size} vertices, not {a.size}"
        )
        self.face_indices = a.reshape(self.face_indices.shape).astype(np.int32)

    def add_face_id(self) -> None:
        """Add the number of each face."""
        self.add_face_channel("id", "int", np.arange(self.num_faces))

    def add_face_piece(self, piece: Any) -> None:
        """Add the piece that each face belongs to."""
        self.add_face_channel("piece", "int", piece)

    def sanity_check(self) -> None:
        """Check that there are positions, and that faces name vertices.

        Raises:
            AssertionError: they do not.
        """
        _expect({"x", "y", "z"} <= self._vertices.keys(), "the positions of the vertices are missing")
        bad = (self.face_indices < 0) | (self.face_indices >= self.num_vertices)
        _expect(not bad.any(), "a face names a vertex that does not exist")

    def export(self, path: str | Path) -> None:
        """Write the file in binary."""
        self.sanity_check()
        body = _table(self.num_vertices, self._vertices).tobytes()
        if self.num_faces:
            kind = np.dtype([("n", "u1"), ("v", "i4", self.face_indices.shape[1]), *_columns(self._faces)])
            faces = np.zeros(self.num_faces, kind)
            faces["n"], faces["v"] = self.face_indices.shape[1], self.face_indices
            body += _filled(faces, self._faces).tobytes()
        Path(path).write_bytes(self._header(f"binary_{sys.byteorder}_endian").encode() + body)

    def export_ascii(self, path: str | Path) -> None:
        """Write the file as text."""
        self.sanity_check()
        lines = [" ".join(map(str, row)) for row in _table(self.num_vertices, self._vertices).tolist()]
        channels = _table(self.num_faces, self._faces).tolist()
        for corners, row in zip(self.face_indices.tolist(), channels, strict=True):
            lines.append(" ".join(map(str, (len(corners), *corners, *row))))
        Path(path).write_text(self._header("ascii") + "".join(f"{line}\n" for line in lines))

    def export_frame(self, series_num: int, path: str) -> None:
        """Write ``path_000000.ply`` with this number, in binary."""
        self.export(_numbered(series_num, path))

    def export_frame_ascii(self, series_num: int, path: str) -> None:
        """Write ``path_000000.ply`` with this number, as text."""
        self.export_ascii(_numbered(series_num, path))

    def _header(self, form: str) -> str:
        lines = ["ply", f"format {form} 1.0", f"comment {self.comment}", f"element vertex {self.num_vertices}"]
        lines += [f"property {kind} {name}" for name, (kind, _) in self._vertices.items()]
        if self.num_faces:
            lines += [f"element face {self.num_faces}", "property list uchar int vertex_indices"]
            lines += [f"property {kind} {name}" for name, (kind, _) in self._faces.items()]
        return "\n".join([*lines, "end_header", ""])


def _expect(holds: object, text: str) -> None:
    if not holds:
        raise AssertionError(text)


def _numbered(number: int, path: str) -> str:
    return f"{str(path).removesuffix('.ply')}_{number:06d}.ply"


def _columns(channels: dict[str, tuple[str, Array]]) -> list[tuple[str, type]]:
    return [(f"c_{name}", _TYPES[kind]) for name, (kind, _) in channels.items()]


def _filled(table: Array, channels: dict[str, tuple[str, Array]]) -> Array:
    for name, (_, column) in channels.items():
        table[f"c_{name}"] = column
    return table


def _table(n: int, channels: dict[str, tuple[str, Array]]) -> Array:
    return _filled(np.zeros(n, np.dtype(_columns(channels))), channels)
