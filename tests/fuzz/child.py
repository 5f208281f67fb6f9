"""One process that checks program after program, and says on a pipe which one it is at: what ends it is the fault of that one."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from .check import Finding, Result, check, choose
from .execute import use_libm
from .program import Program, generate
from .second import check_second
from .slopes import check_smooth
from .smooth import generate_smooth
from .stores import check_stores
from .tapes import check_tapes


def program_of(seed: int, index: int) -> Program:
    """Program ``index`` of a seed; every sixth one is differentiable."""
    return generate_smooth(seed, index) if index % 6 == 5 else generate(seed, index)


def examine(seed: int, index: int, devices: list[str], folder: Path) -> tuple[Program | None, Result]:
    """Write and check one program."""
    try:
        program = program_of(seed, index)
    except Exception:
        return None, Result(finding=Finding("the generator failed", traceback.format_exc()))
    return program, examine_text(program, seed, index, devices, folder)


def examine_text(program: Program, seed: int, index: int, devices: list[str], folder: Path) -> Result:
    """Check a program that may have been shrunk, as number ``index`` is checked."""
    path = folder / f"fuzz_{seed}_{index}_{abs(hash(program.text)) % 10**8}.py"
    path.write_text(program.text)
    interpret = random.Random(f"{seed}:{index}:interpret").random() < 0.3
    try:
        if program.differentiable:
            result = check_smooth(program, path, seed, index, devices)
            if not result.finding and not result.refused:
                check_second(program.text, path, seed, index, result)
            if not result.finding and not result.refused:
                check_tapes(program.text, path, seed, index, result)
            if not result.finding and not result.refused:
                check_stores(path, seed, index, result)
            return result
        return check(program, path, choose(seed, index, devices), interpret)
    except Exception:
        return Result(finding=Finding("the comparison failed", traceback.format_exc()))
    finally:
        path.unlink(missing_ok=True)


def report(pipe: int, **facts: Any) -> None:
    os.write(pipe, (json.dumps(facts) + "\n").encode())


def main(pipe: int, seed: int, start: int, step: int, count: int, devices: str) -> None:
    """Check programs ``start``, ``start + step``, .. and tell of each."""
    use_libm()
    folder = Path(tempfile.mkdtemp(prefix="qdrun-fuzz-"))
    os.environ["QDRUN_CACHE_DIR"] = str(folder / "cache")
    try:
        for index in range(start, start + step * count, step):
            report(pipe, at=index)
            began = time.perf_counter()
            program, result = examine(seed, index, devices.split(","), folder)
            finding = result.finding and {"kind": result.finding.kind, "detail": result.finding.detail[:4000]}
            report(
                pipe, done=index, refused=result.refused, finding=finding, compared=result.compared,
                features=sorted(program.features) if program else [], seconds=round(time.perf_counter() - began, 4),
            )  # fmt: skip
            if result.lost:  # all that follows would fail: the next process goes on
                return
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:6]), sys.argv[6])
