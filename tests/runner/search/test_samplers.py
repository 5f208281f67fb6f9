"""Samplers of Optuna: the same points for the same seed and results, within the axes of the sweep; what they cannot draw is refused."""

import sys

import pytest

from qdrun.runner.config.axes import Axis
from qdrun.runner.config.search_section import SearchSection
from qdrun.runner.search.samplers import NoSampler, Sampler, WrongAxis

AXES = {
    "x": Axis(uniform=[-2.0, 3.0]),
    "rate": Axis(loguniform=[1e-4, 1.0]),
    "n": Axis(randint=[1, 5]),
    "kind": Axis(choice=["a", "b"]),
    "level": Axis(grid=[10, 20, 30]),
}


def section(method, **keys):
    return SearchSection(method=method, evaluations=100, **keys)


def loss_of(point):
    return (point["x"] - 1.0) ** 2 + point["n"]


@pytest.mark.parametrize("method", ["tpe", "random"])
def test_points_lie_within_their_axes_and_follow_from_the_seed(method):
    pytest.importorskip("optuna")

    def asked(seed):
        sampler, out = Sampler(section(method, seed=seed), AXES), []
        for _ in range(4):
            points = sampler.ask(6)
            sampler.tell([loss_of(point) for point in points[:5]] + [None])
            out += points
        return out

    found = asked(3)
    assert found == asked(3) != asked(4)
    for point in found:
        assert -2.0 <= point["x"] <= 3.0 and 1e-4 <= point["rate"] <= 1.0
        assert point["n"] in (1, 2, 3, 4) and point["kind"] in ("a", "b") and point["level"] in (10, 20, 30)


@pytest.mark.parametrize("method", ["tpe", "cmaes"])
def test_samplers_that_learn_end_lower_than_random_points(method):
    pytest.importorskip("cmaes")

    def best(method):
        sampler, least = Sampler(section(method), {f"x{k}": Axis(uniform=[-2.0, 3.0]) for k in range(4)}), float("inf")
        for _ in range(20):
            losses = [sum((x - 1.0) ** 2 for x in point.values()) for point in sampler.ask(8)]
            sampler.tell(losses)
            least = min(least, *losses)
        return least

    assert best(method) < 0.5 * best("random")


def test_a_normal_distribution_is_refused_with_what_to_do():
    pytest.importorskip("optuna")
    with pytest.raises(
        WrongAxis, match=r"sweep\.params\.x: samplers of Optuna have no normal distribution\n  do: write {uniform:"
    ):
        Sampler(section("tpe"), {"x": Axis(normal=[0.0, 1.0])})


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(NoSampler, match=r"search\.method tpe needs the package `optuna`\n  do: pip install 'qdrun\[search\]'"):
        Sampler(section("tpe"), AXES)
