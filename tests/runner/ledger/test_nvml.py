"""NVIDIA's management library through nvidia-ml-py: a stand-in tells of cards, and is away in every way that a machine may lack it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from qdrun.runner.ledger.memory import Card, nvidia

UUIDS = ["GPU-AA", "GPU-Lost", "GPU-Bb"]


class Refused(Exception):
    """The error of the stand-in."""


@pytest.fixture
def nvml(monkeypatch):
    """A stand-in for ``pynvml`` with three cards; the second one is lost."""
    made, open_now = ModuleType("pynvml"), []

    def memory(card):
        if card == 1:
            raise Refused("GPU is lost")
        return SimpleNamespace(total=1000 + card, free=card, used=1000)

    made.NVMLError, made.open_now = Refused, open_now
    made.nvmlInit, made.nvmlShutdown = lambda: open_now.append(1), open_now.pop
    made.nvmlSystemGetDriverVersion = lambda: "570.1"
    made.nvmlDeviceGetCount = lambda: len(UUIDS)
    made.nvmlDeviceGetHandleByIndex = lambda k: k
    made.nvmlDeviceGetUUID = UUIDS.__getitem__
    made.nvmlDeviceGetMemoryInfo = memory
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def refuse(*_):
    raise Refused("no")


def test_cards_are_found_by_their_uuid_and_a_lost_one_is_left_out(nvml):
    assert nvidia() == {"gpu-aa": Card(1000, 0, "570.1"), "gpu-bb": Card(1002, 2, "570.1")}
    assert not nvml.open_now, "the library is closed again"


@pytest.mark.parametrize("away", ["nvmlInit", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount"])
def test_without_a_driver_there_are_no_cards(nvml, monkeypatch, away):
    monkeypatch.setattr(nvml, away, refuse)
    assert nvidia() == {} and not nvml.open_now


def test_without_the_package_there_are_no_cards(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia() == {}
