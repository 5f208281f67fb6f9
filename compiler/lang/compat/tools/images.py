"""Images and grids as files. Images are indexed ``[x, y]`` from the lower left, as in windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..windows import files
from ..windows.drawing import as_array
from ..windows.gui import GUI
from ..windows.raster import Array


def imwrite(img: Any, filename: str | Path) -> None:
    """Write a field or an array (w, h) or (w, h, 1 | 3 | 4) as an image.

    Raises:
        ValueError: it is no image.
        ImportError: the name does not end in .png, and Pillow is not installed.
    """
    files.write(as_array(img), filename)


def imread(filename: str | Path, channels: int = 0) -> Array:
    """Read an image as (w, h, channels) of u8. It needs Pillow. ``channels``: 0 for those of the file."""
    return files.read(filename, channels)


def imresize(img: Any, w: int, h: int | None = None) -> Array:
    """Scale an image to w x h pixels by its nearest ones. ``h``: w if it is not given."""
    a, h = as_array(img), w if h is None else h
    x, y = (np.minimum(np.arange(n) * (m / n), m - 1).astype(int) for n, m in zip((w, h), a.shape[:2], strict=True))
    return a[x[:, None], y[None]]


def imshow(img: Any, title: str = "imshow") -> None:
    """Show an image in a window."""
    a = as_array(img)
    with GUI(title, a.shape[:2]) as gui:
        while gui.running:
            gui.set_image(a)
            gui.show()


def write_vtk(scalar_field: Any, filename: str) -> None:
    """Write a field of numbers with two or three axes as cells of a VTK grid, in VTK's XML form: ``filename`` + ``.vtr``.

    Raises:
        ValueError: it has other axes.
    """
    a = as_array(scalar_field)
    if a.ndim not in (2, 3):
        raise ValueError(f"write_vtk takes a field with two or three axes, not {a.shape}")
    a = a[None] if a.ndim == 2 else a
    kind = {"f4": "Float32", "f8": "Float64"}.get(a.dtype.str[1:], "Float64")
    numbers = np.asarray(a, np.float32 if kind == "Float32" else np.float64)
    extent = " ".join(f"0 {n}" for n in a.shape)

    def data(name: str, values: Array, kind: str) -> str:
        return f'<DataArray type="{kind}" Name="{name}" format="ascii">{" ".join(map(str, values.tolist()))}</DataArray>'

    axes = "".join(data(axis, np.arange(n + 1), "Int32") for axis, n in zip("xyz", a.shape, strict=True))
    Path(f"{filename}.vtr").write_text(
        '<?xml version="1.0"?>\n<VTKFile type="RectilinearGrid" version="0.1">\n'
        f'<RectilinearGrid WholeExtent="{extent}"><Piece Extent="{extent}">\n<Coordinates>{axes}</Coordinates>\n'
        f"<CellData>{data(Path(filename).name, numbers.reshape(-1, order='F'), kind)}</CellData>\n"
        "</Piece></RectilinearGrid>\n</VTKFile>\n"
    )
