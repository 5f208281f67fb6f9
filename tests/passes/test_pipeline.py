"""The lists of ``compile.pipeline``: they name the stages that run, in the order in which they run."""

import re

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.compile import pipeline
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.compile.pipeline import DEVICE, FORWARD, REVERSE, TANGENT
from qdrun.compiler.frontend.signature import LowerOptions
from qdrun.compiler.ir.printer import print_kernel
from qdrun.compiler.options import make_options


def kernel():
    x = qd.field(qd.f64, shape=8, needs_grad=True, needs_dual=True)
    total = qd.field(qd.f64, shape=(), needs_grad=True, needs_dual=True)

    @qd.kernel
    def k():
        for i in x:
            v = x[i]
            for j in range(5):
                if v > 3.0:
                    break
                v = v * 1.5 + j
            total[None] += v

    return k, x, total


class Recorder:
    """Runs stages, and keeps their names, results, and the IR in each result: a later stage may change it in place."""

    def __init__(self):
        self.names, self.given, self.texts = [], {}, {}

    def __call__(self, stage, run, /, *args, **keywords):
        self.names.append(stage.name)
        self.given[stage.name] = result = run(*args, **keywords)
        self.texts[stage.name] = print_kernel(getattr(result, "kernel", result))
        return result


@pytest.fixture
def recorder():
    with qd.init(arch=qd.cpu, offline_cache=False):
        out = Recorder()
        source = kernel()[0].source
        out.simplified = pipeline.simplified(pipeline.lowered(source, {}, LowerOptions(), run=out), run=out)
        yield out


def names(stages):
    return [stage.name for stage in stages]


def test_the_lists_name_the_stages_that_run(recorder):
    assert recorder.names == names(FORWARD)
    recorder.names.clear()
    gradient = pipeline.gradient(recorder.simplified, run=recorder)
    assert recorder.names == names(REVERSE) and gradient.kernel is recorder.given["reverse"]
    recorder.names.clear()
    tangent = pipeline.tangent(recorder.simplified, run=recorder)
    assert recorder.names == names(TANGENT) and tangent.kernel is recorder.given["tangent"]
    recorder.names.clear()
    given, _ = pipeline.device_input(recorder.simplified, make_options({"debug": True, "nan_check": True}), run=recorder)
    checked = [name for name in names(DEVICE)[:-1] if name != "gather"]
    assert recorder.names == checked and given is recorder.given["checks"]
    recorder.names.clear()
    pipeline.device_input(recorder.simplified, make_options({}), run=recorder)
    assert recorder.names == names(DEVICE)[:-2], "checks are compiled only where the options ask for them"


def test_each_stage_gives_what_its_list_says(recorder):
    leaves = {name: "break" in text for name, text in recorder.texts.items()}
    assert leaves == {"lower": True, "exits": False, "simplify": False}
    assert len(recorder.texts["simplify"]) < len(recorder.texts["exits"])
    reduced, _ = pipeline.device_input(recorder.simplified, make_options({}), run=recorder)
    assert any(t.reductions for t in reduced.tasks) and not any(t.reductions for t in recorder.simplified.tasks)
    assert pipeline.gradient(recorder.simplified).sizing, "the loop keeps states: a plan needs its sizing"


def test_no_two_stages_have_one_name():
    every = names((*FORWARD, *REVERSE, *TANGENT, *DEVICE))
    assert len(set(every)) == len(every)


def test_what_the_environment_asks_for_is_printed_in_order(monkeypatch, capsys):
    def printed(wanted):
        monkeypatch.setenv("QDRUN_PRINT", wanted)
        CACHE.clear()
        with qd.init(arch=qd.cpu, offline_cache=False):
            k, x, total = kernel()
            x.from_numpy(np.linspace(0.1, 0.8, 8))
            with qd.ad.Tape(loss=total):
                k()
        return re.findall(r"^---- (.*)$", capsys.readouterr().err, re.MULTILINE)

    assert printed("reverse,simplify,nothing") == ["simplify", "reverse"]
    forward, device = names(FORWARD), names(DEVICE)[:-2]
    found = printed("all")
    assert [n for n in found if n in forward] == forward
    assert [n for n in found if n in names(REVERSE)] == names(REVERSE)
    prepared = [n for n in found if n in device]  # several threads prepare: a list of each kernel, for each number of lanes
    assert list(dict.fromkeys(prepared)) == device, "the first stage of any kernel is the first of the list"
    times = {prepared.count(n) for n in device}
    assert len(times) == 1 and min(times) >= 2, "both kernels are prepared for the device"
