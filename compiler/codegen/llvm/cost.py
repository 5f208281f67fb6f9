"""A static estimate of what one iteration of a task costs, to decide how many iterations make a chunk."""

from __future__ import annotations

from ...ir.nodes import Block, Const, If, Kernel, Loop, Op, Print, Task
from ...ir.walk import walk

_CHUNK_COST = 20_000  # about 5 microseconds: ten times what handing a chunk to a waiting thread costs
_COSTS: dict[str, int] = dict.fromkeys("sin cos tan asin acos atan2 tanh exp log pow".split(" "), 40)
_COSTS |= {"gload": 4, "atomic": 20, "div": 8, "sqrt": 8, "rsqrt": 12, "mod": 20, "floordiv": 20, "cdiv": 12, "crem": 12}
_UNKNOWN_TRIPS = 16
_MATH = frozenset("sin cos tan asin acos atan2 tanh exp log pow".split())
_LANE_SERIAL = frozenset(("atomic",))


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
    count = max(1, _CHUNK_COST * lanes // (1 + (task.cost or block_cost(task.body))))
    return -(-count // lanes) * lanes


def suggested_lanes(kernel: Kernel, triple: str, features: str) -> int:
    """How many lanes are likely best: twice the native f32 vector, half of that for f64; 1 where lanes would not pay.

    Lanes pay for mathematical functions in loops inside parallel tasks, where one iteration waits for the last. They do not for
    integer divisions, atomics or prints, which take turns, nor on a CPU without fused multiply-add, where our functions would call
    one. A short body without loops is not worth the second copy of its code.
    """
    flags = set(features.split(","))
    arm = triple.startswith(("aarch64", "arm64"))
    native = 16 if "+avx512f" in flags else 8 if {"+avx2", "+fma"} <= flags else 4 if arm else 0
    if not native:
        return 1
    math = serial = doubles = 0
    for task in kernel.tasks:
        if not task.parallel:
            continue
        looped = {id(x) for s in task.body if isinstance(s, Loop) for x in walk(s.body)}
        for s in walk(task.body):
            if isinstance(s, Print):
                return 1
            if isinstance(s, Op):
                math += s.op in _MATH and id(s) in looped
                serial += s.op in _LANE_SERIAL or (s.dtype.is_int and s.op in ("floordiv", "mod", "cdiv", "crem"))
                doubles += s.op in _MATH and s.dtype.bits == 64
    if not math or serial > 2 * math:
        return 1
    return native if doubles else 2 * native
