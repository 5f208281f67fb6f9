"""The fuzzer itself: what it writes, that it finds planted faults and makes them small, and that its processes tell what ends them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
import qdrun as qd
from qdrun.compiler.codegen.llvm import task_emitter
from qdrun.compiler.frontend.values import fold
from qdrun.compiler.ir import meaning
from qdrun.compiler.ir.nodes import GlobalStore, Op
from qdrun.compiler.passes.dependence import argument_forms, collisions
from qdrun.compiler.passes.dependence.store_maps import Clash
from qdrun.compiler.passes.reverse import derivatives
from qdrun.compiler.program.memory.kept import KeptElements
from qdrun.compiler.runtime.python import interpret
from tests.fuzz import check, child, execute, parent, second, slopes, stores, tapes
from tests.fuzz.__main__ import main as command
from tests.fuzz.check import Result, modelled
from tests.fuzz.compare import differences, unexplained
from tests.fuzz.draw import SWITCHES
from tests.fuzz.program import Program, generate
from tests.fuzz.shrink import shrink
from tests.fuzz.smooth import generate_smooth


@pytest.fixture(autouse=True)
def own_mathematics(monkeypatch):
    """The interpreter of other tests keeps numpy's functions."""
    before, run_task = dict(meaning.REAL), interpret._run_task
    execute.use_libm()
    yield
    meaning.REAL.update(before)
    interpret._run_task = run_task


def hunt(folder: Path, numbers: range, kind: str = "") -> tuple[Program, Result, int]:
    """The first of these programs with a finding. ``kind``: a part of what it is. Loops that the device counts would not end here while
    they are made smaller: the command does that in a process of its own.
    """
    for index in numbers:
        program, result = child.examine(11, index, [], folder)
        if result.finding is not None and kind in result.finding.kind and "do_while" not in program.text:
            assert program is not None
            return program, result, index
    raise AssertionError("nothing was found")


def small(folder: Path, program: Program, result: Result, index: int) -> str:
    def fails(text: str) -> bool:
        found = child.examine_text(replace(program, text=text), 11, index, [], folder).finding
        return found is not None and result.finding is not None and found.kind == result.finding.kind

    return shrink(program.text, fails, 60.0)


def test_the_same_number_makes_the_same_program():
    assert generate(3, 17) == generate(3, 17)
    assert generate(3, 17).text != generate(4, 17).text


def test_programs_have_every_part_of_the_language():
    missing, index = {*SWITCHES, "stages"}, 0
    while missing and index < 300:
        missing -= generate(1, index).features
        index += 1
    assert not missing


@pytest.mark.slow
def test_programs_are_right_without_a_planted_fault(tmp_path):
    for index in (0, 1, 5):
        assert child.examine(11, index, [], tmp_path)[1].finding is None


@pytest.mark.slow
def test_a_wrong_fold_is_found_and_made_small(tmp_path, monkeypatch):
    def wrong(code, args, dtype):
        right = meaning.evaluate(code, args, dtype)
        return right + right.dtype.type(1) if code == "sub" else right

    monkeypatch.setattr(fold, "evaluate", wrong)
    program, result, index = hunt(tmp_path, range(45, 240), "model")  # the first that sees it
    text = small(tmp_path, program, result, index)
    assert len(text) < len(program.text) / 2
    assert text.count("def k") == 1


@pytest.mark.slow
def test_a_dropped_store_is_found_and_made_small(tmp_path, monkeypatch):
    handlers = next(t for t in vars(task_emitter).values() if isinstance(t, dict) and GlobalStore in t)
    store = handlers[GlobalStore]

    def dropping(e, s):
        if not (isinstance(s.value, Op) and s.value.op == "mul"):
            store(e, s)

    monkeypatch.setitem(handlers, GlobalStore, dropping)
    program, result, index = hunt(tmp_path, range(200))
    text = small(tmp_path, program, result, index)
    assert len(text) < len(program.text) / 2


@pytest.mark.slow
def test_a_wrong_derivative_is_found_and_made_small(tmp_path, monkeypatch):
    monkeypatch.setitem(derivatives.RULES, "cos", derivatives.RULES["sin"])
    program, result, index = hunt(tmp_path, range(29, 300, 6))
    text = small(tmp_path, program, result, index)
    # both compare with central differences; in second derivatives a sine has the adjoint of a cosine
    functions = {"differences": ("qd.cos(",), "hvp": ("qd.cos(", "qd.sin(")}[result.finding.kind]
    assert any(f in text for f in functions)
    assert len(text) < len(program.text) / 2


def test_second_derivatives_and_fixed_points_are_compared_and_faults_in_them_found(tmp_path, monkeypatch):
    text = generate_smooth(1, 11).text
    path = tmp_path / "program.py"
    path.write_text(text)
    assert second.hessian(text, path, np.random.default_rng(1)) and second.fixed_point(text, path, np.random.default_rng(1))
    product = qd.ad.hvp

    def wrong(*args):
        found = product(*args)
        return found._replace(product=[p * 1.01 for p in found.product])

    monkeypatch.setattr(qd.ad, "hvp", wrong)
    with pytest.raises(slopes.Wrong, match="hvp"):
        second.hessian(text, path, np.random.default_rng(1))
    monkeypatch.setattr(qd.ad.FixedPoint, "grad", qd.ad.FixedPoint.release)
    with pytest.raises(slopes.Wrong, match="fixed_point"):
        second.fixed_point(text, path, np.random.default_rng(1))


def test_tapes_of_other_launches_are_compared_and_faults_in_them_found(tmp_path, monkeypatch):
    text, path = generate_smooth(7, 8).text, tmp_path / "program.py"
    assert [name for name, _, way in tapes.WAYS if way(text, path, random.Random(8))] == [n for n, *_ in tapes.WAYS]
    assert "while qd.graph.do_while(times):" in tapes.counted(text) and "[0:" in tapes.through_parts(text)
    monkeypatch.setattr(tapes, "counted", lambda text: text.replace("0.7 * b", "0.8 * b"))
    monkeypatch.setattr(tapes, "through_parts", lambda text: text.replace("0.7 * b", "0.8 * b"))
    monkeypatch.setattr(qd.algorithms, "gather", lambda x, order, out: out.from_numpy(x.to_numpy()[order.to_numpy()]))
    monkeypatch.setattr(KeptElements, "restore", lambda self, when: None)
    for name in ("do_while", "parts", "algorithms", "in place"):
        with pytest.raises(slopes.Wrong):
            next(way for n, _, way in tapes.WAYS if n == name)(text, path, random.Random(8))


def test_a_tape_that_exceeds_the_budget_that_it_asks_for_is_found(tmp_path, monkeypatch):
    text, path = generate_smooth(17, 7).text, tmp_path / "program.py"
    assert tapes._budget(text, path, random.Random(8))
    monkeypatch.setattr(qd.Program, "peak_bytes", property(lambda self: self.options.memory_budget + 1))
    with pytest.raises(slopes.Wrong, match="a memory budget is exceeded"):
        tapes._budget(text, path, random.Random(8))


def test_what_mathematics_cannot_explain_is_a_difference():
    want = {"x": np.array([1.0, 2.0]), "n": np.array([3, 4])}
    rng = random.Random(1)

    def disturbed():
        return {"x": np.array([1.0 + rng.uniform(-1, 1) * 1e-15, 2.0]), "n": want["n"]}

    def differs(x, n):
        return unexplained(want, {"x": np.array(x), "n": np.array(n)}, disturbed, "1")

    assert not differs([1.0 + 2e-15, 2.0], [3, 4])
    assert differs([1.0 + 1e-13, 2.0], [3, 4]).startswith("x at [[0]]")
    assert differs([1.0, 2.0 + 1e-15], [3, 4]).startswith("x at [[1]]")
    assert differs([1.0, 2.0], [3, 5]).startswith("n at [[1]]")
    assert differences({"x": np.array([0.0])}, {"x": np.array([-0.0])})
    assert not differences({"x": np.array([np.nan])}, {"x": np.array([-np.nan])})


@pytest.mark.slow
@pytest.mark.parametrize("ending, kind", [("os.kill(os.getpid(), 11)", "crash: SIGSEGV"), ("time.sleep(100)", "hang")])
def test_what_ends_or_stops_a_process_is_a_finding_of_its_program(monkeypatch, tmp_path, ending, kind):
    (tmp_path / "tests" / "fuzz").mkdir(parents=True)
    lines = [
        "import json, os, sys, time",
        "pipe, at, step = int(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4])",
        "for index in (at, at + step):",
        "    os.write(pipe, (json.dumps({'at': index}) + chr(10)).encode())",
        f"    if index == 4: {ending}",
        "    facts = dict(done=index, refused='', finding=None, compared=[], features=[], seconds=0.0)",
        "    os.write(pipe, (json.dumps(facts) + chr(10)).encode())",
    ]
    (tmp_path / "tests" / "fuzz" / "child.py").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(parent, "ROOT", tmp_path)
    monkeypatch.setattr(parent, "LONGEST", 1.5)
    tally = parent.search(1, 2.5, 1, [])
    assert [(f.index, f.kind) for f in tally.found][:1] == [(4, kind)]
    assert tally.programs > 5


@pytest.mark.slow
def test_the_command_prints_a_summary_and_finds_nothing():
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--seconds", "8", "--jobs", "1", "--seed", "3", "--cpu-only"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    facts = json.loads(run.stdout.splitlines()[-1])
    assert run.returncode == 0, run.stdout
    assert (facts["seed"], facts["wrong"]) == (3, 0)
    assert facts["programs"] >= 3
    assert facts["compared"]["model"] >= 1


def test_one_kind_of_finding_neither_fills_the_report_nor_ends_the_search():
    tally = parent.Tally()
    for index in range(500):
        tally.add(parent.Found(index, "cpu != cached", "x"))
    assert not tally.full and tally.kinds == {"cpu != cached": 500}
    assert [f.index for f in tally.found] == [0, 1, 2]
    for index in range(parent.MOST - 1):
        tally.add(parent.Found(index, f"raised: {index}", "x"))
    assert tally.full


CHILD = """
import json, os, sys
pipe, at, step = int(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4])
for index in range(at, at + 1000 * step, step):
    finding = dict(kind="cpu != cached" if index % 4 else f"raised: {index}", detail="it is wrong")
    for facts in (dict(at=index), dict(done=index, refused="", finding=finding, compared=[], features=[], seconds=0.0)):
        os.write(pipe, (json.dumps(facts) + chr(10)).encode())
"""


def test_a_search_with_too_many_findings_ends_with_its_report(monkeypatch, tmp_path, capsys):
    """Nothing can be made small in this time: each kind is shown once as it is, and all of them are kept as files."""
    (tmp_path / "tests" / "fuzz").mkdir(parents=True)
    (tmp_path / "tests" / "fuzz" / "child.py").write_text(CHILD)
    monkeypatch.setattr(parent, "ROOT", tmp_path)
    monkeypatch.setattr(parent, "MOST", 5)
    monkeypatch.setattr("tests.fuzz.__main__.devices", list)
    monkeypatch.setattr("tests.fuzz.__main__.REPORT", 0.0)
    arguments = ["--seed", "3", "--jobs", "1", "--seconds", "600", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["fuzz", *arguments])
    assert command() == 1
    *text, summary = capsys.readouterr().out.splitlines()
    facts = json.loads(summary)
    assert facts["kinds"] == {"cpu != cached": 9, **{f"raised: {n}": 1 for n in (0, 4, 8, 12)}}
    assert facts["wrong"] == 13
    titles = [line for line in text if line.startswith("==== ")]
    assert titles[1] == "==== program 1 of seed 3: cpu != cached, found 9 times, not made smaller"
    assert len(titles) == len(list((tmp_path / "out").iterdir())) == 7
    assert text.count("python -m tests.fuzz --seed 3 --only 2  # prints it") == 1


POWER = """
import numpy as np
import qdrun as qd
OPTIONS = {}
C1 = 4
@qd.kernel
def k(n: qd.f32) -> qd.f32:
    return (n + 1.469) ** EXPONENT
def main():
    return {"k": k(4.407)}
"""


@pytest.mark.parametrize(
    ("exponent", "known"),
    [
        ("2.581", True),
        ("3", True),
        ("qd.f32(2.581)", True),
        ("qd.round(qd.f32(2.581))", False),
        ("qd.sqrt(qd.f32(0.25))", False),
    ],
)
def test_the_model_leaves_open_whether_a_whole_exponent_is_multiplied_out(exponent, known):
    """The compiler does that for what it knows, and may know more than the model: one more rounding is no finding."""
    assert (modelled(POWER.replace("EXPONENT", exponent)) is not None) == known


SUMS = """
import numpy as np
import qdrun as qd
OPTIONS = {}
x = qd.field(qd.f32, shape=2)
y = qd.field(qd.f64, shape=2)
@qd.kernel
def k():
    for i in range(8):
        x[i % 2] += 1e-39
        y[i % 2] += 1e-309
def main():
    x.from_numpy(np.array([0.0, 1.0], "float32"))
    k()
    return {"x": x.to_numpy(), "y": y.to_numpy()}
"""


SUM, SUM64 = 4 * np.float32(1e-39), 4 * np.float64(1e-309)


@pytest.mark.parametrize(
    ("way", "x", "y", "right"),
    [
        (execute.CUDA, [SUM, 1.0], [SUM64] * 2, True),
        (execute.CUDA, [0.0, 1.0], [SUM64] * 2, True),
        (execute.CUDA, [SUM / 2, 1.0], [SUM64] * 2, False),
        (execute.CUDA, [0.0, 0.0], [SUM64] * 2, False),
        (execute.CUDA, [0.0, 1.0], [0.0] * 2, False),
        (execute.OTHERS[0], [0.0, 1.0], [SUM64] * 2, False),
    ],
)
def test_atomic_sums_of_f32_on_a_gpu_may_take_subnormal_numbers_for_zero_and_nothing_else_may(
    tmp_path, monkeypatch, way, x, y, right
):
    path, here = tmp_path / "sums.py", execute.run
    path.write_text(SUMS)

    def run(path, text, config):
        got = here(path, text, execute.SCALAR if config is way else config)
        return replace(got, values={"x": np.float32(x), "y": np.float64(y)}) if config is way else got

    monkeypatch.setattr(check, "run", run)
    found = check.check(Program(SUMS, frozenset()), path, [way], False).finding
    assert (found is None) == right, found


DRAWING = """
import numpy as np
import qdrun as qd
OPTIONS = {"default_ip": "i32", "default_fp": "f32"}
C1 = 4
x = qd.field(qd.f32, shape=8)
@qd.kernel
def draw():
    for i in range(4):
        x[i] = qd.random(qd.f32) + C1
@qd.kernel
def draw_again():
    for i in range(4, 8):
        x[i] = qd.random(qd.f32)
def main():
    draw()
    draw_again()
    return {"x": x.to_numpy()}
"""


@pytest.mark.slow
def test_second_runs_draw_the_random_numbers_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
    path, text = tmp_path / "drawing.py", DRAWING
    path.write_text(text)
    first = execute.run(path, text, execute.SCALAR)
    assert not first.error and len(set(first.values["x"].tolist())) == 8
    for way in execute.OTHERS:
        if way.second:
            assert not differences(first.values, execute.run(path, text, way).values), way.name


def test_constants_are_changed_and_changed_back_within_one_second(tmp_path, monkeypatch):
    """Bytecode is found by the second and the length of its text: Python would run that of the other constants."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "numbers.py"
    for n in (1, 2, 1, 3):
        path.write_text(f"C1 = {n}\n")
        os.utime(path, (1e9, 1e9))
        assert execute.load(path)["C1"] == n
    assert not sys.dont_write_bytecode


def test_stores_through_computed_indices_are_compared_and_faults_in_them_found(tmp_path, monkeypatch):
    def found(way, count):
        return {kind[0] for k in range(count) if (kind := way(random.Random(f"stores {k}"), tmp_path / f"s_{k}.py"))}

    assert not found(stores.one_kernel, 12) | found(stores.one_pair, 6)
    monkeypatch.setattr(collisions, "find_clash", lambda meeting, host: None)
    assert found(stores.one_kernel, 12) == {"several iterations store to one element, and the gradient is not refused"}
    monkeypatch.setattr(collisions, "find_clash", lambda meeting, host: Clash((0,), (0,), (1,)))
    assert found(stores.one_kernel, 12) == {"a store is refused that no two iterations make to one element"}
    monkeypatch.setattr(argument_forms, "evaluate", lambda op, args, dtype: args[0])
    assert found(stores.one_pair, 12)
