"""The order in which trials are asked for: those that may share a program follow each other."""

from types import SimpleNamespace

from qdrun.runner.engine.parts import Work
from qdrun.runner.engine.start import side_by_side


def trials(*params):
    return [SimpleNamespace(id=f"t{k}", params=values) for k, values in enumerate(params)]


def ids(work):
    return [one.id for one in work]


GRID = trials(*({"stiffness": s, "damping": d, "drive": {"size": 3}} for s in (1.0, 2.0, 3.0) for d in (0.0, -0.0)))


ALL = [[trial.id for trial in GRID]]


def test_trials_that_differ_in_live_parameters_alone_follow_each_other():
    work = [Work(trial.id) for trial in GRID]
    assert ids(side_by_side(work, GRID, ALL, ("stiffness",))) == ["t0", "t2", "t4", "t1", "t3", "t5"]
    assert ids(side_by_side(work, GRID, ALL, ("damping",))) == ["t0", "t1", "t2", "t3", "t4", "t5"]
    assert side_by_side(work, GRID, ALL, ()) == work


def test_the_turns_of_shapes_stay():
    work = [Work(trial.id) for trial in GRID]
    shapes = [["t0", "t1", "t4"], ["t5", "t3", "t2"]]
    assert ids(side_by_side(work, GRID, shapes, ("stiffness",))) == ["t0", "t4", "t2", "t3", "t1", "t5"]


def test_what_goes_on_keeps_its_numbers():
    work = [Work("t3", 2, {"crash": 1}), Work("t0"), Work("t5", alone=True)]
    assert side_by_side(work, GRID, ALL, ("stiffness",)) == [work[0], work[2], work[1]]
