"""The hook of an export: what a tracker is told, and the trackers that there are."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError

from ...compiler.errors import QdrunError
from ..config.export_section import ExportSection
from ..live.points import Logged
from ..store.layout import RunFolder


class BadExport(QdrunError, ValueError):
    """A command line asks for an export that there is not."""


class TrackerMissing(QdrunError, ImportError):
    """The package of a tracker is not installed."""


@dataclass(frozen=True)
class Beginning:
    """A trial that begins: its id, its number in the sweep, its swept values as text, and all parameters by dotted names."""

    trial: str
    index: int
    label: str
    params: Mapping[str, Any]


class Tracker(Protocol):
    """The hook: receives what trials log and how they end. Called by one thread, in the order of the run."""

    def begin(self, trial: Beginning) -> None:
        """A trial begins; called once for each."""
        ...

    def log(self, logged: Logged) -> None:
        """Points of one trial that has begun. A trial that is tried again may log a step again: the later value counts."""
        ...

    def end(self, trial: str, record: Mapping[str, Any]) -> None:
        """A trial has its row: ``status``, ``loss``, ``outputs`` and what else ``workers.records`` names. All of its points were logged."""
        ...

    def close(self, state: str) -> None:
        """Nothing more comes. ``state``: of the run; ``running`` when the export ends before it."""
        ...


TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Names in ``export`` of a config, each that of a package, and of a module here that uses it."""


def named_in(section: ExportSection | None) -> list[str]:
    """The names of the trackers that a config asks for.

    Raises:
        TrackerMissing: the package of one is not installed.
    """
    found = [] if section is None else [name for name in TRACKERS if getattr(section, name) is not None]
    for name in found:
        if importlib.util.find_spec(name) is None:
            raise TrackerMissing(
                f"`export` names {name}, whose package is not installed\n"
                f"  do: pip install 'qdrun[{name}]', or take {name} out of `export`"
            )
    return found


def asked_for(config: Mapping[str, Any] | None, names: Sequence[str], options: Sequence[str]) -> ExportSection:
    """The section of an export that a command line asks for.

    Args:
        config: ``export`` of the run's config.
        names: of trackers; none: those of the config.
        options: texts such as ``wandb.project=robots``, and ``trials=10``.

    Raises:
        BadExport: there is no such tracker or option, or none is named.
    """
    given: dict[str, Any] = {name: value for name, value in (config or {}).items() if value is not None}
    if names:
        given = {"trials": given.get("trials", 1000)} | {name: given.get(name, {}) for name in names}
    for text in options:
        path, _, value = text.partition("=")
        *above, key = path.split(".")
        place = given.setdefault(above[0], {}) if above else given
        place[key] = int(value) if key == "trials" and value.isdecimal() else value
    try:
        section = ExportSection.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, kind = ".".join(map(str, first["loc"])), first["type"]
        what = "is no tracker or option" if kind == "extra_forbidden" else first["msg"].lower()
        raise BadExport(
            f"`{where}` {what}\n  do: --to {', '.join(TRACKERS)}; their options are in docs/monitoring.md"
        ) from error
    if not any(getattr(section, name) is not None for name in TRACKERS):
        raise BadExport(f"the run's config has no `export`\n  do: say where to: --to {', '.join(TRACKERS)}")
    return section


def open_tracker(name: str, section: ExportSection, folder: RunFolder) -> Tracker:
    """A tracker that a config names, ready for a run. Raises what its package raises."""
    return importlib.import_module(f".to_{name}", __package__).open_tracker(folder, getattr(section, name))


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the results of a record that are one number: loss, norm and seconds, outputs by name, gradients as ``grad.<input>``."""
    found = {name: record.get(name) for name in ("loss", "gradient_norm", "seconds")} | dict(record.get("outputs") or {})
    found |= {f"grad.{name}": value for name, value in (record.get("gradients") or {}).items()}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


__all__ = [
    "TRACKERS",
    "BadExport",
    "Beginning",
    "Tracker",
    "TrackerMissing",
    "asked_for",
    "named_in",
    "numbers",
    "open_tracker",
]
