"""``ti.ui.Scene`` and ``ti.ui.Camera``: shapes in space, projected to a raster with ambient light, point lights and a depth buffer."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np

from .drawing import as_array, points, rgb_colors
from .raster import Array, Raster


class ProjectionMode(IntEnum):
    """How a camera projects."""

    Perspective = 0
    Orthogonal = 1


_UP = np.array([0.0, 1.0, 0.0])


def _attribute(name: str) -> Callable[..., None]:
    def set_it(self: Any, *value: Any) -> None:
        setattr(self, f"curr_{name}", value[0] if len(value) == 1 else np.array(value, float))

    set_it.__doc__ = f"Set {name.replace('_', ' ')}."
    return set_it


class Camera:
    """Where a scene is seen from. ``curr_position``, ``curr_lookat`` and ``curr_up`` are what was set last."""

    def __init__(self) -> None:
        self.curr_position, self.curr_lookat, self.curr_up = np.zeros(3), np.array([0.0, 0.0, 1.0]), _UP
        self.curr_projection_mode, self.curr_fov = ProjectionMode.Perspective, 45.0
        self.curr_left, self.curr_right, self.curr_top, self.curr_bottom = -1.0, 1.0, -1.0, 1.0
        self.curr_z_near, self.curr_z_far = 0.1, 1000.0

    position, lookat, up = _attribute("position"), _attribute("lookat"), _attribute("up")
    projection_mode, fov = _attribute("projection_mode"), _attribute("fov")
    left, right, top, bottom = _attribute("left"), _attribute("right"), _attribute("top"), _attribute("bottom")
    z_near, z_far = _attribute("z_near"), _attribute("z_far")

    def track_user_inputs(self, window: Any, *args: Any, **kw: Any) -> None:
        """Move with keys and mouse, which never move: the camera stays."""

    def _view(self) -> Array:
        """The matrix from the world to the camera, which looks along -z."""
        front = _unit(self.curr_lookat - self.curr_position)
        side = _unit(np.cross(front, self.curr_up))
        view = np.eye(4)
        view[:3, :3] = side, np.cross(side, front), -front
        view[:3, 3] = -view[:3, :3] @ self.curr_position
        return view

    def _projection(self, aspect: float) -> Array:
        """The matrix from the camera to clip coordinates; the depth is 1 at ``z_near`` and 0 at ``z_far``."""
        near, far, out = self.curr_z_near, self.curr_z_far, np.zeros((4, 4))
        if self.curr_projection_mode == ProjectionMode.Perspective:
            scale = 1 / np.tan(np.radians(self.curr_fov) / 2)
            out[0, 0], out[1, 1] = scale / aspect, scale
            out[2, 2:], out[3, 2] = (near / (far - near), near * far / (far - near)), -1
        else:
            for k, (lo, hi) in enumerate(((self.curr_left, self.curr_right), (self.curr_bottom, self.curr_top))):
                out[k, k], out[k, 3] = 2 / (hi - lo), -(hi + lo) / (hi - lo)
            out[2, 2:], out[3, 3] = (1 / (far - near), far / (far - near)), 1
        return out

    def get_view_matrix(self) -> Array:
        """The transposed matrix from the world to the camera, as Taichi gives it."""
        return self._view().T.astype(np.float32)

    def get_projection_matrix(self, aspect: float) -> Array:
        """The transposed matrix from the camera to clip coordinates."""
        return self._projection(aspect).T.astype(np.float32)


def _unit(v: Array) -> Array:
    return v / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), 1e-30)


@dataclass(frozen=True)
class Shape:
    """Particles, lines or a mesh, with copies of their arrays."""

    kind: str
    arrays: dict[str, Array]


class Scene:
    """Shapes, lights and a camera; ``canvas.scene(scene)`` shows them and empties it."""

    def __init__(self) -> None:
        self.camera = Camera()
        self._clear()

    def _clear(self) -> None:
        self.shapes: list[Shape] = []
        self.lights: list[tuple[Array, Array]] = []
        self.ambient = np.zeros(3)

    def set_camera(self, camera: Camera) -> None:
        """See the scene from here."""
        self.camera = camera

    def point_light(self, pos: Any, color: Any) -> None:
        """Add a light."""
        self.lights.append((np.array(pos, float), np.array(color, float)[:3]))

    def ambient_light(self, color: Any) -> None:
        """Set the light that comes from everywhere."""
        self.ambient = np.array(color, float)[:3]

    def particles(
        self,
        centers: Any,
        radius: float,
        color: Any = (0.5, 0.5, 0.5),
        per_vertex_color: Any = None,
        per_vertex_radius: Any = None,
        index_offset: int = 0,
        index_count: int | None = None,
    ) -> None:
        """Add spheres."""
        at, part = points(centers, 3), _part(index_offset, index_count)
        radii = radius if per_vertex_radius is None else as_array(per_vertex_radius).reshape(-1)[: len(at)]
        shown = {
            "centers": at,
            "radius": np.broadcast_to(np.asarray(radii, float), len(at)),
            "color": rgb_colors(color, len(at), per_vertex_color),
        }
        self.shapes.append(Shape("particles", {name: a[part] for name, a in shown.items()}))

    def lines(
        self,
        vertices: Any,
        width: float,
        indices: Any = None,
        color: Any = (0.5, 0.5, 0.5),
        per_vertex_color: Any = None,
        vertex_offset: int = 0,
        vertex_count: int | None = None,
        index_offset: int = 0,
        index_count: int | None = None,
    ) -> None:
        """Add lines between vertices 0 and 1, 2 and 3, ..; or between those that the indices name. ``width``: in pixels."""
        at = points(vertices, 3)
        part = _part(vertex_offset, vertex_count) if indices is None else _part(index_offset, index_count)
        colors = rgb_colors(color, len(at), per_vertex_color)
        self.shapes.append(
            Shape(
                "lines",
                {"vertices": at, "indices": groups(len(at), indices, 2, part), "color": colors, "width": np.array(width)},
            )
        )

    def mesh(
        self,
        vertices: Any,
        indices: Any = None,
        normals: Any = None,
        color: Any = (0.5, 0.5, 0.5),
        per_vertex_color: Any = None,
        two_sided: bool = False,
        vertex_offset: int = 0,
        vertex_count: int | None = None,
        index_offset: int = 0,
        index_count: int | None = None,
        show_wireframe: bool = False,
    ) -> None:
        """Add triangles."""
        at = points(vertices, 3)
        part = _part(vertex_offset, vertex_count) if indices is None else _part(index_offset, index_count)
        colors = rgb_colors(color, len(at), per_vertex_color)
        arrays = {
            "vertices": at,
            "indices": groups(len(at), indices, 3, part),
            "color": colors,
            "two_sided": np.array(two_sided),
        }
        if normals is not None:
            arrays["normals"] = points(normals, 3)
        self.shapes.append(Shape("wireframe" if show_wireframe else "mesh", arrays))

    def mesh_instance(
        self,
        vertices: Any,
        indices: Any = None,
        normals: Any = None,
        color: Any = (0.5, 0.5, 0.5),
        per_vertex_color: Any = None,
        two_sided: bool = False,
        transforms: Any = None,
        instance_offset: int = 0,
        instance_count: int | None = None,
        **rest: Any,
    ) -> None:
        """Add copies of a mesh, moved by 4 x 4 matrices."""
        self.mesh(vertices, indices, normals, color, per_vertex_color, two_sided, **rest)
        if transforms is not None:
            moves = as_array(transforms).reshape(-1, 4, 4)[_part(instance_offset, instance_count)]
            self.shapes.append(_instances(self.shapes.pop(), moves))

    def _snapshot(self) -> tuple[list[Shape], View]:
        """The shapes and how they are seen. The scene is empty afterwards."""
        seen = View(self.camera._view(), self.camera, self.lights, self.ambient)
        shapes = self.shapes
        self._clear()
        return shapes, seen


def _part(offset: int, count: int | None) -> slice:
    return slice(offset, None if count is None else offset + count)


def groups(vertices: int, indices: Any, each: int, part: slice) -> Array:
    """Numbers of vertices, (n, each): those that the indices name, or all in order."""
    flat = np.arange(vertices) if indices is None else as_array(indices).reshape(-1).astype(np.int64)
    flat = flat[part]
    flat = flat[: len(flat) // each * each].reshape(-1, each)
    return flat[((flat >= 0) & (flat < vertices)).all(1)]


def _instances(shape: Shape, moves: Array) -> Shape:
    a, n = shape.arrays, len(shape.arrays["vertices"])
    at = np.pad(a["vertices"], ((0, 0), (0, 1)), constant_values=1.0)
    arrays = a | {
        "vertices": np.einsum("kij,nj->kni", moves, at)[..., :3].reshape(-1, 3),
        "indices": (a["indices"] + n * np.arange(len(moves))[:, None, None]).reshape(-1, 3),
        "color": np.tile(a["color"], (len(moves), 1)),
    }
    if "normals" in a:
        arrays["normals"] = np.einsum("kij,nj->kni", moves[:, :3, :3], a["normals"]).reshape(-1, 3)
    return Shape(shape.kind, arrays)


class View:
    """A camera's view of a moment, and its lights."""

    def __init__(self, view: Array, camera: Camera, lights: list[tuple[Array, Array]], ambient: Array) -> None:
        self.matrix, self._projection = view, copy(camera)._projection
        self.ambient, self.near = ambient, camera.curr_z_near
        self.perspective = camera.curr_projection_mode == ProjectionMode.Perspective
        self.lights = [((view @ np.append(pos, 1))[:3], color) for pos, color in lights if color.any()]
        self.arrays = {
            "camera_position": np.array(camera.curr_position),
            "camera_lookat": np.array(camera.curr_lookat),
            "view": view,
            "ambient": ambient,
            "light_positions": np.array([pos for pos, _ in lights]).reshape(-1, 3),
            "light_colors": np.array([color for _, color in lights]).reshape(-1, 3),
        }

    def seen(self, at: Array) -> Array:
        """Points of the world as the camera has them."""
        return at @ self.matrix[:3, :3].T + self.matrix[:3, 3]

    def projected(self, at: Array, res: tuple[int, int], projection: Array) -> tuple[Array, Array]:
        """(pixels, depths) of points of the camera."""
        clip = at @ projection[:, :3].T + projection[:, 3]
        with np.errstate(divide="ignore", invalid="ignore"):
            ndc = clip[..., :3] / clip[..., 3:]
        return (ndc[..., :2] * 0.5 + 0.5) * np.array(res, float), ndc[..., 2]

    def lit(self, color: Array, at: Array, normal: Array, *, two_sided: bool = False) -> Array:
        """Lambert's colours of points of the camera."""
        total = np.broadcast_to(self.ambient, color.shape).copy()
        for pos, light in self.lights:
            cosine = (_unit(pos - at) * normal).sum(-1, keepdims=True)
            total += (np.abs(cosine) if two_sided else np.maximum(0, cosine)) * light
        return np.clip(color * total, 0, 1)

    def draw(self, raster: Raster, shapes: list[Shape]) -> None:
        """Project the shapes."""
        w, h = raster.color.shape[:2]
        project = partial(self.projected, res=(w, h), projection=self._projection(w / h))
        for shape in shapes:
            getattr(self, f"_{shape.kind}")(raster, project, **shape.arrays)

    def _particles(self, raster: Raster, project: Any, centers: Array, radius: Array, color: Array) -> None:
        at = self.seen(centers)
        front = -at[:, 2] > self.near if self.perspective else np.ones(len(at), bool)
        at, radius, color = at[front], radius[front], color[front]
        center, _ = project(at)
        edge, _ = project(at + np.stack([radius, 0 * radius, 0 * radius], -1))
        pixels = np.abs(edge - center)[:, 0]
        if self.perspective:  # as Taichi: by the distance, and as if the window was a square of its width
            pixels *= -at[:, 2] / np.linalg.norm(at, axis=1) * raster.color.shape[0] / raster.color.shape[1]
        _, depth = project(at + np.stack([0 * radius, 0 * radius, np.minimum(radius, -at[:, 2] * 0.5)], -1))

        def shade(which: Array, normal: Array) -> Array:
            return self.lit(color[which], at[which] + normal * radius[which][:, None], normal)

        raster.discs(center, pixels, color, depth, shade)

    def _lines(self, raster: Raster, project: Any, vertices: Array, indices: Array, color: Array, width: Array) -> None:
        ends, colors = self.seen(vertices)[indices], color[indices]
        if self.perspective:
            ends, colors = _clip_lines(ends, colors, -self.near)
        at, depth = project(ends)
        raster.lines(at[:, 0], at[:, 1], np.full(len(at), max(0.5, float(width) / 2)), colors, depth)

    def _wireframe(self, raster: Raster, project: Any, vertices: Array, indices: Array, color: Array, **rest: Array) -> None:
        edges = np.concatenate([indices[:, [0, 1]], indices[:, [1, 2]], indices[:, [2, 0]]])
        self._lines(raster, project, vertices, edges, color, np.array(1.0))

    def _mesh(
        self,
        raster: Raster,
        project: Any,
        vertices: Array,
        indices: Array,
        color: Array,
        two_sided: Array,
        normals: Array | None = None,
    ) -> None:
        at = self.seen(vertices)
        normal = _normals(at, indices) if normals is None else normals @ self.matrix[:3, :3].T
        corners = np.concatenate([at, normal, color], 1)[indices]
        if self.perspective:
            corners = _clip_triangles(corners, -self.near)
        pixel, depth = project(corners[..., :3])

        def shade(which: Array, weight: Array) -> Array:
            if self.perspective:
                weight = weight / corners[which, :, 2]
            inside = np.einsum("nk,nkc->nc", weight / weight.sum(1, keepdims=True), corners[which])
            return self.lit(inside[:, 6:], inside[:, :3], _unit(inside[:, 3:6]), two_sided=bool(two_sided))

        raster.triangles(pixel, corners[:, 0, 6:], depth, shade)


def _normals(at: Array, indices: Array) -> Array:
    """The sum of the unit normals of the triangles around each vertex."""
    a, b, c = (at[indices[:, k]] for k in range(3))
    face = _unit(np.cross(a - b, a - c))
    out = np.zeros_like(at)
    np.add.at(out, indices, face[:, None])
    return out


def _clip_lines(ends: Array, colors: Array, z: float) -> tuple[Array, Array]:
    """The parts of lines in front of the near plane."""
    front = ends[..., 2] < z
    ends, colors, front = ends[front.any(1)].copy(), colors[front.any(1)].copy(), front[front.any(1)]
    for behind in (0, 1):
        cut = ~front[:, behind]
        a, b = ends[cut, behind], ends[cut, 1 - behind]
        t = ((z - a[:, 2]) / (b[:, 2] - a[:, 2]) + 1e-6)[:, None]
        ends[cut, behind] = a + t * (b - a)
        colors[cut, behind] = colors[cut, behind] * (1 - t) + colors[cut, 1 - behind] * t
    return ends, colors


def _clip_triangles(corners: Array, z: float) -> Array:
    """The parts of triangles in front of the near plane, with what else their corners have."""
    front = (corners[..., 2] < z).sum(1)
    whole = front == 3
    out = [corners[whole]]
    for triangle in corners[(front > 0) & ~whole]:
        polygon: list[Array] = []
        for a, b in zip(triangle, np.roll(triangle, -1, 0), strict=True):
            if a[2] < z:
                polygon.append(a)
            if (a[2] < z) != (b[2] < z):
                polygon.append(a + (z - a[2]) / (b[2] - a[2]) * (b - a))
        out += [np.array([[polygon[0], polygon[i], polygon[i + 1]]]) for i in range(1, len(polygon) - 1)]
    return np.concatenate(out)
