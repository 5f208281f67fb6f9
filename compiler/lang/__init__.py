"""What a user touches: init and its options, fields, ndarrays, vectors, kernels, the tape."""

from . import ad, math, simt, types
from .field import field
from .kernel import data_oriented, func, kernel
from .matrix import Matrix, Vector
from .ndarray import Ndarray, ndarray
from .options import Arch, Options
from .program import Program, current_program, init, reset, sync
from .snode import RootProxy
from .struct import Struct, dataclass
from .struct_field import StructField
from .types import template

__all__ = [
    "Arch",
    "Matrix",
    "Ndarray",
    "Options",
    "Program",
    "RootProxy",
    "Struct",
    "StructField",
    "Vector",
    "ad",
    "current_program",
    "data_oriented",
    "dataclass",
    "field",
    "func",
    "init",
    "kernel",
    "math",
    "ndarray",
    "reset",
    "simt",
    "sync",
    "template",
    "types",
]
