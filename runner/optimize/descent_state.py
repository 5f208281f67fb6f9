"""A descent in the middle, as bytes: what ``optimize`` needs to go on after a time-out, a cancel or a crash with the same numbers.

A safetensors document: arrays by the names below, and in its metadata the step, the counts, and a hash of the section and the start that
it belongs to. It is data: reading it runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...jobs.base import Outcome
from ..store.files import Files, StorageFull
from .update_rules import Arrays, State

SAVE_S = 30.0
"""Seconds of work at most that a crash costs a descent. One that is stopped is saved as it is."""
_KEY = "descent"


@dataclass
class Descent:
    """The state of a descent.

    Attributes:
        step: the next to evaluate, at ``x``.
        x, state: the point of that step, and what the update rule keeps.
        history: losses so far. ``best``: the smallest.
        kept, point, outcome, norm: the step that is shown, its point, outcome and gradient norm.
        since: steps since the best loss became better by more than ``stop.progress``; ``mark``: that loss.
    """

    x: Arrays
    step: int = 0
    state: State = field(default_factory=State)
    history: list[float] = field(default_factory=list)
    best: float = math.inf
    kept: int = 0
    point: Arrays = field(default_factory=dict)
    outcome: Outcome | None = None
    norm: float = 0.0
    since: int = 0
    mark: float = math.inf


class Kept(Protocol):
    """The storage of a descent between attempts."""

    def load(self) -> bytes | None:
        """The last saved state; None: there is none, or it cannot be read."""
        ...

    def save(self, data: bytes) -> None:
        """Keep this instead."""
        ...

    def clear(self) -> None:
        """The descent is over: nothing is to go on."""
        ...


@dataclass(frozen=True)
class KeptFile:
    """``trials/<id>/descent.safetensors`` in a run folder. ``check``: is called before each write, and refuses a lost owner.

    A store that is full or away costs what was not kept, and not the descent.
    """

    files: Files
    path: str
    check: Callable[[], None]

    def load(self) -> bytes | None:
        """See ``Kept``."""
        try:
            return self.files.read(self.path)
        except OSError:
            return None

    def save(self, data: bytes) -> None:
        """See ``Kept``."""
        with suppress(StorageFull, OSError):
            self.check()
            self.files.put(self.path, data, durable=False)

    def clear(self) -> None:
        """See ``Kept``."""
        with suppress(StorageFull, OSError):
            if self.files.exists(self.path):
                self.check()
                self.files.remove(self.path)


def key_of(section: Mapping[str, Any], start: Mapping[str, Any], seed: int) -> str:
    """The identity of a saved descent: the section, the initial parameters, the seed."""
    text = json.dumps([section, start, seed], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def packed(now: Descent, key: str) -> bytes:
    """A descent as bytes."""
    from safetensors.numpy import save

    assert now.outcome is not None
    arrays = {f"x/{n}": v for n, v in now.x.items()} | {f"point/{n}": v for n, v in now.point.items()}
    arrays |= {f"memory/{n}/{k}": v for n, memory in now.state.memory.items() for k, v in memory.items()}
    arrays |= {f"gradients/{n}": v for n, v in now.outcome.gradients.items()}
    arrays |= {f"outputs/{n}": v for n, v in now.outcome.outputs.items()}
    arrays |= {"history": now.history, "numbers": [now.best, now.norm, now.mark, float(now.outcome.loss)]}
    counts = {"key": key, "step": now.step, "count": now.state.count, "kept": now.kept, "since": now.since}
    return save({n: np.array(v, order="C") for n, v in arrays.items()}, {_KEY: json.dumps(counts)})


def unpacked(data: bytes | None, key: str) -> Descent | None:
    """The descent in some bytes; None where there is none, or it is another one's or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if data is None:
        return None
    try:
        size = int.from_bytes(data[:8], "little")
        counts = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_KEY])
        arrays = load(data)
        if counts["key"] != key:
            return None
        best, norm, mark, loss = map(float, arrays["numbers"])
        memory: dict[str, dict[str, np.ndarray]] = {}
        for name, value in _below(arrays, "memory").items():
            parameter, _, kind = name.rpartition("/")
            memory.setdefault(parameter, {})[kind] = value
        outcome = Outcome(loss, _below(arrays, "gradients"), _below(arrays, "outputs"))
        state = State(int(counts["count"]), memory)
        history = [float(x) for x in arrays["history"]]
        told = {name: int(counts[name]) for name in ("step", "kept", "since")}
        return Descent(
            _below(arrays, "x"), told["step"], state, history, best, told["kept"], _below(arrays, "point"), outcome, norm,
            told["since"], mark,
        )  # fmt: skip
    except (SafetensorError, ValueError, KeyError, TypeError):
        return None


def _below(arrays: Mapping[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{group}/"): value for name, value in arrays.items() if name.startswith(f"{group}/")}


__all__ = ["SAVE_S", "Descent", "Kept", "KeptFile", "key_of", "packed", "unpacked"]
