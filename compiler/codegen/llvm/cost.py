"""A static estimate of what one iteration of a task costs, to decide how many iterations make a chunk."""

from __future__ import annotations

from ...ir.nodes import Block, Const, If, Loop, Op, Task

_CHUNK_COST = 20_000  # about 5 microseconds: ten times what handing a chunk to a waiting thread costs
_COSTS: dict[str, int] = dict.fromkeys("sin cos tan asin acos atan2 tanh exp log pow".split(" "), 40)
_COSTS |= {"gload": 4, "atomic": 20, "div": 8, "sqrt": 8, "rsqrt": 12, "mod": 20, "floordiv": 20, "cdiv": 12, "crem": 12}
_UNKNOWN_TRIPS = 16


def block_cost(block: Block) -> int:
    """About the number of quarter nanoseconds one pass through a block takes."""
    total = 0
    for s in block:
        if isinstance(s, Op):
            total += _COSTS.get(s.op, 1)
        elif isinstance(s, If):
            total += 1 + max(block_cost(s.then), block_cost(s.orelse))
        elif isinstance(s, Loop):
            total += trips(s) * (2 + block_cost(s.body))
        else:
            total += 4
    return total


def trips(s: Loop) -> int:
    """How often a loop runs: exactly when its bounds are literals."""
    if isinstance(s.begin, Const) and isinstance(s.end, Const):
        return len(range(int(s.begin.value), int(s.end.value), s.step))
    return _UNKNOWN_TRIPS


def grain(task: Task, lanes: int) -> int:
    """The least number of iterations worth a chunk, a multiple of the lanes."""
    count = max(1, _CHUNK_COST * lanes // (1 + block_cost(task.body)))
    return -(-count // lanes) * lanes
