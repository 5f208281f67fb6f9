"""The config and the job of a run as its folder keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...jobs.base import Job
from ..jobcode.store import KEPT
from ..store.layout import RunFolder
from ..study.plan import Prepared
from ..study.prepare import prepare
from ..study.target import kept_target
from ..study.trial_list import Trial
from .kept import KeptCode

KEPT_OF = "kept_of"
"""The member of ``run.json`` of a run that has its code in its folder alone: it was made from the folder of another one, whose URI it is,
or in a notebook: ``NOTEBOOK``.
"""
NOTEBOOK = "notebook"


def prepared_again(
    folder: RunFolder, found: KeptCode, trials: Sequence[Trial], *, local: bool = True, debug: bool = False
) -> tuple[Prepared, type[Job[Any]]]:
    """The config and the job of a run as its folder keeps them.

    Args:
        folder: of the run.
        found: what it keeps.
        trials: those to run.
        local: they run on this machine.
        debug: in debug mode, see ``prepare``.

    Raises:
        ConfigError: this machine lacks something, such as the device.
        Damaged: the folder is.
    """
    resolved = folder.config()
    place, backend = Path(str(folder.info()["config"])), resolved["device"]["backend"]
    target = kept_target(found.provenance.target, found.code, home=KEPT, label=found.label)
    how = {"backend": backend, "text": folder.config_text(), "target": target, "copies": found.copies, "trials": trials}
    return prepare(place, local=local, overrides=list(resolved.get("overrides", ())), debug=debug, **how)


__all__ = ["KEPT_OF", "NOTEBOOK", "prepared_again"]
