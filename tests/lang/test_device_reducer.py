"""What plans ask about arrays on a device is answered there, with the numbers that numpy finds, and the arrays are not copied."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import DeviceError, QdrunRuntimeError
from qdrun.compiler.ir.meaning import cast
from qdrun.compiler.ir.nodes import Op
from qdrun.compiler.ir.types import ALL, i32, i64, u1, u64
from qdrun.compiler.program.call import Call
from qdrun.compiler.program.memory.memory_regions import memory_of
from qdrun.compiler.program.plans import device_reducer
from qdrun.compiler.program.plans.device_reducer import DeviceReducers, LaunchReducer
from qdrun.compiler.program.plans.gradient_plans import LaunchHost
from qdrun.compiler.tape.bounds.bounds import max_trips
from qdrun.compiler.tape.bounds.enumerate import largest, total
from qdrun.compiler.tape.bounds.queries import Space
from qdrun.compiler.tape.bounds.row_count import count_passing, extent_of
from qdrun.compiler.tape.bounds.row_predicates import EXACT_REAL, INTEGER, Condition, RowPredicate
from qdrun.compiler.tape.bounds.sizeexpr import Bin, Cast, ElementRead, Index, Lit, Range, pick

COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
N, ROWS, COLUMNS = 60, 6, 9
ON_A_GPU = os.environ.get("QDRUN_TEST_ARCH") == "cuda"
WHERE = {} if ON_A_GPU else {"device": "emulated"}
BACKEND = ARCH if (ARCH := os.environ.get("QDRUN_TEST_ARCH")) in ("amdgpu", "vulkan") else "cuda"


LIMIT = 1 << 16


@pytest.fixture(autouse=True)
def _limit(monkeypatch):
    """Arrays of more than 64 KiB are large here."""
    monkeypatch.setattr(device_reducer, "SMALL_ARRAY", LIMIT)


@pytest.fixture
def device():
    yield qd.init(arch=qd.cuda, default_fp=qd.f64, **WHERE)
    qd.reset()


@pytest.fixture
def everything(monkeypatch):
    """Arrays of any size are looked at on the device."""
    monkeypatch.setattr(device_reducer, "SMALL_ARRAY", 0)


# ---- by property: formulas over arrays of every type
def content(dtype, shape, rng) -> np.ndarray:
    """Numbers of a type: some small ones, its ends, and what reals have besides."""
    n = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, n).astype(np.bool_).reshape(shape)
    small = rng.integers(0 if dtype.kind == "u" else -4, 5, n)
    if dtype.is_real:
        values = (small * 0.75).astype(dtype.numpy)
        special = np.array([np.nan, np.inf, -np.inf, -0.0, np.finfo(dtype.numpy).max, np.finfo(dtype.numpy).tiny], dtype.numpy)
    else:
        values, info = small.astype(dtype.numpy), np.iinfo(dtype.numpy)
        special = np.array([info.min, info.max, info.max // 2], dtype.numpy)
    return np.where(rng.random(n) < 0.25, rng.choice(special, n), values).reshape(shape)


class Arrays:
    """A line and a table of every type on the device; two hosts of one launch, of which one looks at copies."""

    def __init__(self, program, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.lines, self.tables = {}, {}
        fields = []
        for dtype in ALL.values():
            for of_type, shape in ((self.lines, (N,)), (self.tables, (ROWS, COLUMNS))):
                field = qd.field(getattr(qd, dtype.name), shape=shape)
                field.from_numpy(content(dtype, shape, rng))
                of_type[dtype] = field._places[0]
                fields.append(field)
        self.kept = fields
        owners = {f._places[0].buffer: memory_of(f) for f in fields}
        call = Call(bytearray(8))
        self.here = LaunchHost(call, owners)
        self.there = LaunchHost(call, owners, LaunchReducer(DeviceReducers(program.state, "test", [], owners), call))


class Conditions:
    """Random conditions over the elements of arrays: what gates are made of."""

    def __init__(self, arrays: Arrays, axes: list[Index], r: random.Random) -> None:
        self.arrays, self.axes, self.r = arrays, axes, r

    def index(self):
        kind = self.r.randrange(5)
        axis = self.r.choice(self.axes)
        if kind == 0:
            return Bin("add", (axis, Lit(self.r.randrange(-9, 30), i32)), i32)  # outside for some
        if kind == 1:
            dtype = self.r.choice([d for d in ALL.values() if d.is_int and d is not u1])
            return ElementRead(self.arrays.lines[dtype], (axis,))
        return Lit(self.r.randrange(N), i32) if kind == 2 else axis

    def value(self, dtype, depth: int):
        r = self.r
        if depth == 0 or r.random() < 0.15:
            if dtype is i32 and r.random() < 0.2:
                return r.choice(self.axes)
            if r.random() < 0.2:
                return Lit(
                    bool(r.randrange(2)) if dtype is u1 else float(r.randrange(4)) if dtype.is_real else r.randrange(5), dtype
                )
            if r.random() < 0.3 and len(self.axes) == 2:
                return ElementRead(self.arrays.tables[dtype], tuple(self.axes))
            return ElementRead(self.arrays.lines[dtype], (self.index(),))
        if dtype is u1:
            return self.truth(depth)
        code = r.choice(sorted((EXACT_REAL if dtype.is_real else INTEGER) - {*COMPARE, "not", "isnan", "isinf"}))
        if code == "cast":
            return Cast(self.value(r.choice(list(ALL.values())), depth - 1), dtype)
        if code == "select":
            return Bin("select", (self.truth(depth - 1), self.value(dtype, depth - 1), self.value(dtype, depth - 1)), dtype)
        arity = 1 if code in ("neg", "abs", "sqrt", "detach") else 2
        return Bin(code, tuple(self.value(dtype, depth - 1) for _ in range(arity)), dtype)

    def truth(self, depth: int):
        r = self.r
        kind = r.randrange(6) if depth > 0 else 5
        if kind == 0:
            return Bin("not", (self.truth(depth - 1),), u1)
        if kind == 1:
            return Bin(r.choice(["and", "or", "xor"]), (self.truth(depth - 1), self.truth(depth - 1)), u1)
        if kind == 2:
            return Bin(
                r.choice(["isnan", "isinf"]), (self.value(r.choice([d for d in ALL.values() if d.is_real]), depth - 1),), u1
            )
        if kind == 3:
            return Bin("select", tuple(self.truth(depth - 1) for _ in range(3)), u1)
        dtype = r.choice([d for d in ALL.values() if d is not u1])
        return Bin(r.choice(COMPARE), (self.value(dtype, max(0, depth - 1)), self.value(dtype, max(0, depth - 1))), u1)


def random_gate(arrays: Arrays, r: random.Random) -> RowPredicate:
    axes = tuple(
        Range(Op("index", (), i32), Lit(r.randrange(-3, 3), i32), Lit(n, i32), 1) for n in (ROWS, COLUMNS)[: r.randrange(1, 3)]
    )
    made = Conditions(arrays, [Index(a.index) for a in axes], r)
    tests = tuple(Condition(made.truth(r.randrange(1, 5)), bool(r.randrange(2))) for _ in range(r.randrange(1, 4)))
    return RowPredicate(tests, (), axes)


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3, 15))])
def test_random_gates_are_counted_as_numpy_counts_them(device, everything, seed):
    arrays, r, reduced, counts = Arrays(device, seed), random.Random(seed), 0, set()
    for _ in range(12):
        gate = random_gate(arrays, r)
        extent = extent_of(gate, arrays.here)
        assert extent == extent_of(gate, arrays.there)
        expected = count_passing(gate, extent, arrays.here, 1 << 40)
        assert count_passing(gate, extent, arrays.there, 1 << 40) == expected
        counts.add(expected)
        if extent.used and any(isinstance(e, ElementRead) for e in gate.leaves()):
            reduced += arrays.there.reducer.passing(gate, extent) == expected
    assert reduced >= 6 and len(counts) > 3


class Bounds:
    """Random bounds of loops: sizes over indices and elements."""

    def __init__(self, arrays: Arrays, r: random.Random) -> None:
        self.arrays, self.r = arrays, r

    def value(self, dtype, indices: list[Op], depth: int):
        r = self.r
        if depth == 0:
            if r.random() < 0.25:
                return Lit(r.randrange(0, 7), dtype)
            if r.random() < 0.4 and indices:
                return self.of_type(Index(r.choice(indices)), dtype)
            place = self.arrays.lines[dtype]
            return ElementRead(place, (self.at(indices),))
        code = r.choice(
            "add sub mul floordiv mod cdiv crem min max neg abs sgn pow and or xor bitnot shl shr sar popcnt clz cast select".split()
        )
        if code == "cast":
            other = r.choice([d for d in ALL.values() if d is not u1])
            inner = (
                ElementRead(self.arrays.lines[other], (self.at(indices),))
                if other.is_real
                else self.value(other, indices, depth - 1)
            )
            return Cast(inner, dtype)
        if code == "select":
            kind = r.choice([d for d in ALL.values() if d.is_int and d is not u1])
            cond = Bin(r.choice(COMPARE), (self.value(kind, indices, depth - 1), self.value(kind, indices, depth - 1)), u1)
            if r.random() < 0.3:
                cond = Bin("not", (cond,), u1)
            return Bin("select", (cond, self.value(dtype, indices, depth - 1), self.value(dtype, indices, depth - 1)), dtype)
        arity = 1 if code in ("neg", "abs", "sgn", "bitnot", "popcnt", "clz") else 2
        return Bin(code, tuple(self.value(dtype, indices, depth - 1) for _ in range(arity)), dtype)

    def at(self, indices: list[Op]):
        if not indices or self.r.random() < 0.2:
            return Lit(self.r.randrange(N), i32)
        index = Index(self.r.choice(indices))
        return (
            Bin("add", (self.of_type(index, i32), Lit(self.r.randrange(-4, 9), i32)), i32) if self.r.random() < 0.5 else index
        )

    def of_type(self, e, dtype):
        return e if e.dtype is dtype else Cast(e, dtype)

    def range(self, outer: list[Op], small: bool) -> Range:
        r = self.r
        dtype = r.choice([d for d in ALL.values() if d.is_int and d is not u1])
        begin, end = (self.value(dtype, outer, r.randrange(0, 3)) for _ in range(2))
        if small:  # few values, whatever the elements are
            begin, end = (Bin("and", (e, Lit(7, dtype)), dtype) for e in (begin, end))
        return Range(Op("index", (), dtype), begin, end, r.choice([1, 1, -1, 2, -3]))

    def space(self) -> tuple[Range, tuple[Range, ...]]:
        used: list[Range] = []
        for _ in range(self.r.randrange(1, 4)):
            if self.r.random() < 0.5:
                used.append(self.range([x.index for x in used], True))
            elif self.r.random() < 0.3:
                some = pick(Lit(0), Lit(self.r.randrange(1, 9)))
                used.append(some.range)
            else:
                used.append(Range(Op("index", (), i32), Lit(0, i32), Lit(self.r.randrange(1, 30), i32), 1))
        return self.range([x.index for x in used], False), tuple(used)


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3, 15))])
def test_random_bounds_have_the_counts_that_numpy_finds(device, everything, seed):
    arrays, r, reduced, found = Arrays(device, seed), random.Random(seed), 0, set()
    for _ in range(8):
        loop, used = Bounds(arrays, r).space()
        for space in (Space(loop, used, arrays.there), Space(loop, used, arrays.there, r.choice([1, 2, 5]))):
            here = replace(space, host=arrays.here)
            expected = largest(here)
            assert largest(space) == expected
            assert total(space, 1 << 16) == total(here, 1 << 16)
            reduced += arrays.there.reducer.trips(space) is not None
            found.add(expected)
        assert max_trips(loop, used, arrays.there) == max_trips(loop, used, arrays.here)
    assert reduced >= 6 and len(found) > 1


@pytest.mark.parametrize("dtype", ALL.values(), ids=str)
def test_the_ends_of_a_part_of_an_array(dtype, device, everything):
    arrays = Arrays(device, 5)
    index = Range(Op("index", (), i32), Lit(0, i32), Lit(9, i32), 1)
    line = ElementRead(arrays.lines[dtype], (Index(index.index),))
    table = ElementRead(arrays.tables[dtype], (Index(index.index), Index(index.index)))
    for wanted in (ALL["i8"], u1, i64, u64) if dtype.is_real else (dtype,):
        for read, windows in ((line, [((0, N),), ((7, 8),), ((11, 40),)]), (table, [((1, 4), (2, 9)), ((5, 6), (0, 1))])):
            for window in windows:
                part = cast(arrays.here.array(read.place)[tuple(slice(*w) for w in window)], wanted)
                assert arrays.there.reducer.ends(read, window, wanted) == (int(part.min()), int(part.max()))


# ---- whole programs
COUNT = 20_000  # more than LIMIT in 4 bytes each


def opened(arch: str):
    return (
        qd.init(arch=qd.cpu, default_fp=qd.f64)
        if arch == "cpu"
        else qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64)
    )


class Sparse:
    """A gradient with a gate and a bound in large arrays: fields or, ``arrays``, arguments."""

    def __init__(self, arch: str, arrays: bool = False) -> None:
        self.program = opened(arch)
        rng = np.random.default_rng(3)
        make = qd.ndarray if arrays else qd.field
        self.x, self.y = (make(qd.f64, shape=COUNT, needs_grad=True) for _ in range(2))
        self.alive, self.start = make(qd.i32, shape=COUNT), make(qd.i32, shape=COUNT + 1)
        self.x_was, self.alive_was = rng.random(COUNT), (rng.random(COUNT) < 0.01).astype(np.int32)
        self.x.from_numpy(self.x_was)
        self.alive.from_numpy(self.alive_was)
        self.starts = np.concatenate([[0], np.cumsum(rng.integers(0, 300, COUNT))]).astype(np.int32)
        self.start.from_numpy(self.starts)
        self.kernel = self._of_arguments() if arrays else self._of_fields()
        self.args = (self.x, self.y, self.alive, self.start, 0.5) if arrays else (0.5,)

    def _of_fields(self):
        x, y, alive, start = self.x, self.y, self.alive, self.start

        @qd.kernel
        def sparse(least: qd.f64):
            for i in x:
                if alive[i] == 1 and x[i] > least:
                    v = x[i]
                    for _ in range(start[i], start[i + 1]):
                        v = qd.sin(v) + 0.1
                    y[i] = v

        return sparse

    def _of_arguments(self):
        line = qd.types.ndarray(qd.f64, 1)
        whole = qd.types.ndarray(qd.i32, 1)

        @qd.kernel
        def sparse(x: line, y: line, alive: whole, start: whole, least: qd.f64):
            for i in range(x.shape[0]):
                if alive[i] == 1 and x[i] > least:
                    v = x[i]
                    for _ in range(start[i], start[i + 1]):
                        v = qd.sin(v) + 0.1
                    y[i] = v

        return sparse

    def gradient(self) -> np.ndarray:
        self.x.grad.fill(0.0)
        self.y.grad.fill(1.0)
        self.kernel.grad(*self.args)
        return self.x.grad.to_numpy()


@pytest.fixture
def traffic(monkeypatch):
    """Starts to record the bytes that are copied from a device."""

    def record(device) -> list[int]:
        copied, download = [], device.download
        monkeypatch.setattr(device, "download", lambda to, source, n: (copied.append(n), download(to, source, n))[1])
        return copied

    yield record
    qd.reset()


@pytest.mark.parametrize("arrays", [False, True])
def test_a_gradient_is_planned_without_a_copy_of_what_it_reads(arrays, traffic):
    here = Sparse("cpu", arrays)
    expected, there = here.gradient(), here.kernel.grad.plan(*here.args, arch=BACKEND)
    case = Sparse("cuda", arrays)
    copied = traffic(case.program.device)
    held = case.program.usage()
    plan = case.kernel.grad.plan(*case.args)
    assert case.program.usage() == held
    row = plan.rows()[0]
    passing = int(np.sum((here.alive_was == 1) & (here.x_was > 0.5)))
    assert 50 < passing < 150 and row["rows"] == passing and row["rows_from"] == f"gate: {passing} of {COUNT} iterations pass"
    assert row["bound"] == int(np.diff(case.starts).max())
    assert plan.to_json() == there.to_json()
    case.x.grad.fill(0.0)
    case.y.grad.fill(1.0)
    case.kernel.grad(*case.args)
    case.program.synchronize()
    assert copied and max(copied) <= 16
    np.testing.assert_allclose(case.x.grad.to_numpy(), expected, rtol=1e-12)


def test_nothing_is_asked_again_before_something_changed(traffic, monkeypatch):
    case = Sparse("cuda")
    asked = []
    run = DeviceReducers.run
    monkeypatch.setattr(DeviceReducers, "run", lambda *a: (asked.append(a[1]), run(*a))[1])
    plan = case.kernel.grad.plan(0.5)
    first = len(asked)
    assert first and case.kernel.grad.plan(0.5) is plan and len(asked) == first
    case.y.fill(2.0)  # no input of the plan
    assert case.kernel.grad.plan(0.5) is plan and len(asked) == first
    case.alive.fill(0)
    assert case.kernel.grad.plan(0.5).bytes == 0 and len(asked) > first


def test_what_a_kernel_writes_is_asked_for_again(traffic):
    case = Sparse("cuda")
    alive = case.alive

    @qd.kernel
    def wake(n: qd.i32):
        for i in range(n):
            alive[i] = 1

    before = case.kernel.grad.plan(-1.0).rows()[0]["rows"]
    asleep = int(np.sum(alive.to_numpy()[:40] == 0))
    copied = traffic(case.program.device)
    wake(40)
    assert case.kernel.grad.plan(-1.0).rows()[0]["rows"] == before + asleep and asleep > 30
    assert max(copied) <= 16


def test_one_element_of_a_large_array_is_copied_alone(traffic):
    device = opened("cuda").device
    n = qd.field(qd.i32, shape=COUNT)
    x, y = (qd.field(qd.f64, shape=7, needs_grad=True) for _ in range(2))
    steps = qd.Vector.ndarray(2, qd.i32, (COUNT,))

    @qd.kernel
    def march(k: qd.i32, many: qd.types.ndarray(qd.types.vector(2, qd.i32), 1)):
        for i in x:
            v = x[i]
            for _ in range(n[k]):
                v = qd.sin(v)
            for _ in range(many[k][1]):
                v = qd.sin(v) * 0.5
            y[i] = v

    n.from_numpy(np.arange(COUNT, dtype=np.int32))
    steps.from_numpy(np.arange(2 * COUNT, dtype=np.int32).reshape(COUNT, 2))
    copied = traffic(device)
    for k in (100, 150):
        assert [r["bound"] for r in march.grad.plan(k, steps).rows()] == [k, 2 * k + 1]
    assert set(copied) == {4}


@pytest.mark.skipif(ON_A_GPU, reason="the emulated device refuses on demand")
def test_a_refused_launch_names_the_kernel(traffic):
    case = Sparse("cuda")
    machine = case.program.device.driver.machine
    machine.fail_next("launch", 701)  # CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(DeviceError, match="`sparse_grad_reduce_0` could not be launched"):
        case.kernel.grad.plan(0.5)
    row = case.kernel.grad.plan(0.5).rows()[0]
    assert row["bound"] == int(np.diff(case.starts).max()) and row["rows_from"].startswith("gate: ")


def test_a_graph_refuses_a_plan_that_would_have_to_look(traffic):
    case = Sparse("cuda")
    case.gradient()

    def twice():
        case.alive.fill(0)
        case.kernel.grad(0.5)

    with pytest.raises(QdrunRuntimeError, match="a heap cannot be sized in a graph"):
        qd.capture(twice)


def test_arrays_of_the_host_are_looked_at_by_numpy(traffic):
    case = Sparse("cuda", arrays=True)
    alive = case.alive.to_numpy()
    args = (*case.args[:2], alive, *case.args[3:])
    assert case.kernel.grad.plan(*args).rows() == case.kernel.grad.plan(*case.args).rows()


PROGRAM = """
import json
import numpy as np
import qdrun as qd
from qdrun.compiler.program.plans import device_reducer

made = []
load = device_reducer.CACHE.lowered_kernel

def lowered_kernel(*args):
    found = load(*args)
    if "reduce" in args[0].name:
        made.append(found[0].forward.compiled(args[2]).from_cache)
    return found

device_reducer.CACHE.lowered_kernel = lowered_kernel
device_reducer.SMALL_ARRAY = 1 << 16
qd.init(arch=qd.cuda, device="emulated", offline_cache=True)
x, y = (qd.field(qd.f64, shape=20_000, needs_grad=True) for _ in range(2))
n = qd.field(qd.i32, shape=20_000)

@qd.kernel
def k():
    for i in x:
        if n[i] > 3:
            v = x[i]
            for _ in range(n[i]):
                v = qd.sin(v)
            y[i] = v

n.from_numpy(np.arange(20_000, dtype=np.int32) % 700)
plan = k.grad.plan()
print(json.dumps([made, plan.bytes]))
"""


@pytest.mark.slow
def test_a_second_process_finds_the_machine_code(tmp_path, monkeypatch):
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = [subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True) for _ in range(2)]
    (first, planned), (second, again) = (json.loads(d.stdout.splitlines()[-1]) for d in done)
    assert len(first) == len(second) == 2 and planned == again > 0
    assert not any(first) and all(second)
