"""The command line, ``qdrun``: the app, and how it ends. The commands are in ``commands``; none of them is loaded before it runs."""

from __future__ import annotations

import gc as collector
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..jobcode import places
from ..stops import is_command
from . import config_commands, looking, machine, planning, running, watching
from .output import ErrorDocument, ErrorPart, print_document
from .runs.compare import compare
from .runs.exporting import export
from .runs.labels import note, tag
from .runs.removing import gc, rm
from .runs.rerun import rerun
from .runs.results import results
from .runs.search import search
from .runs.sensitivity import sensitivity


class Commands(TyperGroup):
    """The group of all commands. With ``--json``, an invalid command line is reported as a document, too."""

    def main(self, args: Sequence[str] | None = None, *more: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line; ends the process unless ``standalone_mode`` is off."""
        words = list(sys.argv[1:] if args is None else args)
        if not standalone_mode or "--json" not in words:
            return super().main(args, *more, standalone_mode=standalone_mode, **extra)
        try:
            code = super().main(args, *more, standalone_mode=False, **extra)
        except Exception as error:
            say = getattr(error, "format_message", None)  # of click, or of the one inside of Typer
            if say is None:
                raise
            code = int(getattr(error, "exit_code", 2))
            where = getattr(getattr(error, "ctx", None), "command_path", "qdrun")
            message = f"{where}: {say()}\n  do: `{where} --help`"
            print_document("error", ErrorDocument(ErrorPart("UsageError", message), code))
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: typer.Context) -> Any:
        """Run a command. Typer's message for a word that is none of several begins with the name of an exception, which is left out."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            message = getattr(error, "message", None)
            if isinstance(message, str) and hasattr(error, "format_message"):
                error.message = message.removeprefix("Value error, ")  # pyright: ignore[reportAttributeAccessIssue]
            raise


app = typer.Typer(
    name="qdrun",
    cls=Commands,
    help="Differentiable simulations in bulk. Exit codes: 0 success, 1 trials failed, 2 the command or config is wrong, "
    "3 a plan does not fit, 4 no cluster, 5 the run can be resumed, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    *(
        running.submit,
        search,
        running.resume,
        planning.plan,
        looking.status,
        looking.watch,
        looking.logs,
        running.cancel,
        results,
        looking.ls,
    ),
    watching.report,
    rerun,
    compare,
    sensitivity,
    export,
    *(tag, note, rm, gc),
    *(config_commands.new, config_commands.examples),
    *(
        machine.up,
        machine.down,
        machine.devices,
        machine.dashboard,
        planning.explain,
        config_commands.check,
        config_commands.schema,
    ),
):
    app.command()(command)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"qdrun {version('qdrun')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """Entry point of the ``qdrun`` command."""
    _open_streams()
    is_command()
    places.drop_unsafe_entries()
    try:
        app()
    finally:
        # while Python ends it would scan all objects again: half a second with Ray, Arrow and NumPy
        collector.freeze()


def _open_streams() -> None:
    """Give a command whose caller has closed its standard streams others: files that it opens would get their numbers, and their output."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
