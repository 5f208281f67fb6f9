"""``qd.algorithms``: reductions, prefix sums, sorting and compaction of arrays, as kernels of the language: on every backend the same."""

from __future__ import annotations

from ...refused import REFUSED, Refused
from .choosing import compact, reduce_by_key, unique
from .combine import PrefixSumExecutor, exclusive_scan, inclusive_scan, reduce
from .sorting import argsort, gather, parallel_sort


def __getattr__(name: str) -> Refused:
    if f"algorithms.{name}" in REFUSED:
        return Refused(f"algorithms.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "PrefixSumExecutor",
    "argsort",
    "compact",
    "exclusive_scan",
    "gather",
    "inclusive_scan",
    "parallel_sort",
    "reduce",
    "reduce_by_key",
    "unique",
]
