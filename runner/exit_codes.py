"""Exit codes of commands that run something."""

from __future__ import annotations

DONE, SOME_FAILED, WRONG, DOES_NOT_FIT, NO_CLUSTER, RESUMABLE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


def exit_code(state: str) -> int:
    """The exit code of a run that ended in ``state``: done, failed, cancelled, interrupted, lost."""
    return {"done": DONE, "interrupted": INTERRUPTED, "lost": RESUMABLE}.get(state, SOME_FAILED)
