"""``qd.algorithms``: reductions, prefix sums, sorting and compaction of arrays, as kernels of the language: on every backend the same."""

from __future__ import annotations

from ...compiler.extend import refused_names
from .choosing import compact, reduce_by_key, unique
from .combine import PrefixSumExecutor, exclusive_scan, inclusive_scan, reduce
from .counting import histogram
from .neighbours import HashGrid
from .sorting import argsort, gather, parallel_sort

__getattr__ = refused_names(__name__, "algorithms.")


__all__ = [
    "HashGrid",
    "PrefixSumExecutor",
    "argsort",
    "compact",
    "exclusive_scan",
    "gather",
    "histogram",
    "inclusive_scan",
    "parallel_sort",
    "reduce",
    "reduce_by_key",
    "unique",
]
