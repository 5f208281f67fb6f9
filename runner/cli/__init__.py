"""The commands of ``qdrun``, by what they do; each module loads what it needs when its command runs."""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``qdrun`` command. Where loading what it needs fails, it says which package is too old.

    A Ctrl-C while it loads, before a command is there that could say more, ends it in silence.
    """
    import sys

    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    import sys

    from ...compiler.errors import QdrunImportError
    from ...compiler.versions import new_enough

    try:
        with new_enough():
            from .app import main as run

            run()
    except QdrunImportError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
