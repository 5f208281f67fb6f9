"""Random graph kernels with loops in loops and checkpoints: what a graph of the emulated CUDA device does is what the host does."""

import importlib.util
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qdrun as qd
from qdrun.compiler.program.graph import Graph

HEAD = """
import qdrun as qd

I0 = qd.types.ndarray(qd.i32, ndim=0)
I1 = qd.types.ndarray(qd.i32, ndim=1)


@qd.kernel(graph=True, checkpoints=True)
def run(log: I1, at: I0, paused: I0, stop: I0, counts: I1, {flags}):
"""
WORK = st.just("work")
PAUSE = st.just("pause")
STAGES = st.recursive(
    st.one_of(WORK, WORK, PAUSE),
    lambda inner: st.tuples(st.integers(1, 3), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=7,
)


class Writer:
    """The source of a kernel. Each piece of work writes a number of its own to the log."""

    def __init__(self):
        self.lines, self.loops, self.labels = [], 0, 0
        self.numbers = itertools.count(1)

    def work(self, indent):
        self.lines += [f"{indent}log[at[()]] = {next(self.numbers)}", f"{indent}at[()] += 1"]

    def stage(self, stage, indent):
        if stage == "work":
            self.work(indent)
        elif stage == "pause":
            self.labels += 1
            self.lines.append(f"{indent}with qd.checkpoint({self.labels}, yield_on=paused):")
            self.work(indent + "    ")
            self.lines += [f"{indent}    if at[()] >= stop[()]:", f"{indent}        paused[()] = 1"]
        else:
            count, body = stage
            name, self.loops = f"c{self.loops}", self.loops + 1
            self.lines += [f"{indent}{name}[()] = {count}", f"{indent}while qd.graph.do_while({name}):"]
            for inner in body:
                self.stage(inner, indent + "    ")
            self.work(indent + "    ")
            self.lines.append(f"{indent}    {name}[()] -= 1")


def kernel_of(stages, folder):
    """The kernel, and the number of its loops."""
    writer = Writer()
    for stage in stages:
        writer.stage(stage, "    ")
    writer.work("    ")
    flags = ", ".join(f"c{k}: I0" for k in range(max(1, writer.loops)))
    path = folder / f"stages_{next(NUMBERS)}.py"
    path.write_text(HEAD.format(flags=flags) + "\n".join(writer.lines) + "\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run, max(1, writer.loops)


NUMBERS = itertools.count()


def history(kernel, loops, stops):
    """What three calls write, with the statuses of them and of what they resume."""
    log, counts = qd.ndarray(qd.i32, shape=4000), qd.ndarray(qd.i32, shape=1)
    at, paused, stop, *flags = (qd.ndarray(qd.i32, shape=()) for _ in range(3 + loops))
    out = []
    for _ in range(3):
        for x in (log, at, paused, *flags):
            x.fill(0)
        pending = list(stops)
        stop[None] = pending.pop(0)
        status = kernel(log, at, paused, stop, counts, *flags)
        while status is not None and status.yielded:
            out.append((status.checkpoint, at[None]))
            paused[None] = 0
            stop[None] = at[None] + pending.pop(0) if pending else 1 << 30
            status = kernel.resume(log, at, paused, stop, counts, *flags, from_checkpoint=status.checkpoint)
        out.append((at[None], log.to_numpy()[: at[None]].tolist(), [f[None] for f in flags]))
    return out


@pytest.mark.parametrize("examples", [12, pytest.param(16, marks=pytest.mark.slow)])
def test_a_graph_does_what_the_host_does(examples, tmp_path, monkeypatch):
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(STAGES, min_size=1, max_size=4), st.lists(st.integers(1, 9), min_size=1, max_size=4))
    def check(stages, stops):
        kernel, loops = kernel_of(stages, tmp_path)
        with qd.init(arch=qd.cpu):
            want = history(kernel, loops, stops)
        with qd.init(arch=qd.cuda, device="emulated") as program:
            assert history(kernel, loops, stops) == want
            staged = program.stage_graphs
            assert not staged or any(isinstance(g, Graph) for graphs in staged.values() for g in graphs._known.values())

    check()
