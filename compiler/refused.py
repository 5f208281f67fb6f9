"""Names of Quadrants that this version does not have, and what to use instead. Using one is refused by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from .errors import QdrunImportError, QdrunTypeError

T = TypeVar("T", bound=type)

_QUANT = "quantized types are not supported", "store i8, i16 or f16"
_MESH = "meshes are not supported", "store the mesh in fields of indices"
_COUNTERS = "the counters of a GPU's hardware are not read", "run the program under the vendor's profiler"
_SCOPED = "only kernels are measured", "use qd.init(kernel_profiler=True), and cProfile for Python and the compiler"
_CLOCK = "kernels cannot read the clock", "measure around the launch with time.perf_counter()"
_IN_KERNELS = "algorithms are called from Python, not inside kernels, and need no scratch memory"
_ALGORITHMS = {
    **{f"exclusive_scan_{op}": f'use qd.algorithms.exclusive_scan(x, out, "{op}")' for op in ("add", "min", "max")},
    **{f"reduce_{op}": f'use qd.algorithms.reduce(x, out, "{op}")' for op in ("add", "min", "max")},
    "reduce_by_key_add": "use qd.algorithms.reduce_by_key(keys, values, out_keys, sums, count)",
    "select": "use qd.algorithms.compact(x, flags, out, count)",
    "sort": "use qd.algorithms.parallel_sort(keys, values), or argsort and gather",
    **{f"{name}_scratch_slots": "leave it out" for name in ("exclusive_scan", "reduce", "reduce_by_key", "select", "sort")},
}
_MEMBERS = "its members have a type, a layout and a memory each", "ask a member: s.get_member_field(name)"
_INNER = "it is an inner module of Quadrants", "the names that programs need are names of `qd`"

REFUSED: dict[str, tuple[str, str]] = {
    "get_addr": ("kernels have no addresses", "use the index of the element"),
    **dict.fromkeys("BitpackedFields quant".split(), _QUANT),
    **dict.fromkeys("Mesh MeshInstance mesh_local mesh_patch_idx".split(), _MESH),
    "DeviceCapability": ("programs do not ask what a device can do", "see `qdrun devices`, or program.device"),
    **dict.fromkeys("clock_counter clock_freq_hz".split(), _CLOCK),
    "sparse": ("its only name, usage, tells of a pool of memory, which sparse fields do not have here", "ask program.usage()"),
    **dict.fromkeys(
        "buffer_view_type experimental interop lang compound_types enums ndarray_type primitive_types utils".split(), _INNER
    ),
    "Format": ("texture formats are not supported", "use fields"),
    **{f"algorithms.{name}": (_IN_KERNELS, instead) for name, instead in _ALGORITHMS.items()},
    **{
        f"profiler.{name}": _COUNTERS
        for name in (
            *("CuptiMetric", "collect_kernel_profiler_metrics", "get_predefined_cupti_metrics"),
            *("set_kernel_profiler_metrics", "set_kernel_profiler_toolkit"),
        )
    },
    **{f"profiler.{name}_scoped_profiler_info": _SCOPED for name in ("clear", "print")},
    "profiler.print_memory_profiler_info": ("memory is not printed as a tree", "ask program.usage()"),
    "SNode.quant_array": _QUANT,
    **dict.fromkeys("StructField.dtype StructField.layout StructField.to_dlpack".split(), _MEMBERS),
    "ndarray(boundary=..)": (
        "an index out of range is undefined, and an error with debug=True",
        "clamp the index: qd.math.clamp(i, 0, n - 1)",
    ),
    "ndarray(field_dim=..)": ("it is the former name of ndim", "write ndim=.."),
    **dict.fromkeys(("Texture", "texture", "rw_texture"), ("textures are not supported", "use fields")),
    "aot": ("kernels are not exported for other programs", "qd.compile compiles them ahead of their first launch"),
    "init(default_up=..)": ("it is always the unsigned type of default_ip", "set default_ip"),
}
"""Name -> why not, what to do."""

USED: Counter[str] = Counter()
"""How often programs used refused names."""


def refuse(name: str) -> NoReturn:
    """Raise the error of a refused name.

    Raises:
        QdrunTypeError: always.
    """
    USED[name] += 1
    why, instead = REFUSED[name]
    raise QdrunTypeError(f"`{name}` is not available: {why}", hint=instead)


def refuse_module(name: str) -> None:
    """Refuse to import a module of Quadrants: ``linalg`` for ``import qdrun.linalg``. Other names are none of ours to refuse.

    Raises:
        QdrunImportError: it is in ``REFUSED``.
    """
    if name in REFUSED:
        USED[name] += 1
        why, instead = REFUSED[name]
        raise QdrunImportError(f"`import qdrun.{name}` is not available: {why}\n  do: {instead}")


def refused_names(module: str, prefix: str = "") -> Callable[[str], Refused]:
    """``__getattr__`` of a module: its names of ``REFUSED``, which begin with ``prefix`` there."""

    def found(name: str) -> Refused:
        if prefix + name in REFUSED:
            return Refused(prefix + name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return found


def refusing(cls: T) -> T:
    """Give a class the names of ``REFUSED`` that begin with its own: reading one gives what refuses."""
    for name in REFUSED:
        owner, _, last = name.rpartition(".")
        if owner == cls.__name__:
            setattr(cls, last, Refused(name))
    return cls


class Refused:
    """Stands for a name that is refused: calling it, reading an attribute of it or subscripting it raises."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def _refuse(self) -> NoReturn:
        refuse(self.__name__)

    def __call__(self, *args: Any, **kw: Any) -> NoReturn:
        self._refuse()

    def __qd_lower__(self, b: Any, *args: Any, **kw: Any) -> NoReturn:
        """A call inside a kernel."""
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse()

    def __getitem__(self, index: Any) -> NoReturn:
        self._refuse()

    def __iter__(self) -> NoReturn:
        self._refuse()

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<{self.__name__}: not available>"
