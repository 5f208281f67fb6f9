"""``qd.graph``: the stages of graph kernels. ``qd.graph_do_while``, ``qd.graph_parallel`` and so on are the same functions."""

from __future__ import annotations

from ...frontend.regions import graph_do_while as do_while
from ...frontend.regions import graph_parallel as parallel
from ...frontend.regions import graph_parallel_context as parallel_context

__all__ = ["do_while", "parallel", "parallel_context"]
