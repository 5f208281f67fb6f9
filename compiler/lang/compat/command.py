"""``python -m qdrun.compat [--frames N] [--save FOLDER] [--debug] program.py ..``."""

from __future__ import annotations

import argparse
import faulthandler
import os
import runpy
import sys
import time
from pathlib import Path
from types import TracebackType

from ...program.program import CURRENT
from . import imports, report
from .windows import opencv
from .windows.session import Session, begin


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m qdrun.compat", description="Run a program of Quadrants or Taichi; its imports of these give qdrun."
    )
    parser.add_argument(
        "--frames", type=int, metavar="N", help="end after N frames of the program's windows, which have no screen"
    )
    parser.add_argument("--save", metavar="FOLDER", help="save each frame as an image, and what a scene shows as arrays (npz)")
    parser.add_argument("--debug", action="store_true", help="check each index, as ti.init(debug=True)")
    parser.add_argument("program", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the program")
    return parser


def _of_program(trace: TracebackType | None, path: str) -> TracebackType | None:
    """The part of a traceback that begins in the program."""
    start = trace
    while start is not None and os.path.abspath(start.tb_frame.f_code.co_filename) != os.path.abspath(path):
        start = start.tb_next
    return start or trace


def main() -> None:
    """Run the program that the command line names. Ends with its exit code."""
    given = _parser().parse_args()
    if given.frames is not None and given.frames < 0:
        _parser().error("--frames is 0 or more")
    faulthandler.enable()  # an index out of range may end the process: say in which line
    session = begin(Session(given.frames, given.save))
    if given.debug:
        os.environ["QD_DEBUG"] = "1"
    imports.install()
    opencv.install()
    sys.argv = [given.program, *given.arguments]
    sys.path[0] = str(Path(given.program).resolve().parent)
    started = time.perf_counter()
    code, how = run(given.program)
    program = CURRENT.get()
    where = f" on {program.arch}" if program is not None else ""
    sys.stdout.flush()
    session.reported = True
    print(report.text(f"{how} after {time.perf_counter() - started:.1f} s{where}"), file=sys.stderr, flush=True)
    sys.exit(code)


def run(path: str) -> tuple[int, str]:
    """Run a file as ``__main__``: its exit code as ``sys.exit`` takes it, and how it ended. A traceback goes to stderr."""
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as exit_:
        if isinstance(exit_.code, str):
            print(exit_.code, file=sys.stderr)
            return 1, "the program ended with exit code 1"
        code = int(exit_.code or 0)
        return code, f"the program ended with exit code {code}"
    except BaseException as error:
        error.__traceback__ = _of_program(error.__traceback__, path)
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1, f"the program stopped with {type(error).__name__}"
    return 0, "the program ended"
