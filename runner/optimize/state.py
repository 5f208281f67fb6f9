"""Descents in the middle: arrays with a row for each trial, and the same as bytes, from which another attempt goes on.

The bytes are a safetensors document: arrays by name, and in its metadata the step, the rule's count, and for each row its trial and a hash
of the section, the start and the seed that it belongs to. It is data: reading it runs nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from pydantic_core import to_json

from .results import STOPPED
from .update_rules import RuleState

Rows = dict[str, np.ndarray]
"""Arrays with a row for each trial."""
RUNNING = -1
REALS, WHOLES = ("best", "mark", "norm", "loss"), ("kept", "since", "stopped", "steps")
_META = "descents 2"
"""Names the format: what another version saved, with other arrays of a rule, begins anew."""


class Key(NamedTuple):
    """The identity of a saved descent: its trial, and a hash of what it was started with."""

    trial: str
    start: str


def section_hash(section: Mapping[str, Any]) -> str:
    """An ``optimize`` section as plain data, in 16 digits."""
    return hashlib.sha256(json.dumps(section, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def key_of(trial: str, section: Mapping[str, Any], start: Mapping[str, Any], seed: int) -> Key:
    """The identity of a descent. ``section``: as plain data; ``start``: all parameters, as plain data."""
    return Key(trial, hashlib.sha256(to_json([section, start, seed], inf_nan_mode="constants")).hexdigest())


@dataclass
class Descents:
    """The state of descents that take their steps together.

    Attributes:
        x: the point of each that is evaluated next, divided by the scale.
        rule: what the update rule keeps.
        step: the number of the next evaluation.
        best: the smallest loss. ``mark``: the loss that counts as progress since; ``since``: evaluations after that.
        kept, point, norm, loss, gradients, outputs: the step that is shown, and its point, gradient norm and outcome.
        stopped: a number of ``STOPPED``, or ``RUNNING``.
        steps: number of steps of each.
        history: the losses of each evaluation.
        failed: the trials that cannot go on. They are not saved.
    """

    x: Rows
    best: np.ndarray
    mark: np.ndarray
    norm: np.ndarray
    loss: np.ndarray
    kept: np.ndarray
    since: np.ndarray
    stopped: np.ndarray
    steps: np.ndarray
    step: int = 0
    rule: RuleState = field(default_factory=RuleState)
    history: list[np.ndarray] = field(default_factory=list)
    point: Rows = field(default_factory=dict)
    gradients: Rows = field(default_factory=dict)
    outputs: Rows = field(default_factory=dict)
    failed: dict[int, BaseException] = field(default_factory=dict)

    @classmethod
    def at(cls, x: Rows, trials: int) -> Descents:
        """Before the first step."""
        real = [np.full(trials, np.inf), np.full(trials, np.inf), np.zeros(trials), np.full(trials, np.nan)]
        whole = [np.zeros(trials, np.int64), np.zeros(trials, np.int64), np.full(trials, RUNNING), np.zeros(trials, np.int64)]
        return cls(x, *real, *whole)

    @property
    def running(self) -> np.ndarray:
        """Mask of the trials that are not over."""
        return self.stopped == RUNNING

    @property
    def alive(self) -> np.ndarray:
        """Mask of the trials that have not failed."""
        out = np.ones(len(self.stopped), bool)
        out[list(self.failed)] = False
        return out

    def fail(self, trial: int, error: BaseException) -> None:
        """A trial ends without a result."""
        self.failed[trial], self.stopped[trial] = error, STOPPED.index("not_finite")


def _arrays(now: Descents) -> Rows:
    """All arrays by name, the trials on the first axis."""
    out = {f"x/{name}": value for name, value in now.x.items()}
    for group in ("point", "gradients", "outputs"):
        out |= {f"{group}/{name}": value for name, value in getattr(now, group).items()}
    out |= {f"memory/{name}/{kind}": value for name, memory in now.rule.memory.items() for kind, value in memory.items()}
    out |= {f"number/{name}": getattr(now, name) for name in (*REALS, *WHOLES)}
    return out | {"history": np.stack(now.history, axis=1)}


def _descents(arrays: Rows, step: int, count: int) -> Descents:
    memory: dict[str, dict[str, np.ndarray]] = {}
    for name, value in _below(arrays, "memory").items():
        parameter, _, kind = name.rpartition("/")
        memory.setdefault(parameter, {})[kind] = value
    now = Descents.at(_below(arrays, "x"), arrays["history"].shape[0])
    for name, value in _below(arrays, "number").items():
        setattr(now, name, value)
    now.point, now.gradients, now.outputs = (_below(arrays, name) for name in ("point", "gradients", "outputs"))
    now.step, now.rule, now.history = step, RuleState(count, memory), list(np.ascontiguousarray(arrays["history"].T))
    return now


def _below(arrays: Mapping[str, np.ndarray], group: str) -> Rows:
    return {name.removeprefix(f"{group}/"): value for name, value in arrays.items() if name.startswith(f"{group}/")}


def packed(now: Descents, keys: Sequence[Key], section: Mapping[str, Any]) -> bytes:
    """Descents as bytes, but for the failed ones, which begin anew. ``section``: as of ``key_of``."""
    from safetensors.numpy import save

    rows = [row for row in range(len(keys)) if row not in now.failed]
    head = {"rows": [keys[row] for row in rows], "step": now.step, "count": now.rule.count, "section": section_hash(section)}
    arrays = {name: np.ascontiguousarray(value[rows]) for name, value in _arrays(now).items()}
    return save(arrays, {_META: json.dumps(head)})


def header_of(data: bytes) -> dict[str, Any] | None:
    """The metadata of saved descents, from their first bytes at least; None where they are damaged."""
    try:
        size = int.from_bytes(data[:8], "little")
        head = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_META])
        head["rows"] = [Key(*row) for row in head["rows"]]
        return {"rows": head["rows"], "step": int(head["step"]), "count": int(head["count"]), "section": str(head["section"])}
    except (ValueError, KeyError, TypeError):
        return None


def unpacked(data: bytes | None, keys: Sequence[Key]) -> dict[Key, Descents]:
    """The saved descents of some trials, each as one row; none where the bytes are damaged or of others."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    head = None if data is None else header_of(data)
    wanted = [] if head is None else [(row, key) for row, key in enumerate(head["rows"]) if key in keys]
    if data is None or head is None or not wanted:
        return {}
    try:
        arrays = load(data)
        return {
            key: _descents({name: value[row : row + 1] for name, value in arrays.items()}, head["step"], head["count"])
            for row, key in wanted
        }
    except (SafetensorError, ValueError, KeyError, TypeError):
        return {}


def joined(parts: Sequence[Descents]) -> Descents:
    """Descents of equal step, one after the other."""
    if len(parts) == 1:
        return parts[0]
    arrays = [_arrays(part) for part in parts]
    return _descents(
        {name: np.concatenate([one[name] for one in arrays]) for name in arrays[0]}, parts[0].step, parts[0].rule.count
    )


__all__ = ["RUNNING", "Descents", "Key", "Rows", "header_of", "joined", "key_of", "packed", "section_hash", "unpacked"]
