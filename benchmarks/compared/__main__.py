"""The same sweep of 24 points with six tools: what is left of it, after how long, in how many lines.

python -m benchmarks.compared --python VENV/bin/python [--tools qdrun,tune] [--rows sweep,crash]

``--python``: of an environment with ``ray[tune]``, ``optuna``, ``hydra-core``, ``submitit`` and ``wandb``. Rows:

- ``sweep``: all goes well.
- ``crash``: the trial x = 7 reads address 0, which ends its process by SIGSEGV.
- ``hang``: it does not end for 40 s, and has a limit of 2 s (submitit: 1 min) where a tool has one for a trial.
- ``killed``: the command is killed by SIGKILL after 8 calls of trials that take 0.25 s, and started again.
- ``typo``: the swept parameter is not one of the trial's.

Printed are the losses that the tool has at the end (of 24), the calls of trials, the seconds until the first call and in all, the exit code
and the last line of the output; before them the lines of code.
"""

import argparse
import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
QDRUN = str(Path(sys.executable).parent / "qdrun")
TOOLS = ("qdrun", "tune", "optuna", "hydra", "submitit")
ROWS = ("sweep", "crash", "hang", "killed", "typo")
KILL_AT, LIMIT_S = 8, 150.0


def command(tool: str, row: str, folder: Path, python: str, *, again: bool) -> list[str]:
    """The command line of a row."""
    if tool == "hydra":
        name = "xx" if row == "typo" else "x"
        points = ",".join(map(str, range(24)))
        return [
            python,
            "hydra_side.py",
            "--multirun",
            f"{name}={points}",
            f"row={row}",
            f"folder={folder}",
            f"hydra.sweep.dir={folder}/out",
        ]
    if tool != "qdrun":
        return [python, f"{tool}_side.py", row, str(folder)]
    if again:
        return [QDRUN, "resume", "latest", "--runs", f"{folder}/runs", "--quiet"]
    words = [QDRUN, "submit", "sweep.yaml", "--quiet", "--output", f"{folder}/runs"]
    words += ["--set", f"job.params.row={row}", "--set", f"job.params.folder={folder}"]
    words += ["--set", "limits.trial_timeout=2s"] if row == "hang" else []
    return words + (["--set", "sweep.params={xx: [0, 1, 2]}"] if row == "typo" else [])


def calls(folder: Path) -> int:
    """How many trials have been called."""
    path = folder / "calls"
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def losses(tool: str, folder: Path) -> int:
    """How many losses the tool has."""
    if tool == "qdrun":
        words = [QDRUN, "results", "latest", "--runs", f"{folder}/runs", "--format", "json", "--columns", "loss"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return sum(row["loss"] is not None for row in json.loads(done.stdout)) if not done.returncode else 0
    if tool == "hydra":
        path = folder / "losses"
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
    path = folder / "rows"
    return len(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else 0


def lines(tool: str) -> dict[str, int]:
    """Lines of code that a tool's side took for the plain sweep, and how many more for each other row; without blank ones and comments."""
    if tool == "qdrun":
        texts = [(HERE / name).read_text(encoding="utf-8") for name in ("square.py", "sweep.yaml")]
        return {"sweep": sum(bool(line.strip()) and not line.startswith('"""') for text in texts for line in text.splitlines())}
    text = (HERE / f"{tool}_side.py").read_text(encoding="utf-8")
    tree, own = ast.parse(text), text.splitlines()
    found = {"sweep": sum(bool(line.strip()) for line in own) - 1}  # the docstring
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in ROWS[1:]:
            found[node.name] = sum(bool(line.strip()) for line in own[node.lineno - 1 : node.end_lineno])
            found["sweep"] -= found[node.name]
    return found


def played(words: Sequence[str], folder: Path, log: Path, *, kill: bool) -> int:
    """Run a command, in a session of its own, to its end or to the moment when it is killed; its exit code."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            words, stdout=out, stderr=out, cwd=HERE, start_new_session=True, env=os.environ | {"COLUMNS": "160"}
        )
        end = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < end:
            if kill and calls(folder) >= KILL_AT:
                process.kill()
            time.sleep(0.05)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # our own, by its id
        return process.wait()


def tried(tool: str, row: str, python: str) -> str:
    """Play one row with one tool; what came of it, in a line."""
    with tempfile.TemporaryDirectory(prefix="compared-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, begun, clock = Path(name), time.monotonic(), time.time()
        log = folder / "log"
        code = played(command(tool, row, folder, python, again=False), folder, log, kill=row == "killed")
        if row == "killed":
            code = played(command(tool, row, folder, python, again=True), folder, log, kill=False)
        took, many = time.monotonic() - begun, calls(folder)
        said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()] or [""]
        first = f"{float((folder / 'calls').read_text(encoding='utf-8').split()[1]) - clock:.1f} s" if many else ""
        return (
            f"{row:7} {tool:9} losses {losses(tool, folder):3}  calls {many:3}  first {first:7} {took:6.1f} s  "
            f"exit {code:4}  {said[-1][:100]}"
        )


def main() -> None:
    """Play all rows with all tools."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--rows", default=",".join(ROWS))
    options = parser.parse_args()
    for tool in options.tools.split(","):
        print(f"lines {tool:9} {lines(tool)}", flush=True)
    for row in options.rows.split(","):
        for tool in options.tools.split(","):
            print(tried(tool, row, options.python), flush=True)


if __name__ == "__main__":
    main()
