"""Image files. PNG is written without any other package; Pillow, if it is installed, reads and writes the rest."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .raster import Array


def pillow() -> Any:
    """Pillow's module of images.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("image files other than PNG need Pillow\n  do: pip install pillow") from None
    return Image


def as_bytes(image: Array) -> Array:
    """Channels from 0 to 255, as Taichi's image functions have them."""
    if image.dtype == np.uint8:
        return image
    if image.dtype.kind == "u":
        return (image // (np.iinfo(image.dtype).max // 256)).clip(0, 255).astype(np.uint8)
    if image.dtype.kind == "f":
        return (np.nan_to_num(image).clip(0, 1) * 255.0).astype(np.uint8)
    raise ValueError(f"an image has reals or unsigned integers, not {image.dtype}")


def write(image: Array, path: str | Path) -> None:
    """Write an image (w, h) or (w, h, 1 | 3 | 4), indexed from the lower left.

    Raises:
        ValueError: it is no image.
        ImportError: the name does not end in .png, and Pillow is not installed.
    """
    image = as_bytes(image)
    image = image[..., None] if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[2] not in (1, 3, 4):
        raise ValueError(f"an image has two axes and 1, 3 or 4 channels, this one {image.shape}")
    rows = np.ascontiguousarray(image.swapaxes(0, 1)[::-1])
    if Path(path).suffix.lower() == ".png":
        Path(path).write_bytes(_png(rows))
        return
    rows = rows[..., :3] if rows.shape[2] == 4 and Path(path).suffix.lower() in (".jpg", ".jpeg", ".bmp") else rows
    pillow().fromarray(rows[..., 0] if rows.shape[2] == 1 else rows).save(path)


def read(path: str | Path, channels: int = 0) -> Array:
    """Read an image as (w, h, channels) of u8, indexed from the lower left. ``channels``: 0 for those of the file."""
    image = pillow().open(path)
    if channels or image.mode not in ("L", "LA", "RGB", "RGBA"):
        image = image.convert({0: "RGB", 1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels])
    rows = np.array(image)
    return np.ascontiguousarray((rows[..., None] if rows.ndim == 2 else rows).swapaxes(0, 1)[:, ::-1])


def _png(rows: Array) -> bytes:
    """The file of an image (rows, columns, channels) of u8."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = rows.shape
    lines = np.pad(rows.reshape(height, -1), ((0, 0), (1, 0)))  # each row begins with its filter: none
    head = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
