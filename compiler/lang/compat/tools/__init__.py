"""``qd.tools``: PLY files, images and videos."""

from .images import imread, imresize, imshow, imwrite, write_vtk
from .ply import PLYWriter
from .video import VideoManager

__all__ = ["PLYWriter", "VideoManager", "imread", "imresize", "imshow", "imwrite", "write_vtk"]
