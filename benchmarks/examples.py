"""Seconds of every config that comes with the package, for `qdrun examples`: ``python -m benchmarks.examples [NAME ..] [--write]``.

Each is submitted in a process of its own, with the start of Ray, one after the other. ``--write`` puts the seconds into the comments of the
configs; do that on two quiet cores.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from qdrun.runner.cli.child_process import MAIN
from qdrun.runner.examples.catalog import SECONDS, examples

COMMAND = re.compile(r"^(#\s+qdrun (?:submit|search) \S+)([^\n]*)", re.M)


def seconds_of(config: Path, folder: str) -> float:
    """How long the command of a config takes."""
    verb = "search" if re.search(r"^search:", config.read_text(encoding="utf-8"), re.M) else "submit"
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", MAIN, verb, str(config)], cwd=folder, capture_output=True, check=True)
    return time.perf_counter() - begun


def write(config: Path, seconds: float) -> None:
    """Put the seconds into the comment of a config."""
    text, whole = config.read_text(encoding="utf-8"), max(1, round(seconds))
    if (said := SECONDS.search(text)) is not None:
        text = text[: said.start(1)] + str(whole) + text[said.end(1) :]
    else:
        text = COMMAND.sub(
            lambda m: f"{m[1]}     {m[2].strip() + ': ' if m[2].strip() else ''}{whole} s on two cores", text, count=1
        )
    config.write_text(text, encoding="utf-8")


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.examples", description=__doc__)
    parser.add_argument("names", nargs="*", help="of configs; default: all")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    for one in examples():
        if not given.names or one.config.stem in given.names:
            with tempfile.TemporaryDirectory() as folder:
                seconds = seconds_of(one.config, folder)
            print(f"{one.config.name:36} {seconds:6.1f} s   said before: {one.seconds}", flush=True)
            if given.write:
                write(one.config, seconds)


if __name__ == "__main__":
    main()
