"""Compilation grows with the kernel, not with its square. Counted in calls of functions, which depend on nothing but the input."""

import json
import os
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import qdrun as qd
from benchmarks.compile_time import load
from qdrun.compiler.codegen.llvm.kernel import emit_kernel
from qdrun.compiler.codegen.llvm.target import Target
from qdrun.compiler.compile import pipeline
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.frontend.lower import lower
from qdrun.compiler.frontend.signature import LowerOptions
from qdrun.compiler.frontend.source.parse import read_function
from qdrun.compiler.ir.walk import walk
from qdrun.compiler.passes.parallel.injective import race_free
from qdrun.compiler.passes.parallel.reduce import reduce_kernel
from qdrun.compiler.passes.reverse.gradient import reverse_kernel
from qdrun.compiler.passes.simplify.simplify import simplify
from qdrun.compiler.runtime import cache, jit
from qdrun.tests.call_count import calls
from qdrun.tests.kept_code import KEPT

SMALL, LARGE = 40, 200
"""Sizes of the two kernels; a quadratic pass would take 5 times as much per statement in the second."""

MOST = 1.35
"""How much more a statement of the large kernel may cost than one of the small."""


def emit(kernel):
    machine = jit.host()
    ready = reduce_kernel(kernel)
    plain = frozenset(op for task in ready.tasks for op in race_free(task))
    return emit_kernel(ready, Target("cpu", machine.triple, machine.cpu, machine.features, 1), plain)


def stages(source):
    """Calls of each stage, and the size of what it makes."""
    counts = {}

    def stage(name, f, *args):
        result, counts[name] = calls(f, *args)
        return result

    lowered = stage("lower", lower, source, {})
    primal = stage("simplify", lambda: pipeline.simplified(lowered))
    stage("emit", emit, primal)
    gradient = stage("reverse", reverse_kernel, primal)
    adjoint = stage("simplify the gradient", simplify, gradient.kernel)
    stage("emit the gradient", emit, adjoint)
    return counts, sum(1 for t in adjoint.tasks for _ in walk(t.body))


def compare(small, large):
    with qd.init(arch=qd.cpu, offline_cache=False):
        (few, size), (many, bigger) = stages(small), stages(large)
    growth = bigger / size
    assert growth > 3
    return {name: many[name] / few[name] / growth for name in few}


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["straight", "branchy", "loopy"])
def test_every_stage_is_linear_in_the_statements(tmp_path, shape):
    with qd.init(arch=qd.cpu, offline_cache=False):
        sources = [load(tmp_path, shape, n).make(qd).source for n in (SMALL, LARGE)]
        worse = {name: f"{ratio:.2f}" for name, ratio in compare(*sources).items() if ratio > MOST}
    assert not worse, f"calls per statement grow with the kernel: {worse}"


def written(tmp_path, name, lines):
    path = tmp_path / f"{name}.py"
    path.write_text("import qdrun as qd\n" + "\n".join(lines) + "\n")
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return scope


@pytest.mark.parametrize(
    "form", ["exits", "variables", *(pytest.param(f, marks=pytest.mark.slow) for f in ("top level", "elements"))]
)
def test_other_forms_are_linear_too(tmp_path, form):
    """Statements outside of loops, loops with many exits, many live variables, many stores to different elements."""

    def lines(n):
        body = {
            "top level": [f"    y[{k % 64}] = x[{(k * 7) % 64}] * 2.0" for k in range(n)],
            "exits": [
                f"    for i in range(8):\n        for j in range(4):\n            if x[i] > {k}.0:\n                break\n"
                "            y[i] += x[i]"
                for k in range(n // 8)
            ],
            "variables": [
                "    for i in range(8):",
                *(f"        v{k} = x[i] * {k}.5\n        if x[i] > 0.5:\n            v{k} = y[i]" for k in range(n // 3)),
                "        y[i] = " + " + ".join(f"v{k}" for k in range(n // 3)),
            ],
            "elements": ["    for i in range(8):", *(f"        z[i, {k}] = x[i] + z[i, {k}]" for k in range(n))],
        }
        return ["def k():", *body[form]]

    with qd.init(arch=qd.cpu, offline_cache=False):
        made = SimpleNamespace(
            x=qd.field(qd.f64, shape=64, needs_grad=True),
            y=qd.field(qd.f64, shape=64),
            z=qd.field(qd.f64, shape=(8, 1024)),
        )
        counts = []
        for n in (SMALL, LARGE):
            scope = written(tmp_path, f"k{n}", lines(n))
            scope |= vars(made)
            lowered, first = calls(lower, read_function(scope["k"]), {})
            _, second = calls(lambda kernel=lowered: pipeline.simplified(kernel))
            counts.append((first, second))
        growth = [b / a / (LARGE / SMALL) for a, b in zip(*counts)]
    assert max(growth) < MOST, growth


COMPONENTS = {
    "of a field": """
    for j in range(4):
        for i in range(SIZE):
            v[j][i] = x[i % 64]""",
    "between tasks": """
    r = qd.Vector([0.0] * SIZE)
    for i in range(SIZE):
        r[i] = i
    for j in range(4):
        v[j] = r""",
    "of a variable": """
    for j in range(4):
        r = qd.Vector([0.0] * SIZE)
        for i in range(SIZE):
            r[i] = x[i % 64]
        v[j] = r""",
}


@pytest.mark.slow
@pytest.mark.parametrize("form", COMPONENTS)
def test_components_chosen_while_running_are_linear_in_their_number(tmp_path, form):
    counts = []
    for n in (SMALL, LARGE):
        with qd.init(arch=qd.cpu, offline_cache=False):
            scope = written(tmp_path, f"k{n}", ["def k():", COMPONENTS[form].replace("SIZE", str(n))])
            scope["x"] = qd.field(qd.f32, shape=64, needs_grad=True)
            scope["v"] = qd.Vector.field(n, qd.f32, shape=4, needs_grad=True)
            counts.append(stages(read_function(scope["k"]))[0])
    worse = {name: counts[1][name] / counts[0][name] / (LARGE / SMALL) for name in counts[0]}
    assert max(worse.values()) < MOST, worse


@pytest.mark.parametrize("use", ["y[a % 8, i] += x[i] * x[i]", "for j in range(a % 4):\n            y[0, i] += x[i] * x[i]"])
@pytest.mark.parametrize("step", ["a = a + a", "a = a * 3 + a", "a = a + c[a % 4]"])
def test_values_that_are_used_twice_are_looked_at_once(tmp_path, step, use):
    """Forty doublings of an index: every path through them would take for ever. A long chain is not a deep recursion either."""
    with qd.init(arch=qd.cpu, offline_cache=False):
        made = {"x": qd.field(qd.f64, shape=8, needs_grad=True), "y": qd.field(qd.f64, shape=(8, 8), needs_grad=True)}
        made["c"] = qd.field(qd.i32, shape=4)
        counts = []
        for n in (10, 40):
            lines = ["def k():", "    for i in range(8):", "        a = c[0]", *[f"        {step}"] * n, f"        {use}"]
            scope = written(tmp_path, f"twice{n}", lines)
            scope |= made
            primal = pipeline.simplified(pipeline.lowered(read_function(scope["k"]), {}, LowerOptions()))
            counts.append(calls(reverse_kernel, primal)[1])
        assert counts[1] < 8 * counts[0], counts


def test_first_calls_stay_small():
    """In a new process: the first launch, which also emits the native launcher, then a kernel of the same process."""
    ask = "import json; from benchmarks.first_calls import python_calls as p; print(json.dumps([p('elementwise'), p('recurrence')]))"
    env = {**os.environ, "QDRUN_VERIFY": "0"}  # the checks of passes are no part of a user's calls
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, env=env)
    first, second = json.loads(done.stdout)
    assert 0 < first["launch"] <= 10_000
    assert 0 < second["launch"] <= 6_500
    assert 0 < second["gradient"] <= 25_000


def test_walking_costs_the_same_at_any_depth():
    def nest(depth):
        from qdrun.compiler.ir.nodes import Const, If
        from qdrun.compiler.ir.types import u1

        block = []
        for _ in range(depth):
            block = [If(Const(True, u1), block)]
        return block

    (found, few), (more, many) = (calls(lambda d=d: list(walk(nest(d)))) for d in (50, 500))
    assert (len(found), len(more)) == (50, 500)
    assert many < 12 * few


@pytest.mark.parametrize(
    "pipelines", [jit.PIPELINES[-2:-1], *(pytest.param(jit.PIPELINES[k:], marks=pytest.mark.slow) for k in (2, -1))]
)
@pytest.mark.filterwarnings("ignore:kernel .* is compiled without optimisation")
def test_large_functions_take_the_short_road_through_llvm(tmp_path, monkeypatch, pipelines):
    """The same bits with few passes, or none, and the fast code generator as with all of them."""
    monkeypatch.setattr(KEPT, "one_in", 1)
    results = []
    for tried in (jit.PIPELINES, pipelines):
        monkeypatch.setattr(jit, "PIPELINES", tried)
        CACHE.clear()
        monkeypatch.setattr(cache, "LOADED", cache.CodeTable())
        with qd.init(arch=qd.cpu, offline_cache=False):
            kernel = load(tmp_path, "loopy", 64).make(qd)
            scope = {name: cell.cell_contents for name, cell in zip(kernel.fn.__code__.co_freevars, kernel.fn.__closure__)}
            scope["x"].from_numpy(np.linspace(0.1, 1.0, 64, dtype=np.float32))
            kernel()
            scope["y"].grad.fill(1.0)
            kernel.grad()
            code = next(iter(kernel.variants().values())).gradient.compiled.object_bytes
            results.append((scope["y"].to_numpy(), scope["x"].grad.to_numpy(), code))
    for a, b in zip(*[r[:2] for r in results]):
        np.testing.assert_array_equal(a, b)
    assert results[0][2] != results[1][2]


def test_the_size_of_a_module_is_that_of_its_largest_function_block_and_memory_of_a_block():
    small = "define void @a() {\n  ret void\n}\n"
    large = (
        "define void @b() {\nentry:\n"
        + "  %x = add i32 1, 2\n" * 50
        + "next:\n"
        + "  %y = add i32 1, 2\n" * 20
        + "  store i32 %x, ptr %r1\n  store i32 %x, ptr %s1\n  %l = load i32, ptr %r2\n" * 3
        + "  ret void\n}\n"
    )
    size = jit.size_of("; head\n" + small + large)
    assert 81 <= size.lines <= 84 and 50 <= size.block <= 52
    assert size.memory == 6, "the stack slots aside"
    assert jit.size_of("") == jit.Size(0, 0)


@pytest.mark.parametrize(
    ("size", "passes", "level"),
    [
        (jit.Size(800, 800, 400, 300), "all", 2),
        (jit.Size(4_000, 4_000), "all", 2),
        (jit.Size(100_000, 100_000, 400, 300), "all", 1),
        (jit.Size(100, 100, 401), "few", 1),
        (jit.Size(100, 100, 0, 301), "few", 1),
        (jit.Size(100_000, 100_000, 10_000, 5_000), "few", 1),
    ],
)
def test_the_pipeline_of_a_module_depends_on_its_size(size, passes, level):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = jit.pipeline_for(size, "k")
    assert (found.passes, found.level) == (passes, level)
    assert jit.pipeline_for(size, "k", 0).level == 0


def test_a_kernel_too_large_for_optimised_code_is_named_with_what_to_do():
    with pytest.warns(
        qd.PerformanceWarning, match=r"kernel `chemistry` is compiled without(.|\n)*100,001 lines(.|\n)*split the loop"
    ):
        assert jit.pipeline_for(jit.Size(100_001, 1), "chemistry").level == 0


def test_the_loops_of_a_function_are_the_branches_back_to_its_own_labels():
    loop = "b{0}:\n  br i1 %c, label %b{0}, label %o{0}\no{0}:\n  br i1 %c, label %b{1}, label %o{1}\n"
    text = "define void @{}() {{\nentry:\n{}  ret void\n}}\n"
    few, many = ("".join(loop.format(k, k + 1) for k in range(n)) for n in (2, 5))
    assert jit.size_of(text.format("a", few) + text.format("b", many) + text.format("c", few)).loops == 5


@pytest.mark.parametrize("batch", [3])
def test_short_loops_keep_nothing_however_many_there_are(batch):
    loops, trips = (
        70,
        16,
    )  # written out, they are shorter than their checkpoints, and longer than all that may be written out otherwise
    with qd.init(default_fp=qd.f64, offline_cache=False, **({"batch": batch} if batch else {})) as program:
        x, loss = (qd.field(qd.f64, n, needs_grad=True) for n in (2, 1))

        @qd.kernel
        def powers():
            for _ in range(1):
                v = x[0]
                for _ in qd.static(range(loops)):
                    for _ in range(trips):
                        v = v * x[1] + 0.0
                        v = v * 1.0
                loss[0] = v

        start, factor = np.random.default_rng(6).uniform(0.999, 1.001, 2)
        x.from_numpy(np.array([start, factor]) if batch is None else np.full((batch, 2), [start, factor]))
        loss.grad.fill(1.0)
        powers.grad()
        n = loops * trips
        want = np.array([factor**n, n * start * factor ** (n - 1)])
        np.testing.assert_allclose(x.grad.to_numpy(), want if batch is None else np.full((batch, 2), want), rtol=1e-10)
        assert not program.usage().get("adstack")
