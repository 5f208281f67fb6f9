"""What a run asks of a cluster, and what it gives to others: pure."""

from dataclasses import replace

import pytest

from qdrun.runner.ledger.cluster_shares import Demand, Group, HeldGroup, WantedGroup, asks, full_nodes, to_give
from qdrun.runner.ledger.inventory import kind_of, pretended

GIB = 1 << 30
ANY = WantedGroup(1, 1.0)


def cpu(node, cores, threads=1):
    row = pretended(1, 24 * GIB, node, cores // threads, "cpu")[0]
    return replace(row, id=f"cpu@{node}", pool=f"ram@{node}", threads=threads, kind=kind_of("cpu", "x", threads))


def cards(node, count, lanes=4):
    return pretended(count, 24 * GIB, node, lanes)


def asked(missing, rows, free, held=None, part=ANY, most=64):
    return asks(missing, rows, held or {}, free, part, most)


def test_what_is_free_is_asked_for_by_quarters_of_nodes_and_the_rest_of_any_node():
    found = asked(20, [cpu("a", 8), cpu("b", 4)], {"a": 8, "b": 3})
    assert sorted(found[:-9]) == sorted([WantedGroup(2, 2.0, "a")] * 4 + [WantedGroup(1, 1.0, "b")] * 3)
    assert found[-9:] == [ANY] * 9


def test_few_lanes_are_spread_over_the_nodes():
    assert sorted(asked(2, [cpu("a", 8), cpu("b", 8)], {"a": 8, "b": 8})) == [
        WantedGroup(1, 1.0, "a"),
        WantedGroup(1, 1.0, "b"),
    ]
    assert asked(1, [cpu("a", 8), cpu("b", 8)], {"a": 8, "b": 8}, {"a": 1}) == [WantedGroup(1, 1.0, "b")]


def test_a_node_that_is_smaller_than_a_trial_wants_gives_it_all_of_its_cores():
    """Of 4 threads: 2 lanes of 4 on a node of 9 cores, and one of 2 on a node of 2."""
    found = asked(9, [cpu("large", 9, 4), cpu("small", 2, 2)], {"large": 9, "small": 2}, part=WantedGroup(1, 4.0))
    assert sorted(found[:3]) == [WantedGroup(1, 2.0, "small"), WantedGroup(1, 4.0, "large"), WantedGroup(1, 4.0, "large")]
    assert found[3:] == [WantedGroup(1, 4.0)] * 6


def test_no_more_lanes_are_asked_of_a_node_than_its_memory_has_room_for():
    row = replace(cpu("a", 8), lanes=3)
    found = asked(8, [row], {"a": 8}, {"a": 1})
    assert [one for one in found if one.node] == [WantedGroup(1, 1.0, "a")] * 2
    group = HeldGroup("g", "CPU", 3.0, 3, 0.0, "a")
    assert full_nodes([group], [row]) == {"a"} and full_nodes([], [row]) == set()


def test_a_card_is_a_group_and_has_several_lanes():
    rows = [*cards("a", 2), *cards("b", 1)]
    part = WantedGroup(4, 1.0)
    found = asked(9, rows, {"a": 1, "b": 1}, part=part)
    assert sorted(found, key=lambda one: one.node) == [part, WantedGroup(4, 1.0, "a"), WantedGroup(4, 1.0, "b")]
    assert asked(9, rows, {}, part=part) == [part] * 3


def test_so_many_groups_wait_at_the_most():
    assert asked(10**6, [cpu("a", 8)], {"a": 8}, most=10) == [WantedGroup(2, 2.0, "a")] * 4 + [ANY] * 6


def held(amounts, resource="CPU"):
    return [
        HeldGroup(f"{node}/{k}", resource, float(n), n, 0.0, node=node)
        for node, all_of in amounts.items()
        for k, n in enumerate(all_of)
    ]


@pytest.mark.parametrize(
    ("cores", "amounts", "free", "given"),
    [
        (1, {"a": [4]}, {}, []),  # all that the run has
        (1, {"a": [2, 1, 1]}, {}, ["a/1"]),
        (2, {"a": [1, 1, 2]}, {}, ["a/0", "a/1"]),
        (3, {"a": [1, 1, 2]}, {}, ["a/0", "a/1", "a/2"]),
        (2, {"a": [3], "b": [1]}, {"a": 1}, ["a/0"]),
        (2, {"a": [1, 1]}, {}, []),  # half of the node is kept
        (5, {"a": [4], "b": [4]}, {}, []),  # no node has as many
        (1, {"a": [2, 1]}, {"a": 1}, []),  # there is one already
        (2, {"a": [4], "b": [2, 2]}, {}, ["b/0"]),
    ],
)
def test_strangers_get_the_fewest_cores_and_half_of_a_node_is_kept(cores, amounts, free, given):
    found = to_give(held(amounts), [], cores, free, dict.fromkeys(amounts, 4.0))
    assert [group.id for group in found] == given


def test_strangers_get_a_card_of_a_run_that_has_several():
    totals = {"a": 4.0}
    assert [group.id for group in to_give(held({"a": [1, 1]}, "GPU"), [], 1.0, {}, totals)] == ["a/0"]
    assert to_give(held({"a": [1]}, "GPU"), [], 1.0, {}, totals) == []
    assert to_give(held({"a": [1, 1]}, "GPU"), [], 0.0, {}, totals) == []


def others(run, has, waits, resource="GPU"):
    return [Group(f"{run}{k}", run, 1, resource, 1.0, "a" if k < has else "") for k in range(has + waits)]


@pytest.mark.parametrize(("mine", "has", "gives"), [(4, 0, 1), (3, 1, 1), (2, 1, 0), (2, 2, 0), (2, 0, 1), (1, 0, 0)])
def test_another_run_that_waits_gets_as_much_as_this_one_has_and_no_more(mine, has, gives):
    """So two runs that both want more do not pass one card to and fro."""
    groups = held({"a": [1] * mine}, "GPU")
    assert len(to_give(groups, others("b", has, 2), 0.0, {}, {"a": 8.0})) == gives
    assert to_give(groups, others("b", has, 0), 0.0, {}, {"a": 8.0}) == []


def test_of_several_runs_that_wait_the_poorest_counts():
    groups = [*others("b", 2, 1), *others("c", 0, 1)]
    assert len(to_give(held({"a": [1, 1, 1]}, "GPU"), groups, 0.0, {}, {"a": 8.0})) == 1


def test_demand_tells_the_devices_that_a_run_can_use():
    row, (card,) = cpu("a", 4), cards("a", 1)
    assert Demand({"CPU": 1}, None).suits(row, "CPU")
    assert not Demand({"CPU": 1}, frozenset()).suits(row, "CPU")
    assert not Demand({"CPU": 1}, frozenset([card.kind])).suits(row, "CPU")
    assert Demand({"GPU": 1}, frozenset([card.kind])).suits(card, "GPU")
    assert not Demand({"GPU": 1}, None).suits(replace(card, usable=False), "GPU")
