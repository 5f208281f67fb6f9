"""Runs one program without a screen: ``python one.py SIDE PROGRAM FRAMES OUT [arguments]``. SIDE is qdrun or taichi; qdrun:strict and
taichi:strict run it as ``strict`` says, qdrun:debug with checks of every index.

Writes what the program's fields and arrays hold when its frames are over, and the seconds of each frame, to OUT (a pickle). The program
runs on the CPU, in f32 unless it asks for something else, with no cache on disk.
"""

from __future__ import annotations

import os
import pickle
import runpy
import sys
import time
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import frames as shown
import strict

MOST = 2_000_000
"""Numbers that are kept of one array."""


def load(side: str, mode: str) -> Any:
    """The module that ``import taichi`` gives to the program. ``mode``: strict, debug or empty."""
    if side == "qdrun":
        import qdrun.compat

        qdrun.compat.install()
    import taichi

    begin = taichi.init
    asked = strict.prepare(taichi, lambda: len(shown.CLOCK.moments)) if mode == "strict" else {}

    def init(arch: Any = None, **options: Any) -> Any:
        for name in ("debug", "kernel_profiler"):
            options.pop(name, None)
        options |= {"offline_cache": False, "print_ir": False, "log_level": "warn", **asked}
        program = begin(arch=taichi.cpu, **options, **({"debug": True} if mode == "debug" else {}))
        if mode == "strict":
            strict.replace_draws(taichi)
        return program

    taichi.init = init
    return taichi


def arrays(roots: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Every field and array that the names of the program reach: by name, attributes of its objects and parts of its lists too."""
    found: dict[str, np.ndarray] = {}
    seen: set[int] = set()

    def visit(name: str, value: Any, depth: int) -> None:
        if id(value) in seen or isinstance(value, (ModuleType, type, str, bytes)) or depth > 3:
            return
        seen.add(id(value))
        if isinstance(value, (np.ndarray, np.floating, float)):
            keep(name, np.asarray(value))
        elif type(value).__module__.split(".")[0] in ("taichi", "qdrun") and callable(getattr(value, "to_numpy", None)):
            try:
                whole = value.to_numpy()
                for key, part in whole.items() if isinstance(whole, dict) else [("", whole)]:
                    keep(f"{name}.{key}" if key else name, np.asarray(part))
            except Exception:  # a field without a place
                pass
        elif isinstance(value, (list, tuple)) and len(value) < 100:
            for k, part in enumerate(value):
                visit(f"{name}[{k}]", part, depth + 1)
        elif isinstance(value, dict) and len(value) < 100:
            for k, part in value.items():
                visit(f"{name}[{k}]", part, depth + 1)
        elif hasattr(value, "__dict__") and type(value).__module__.split(".")[0] not in ("taichi", "qdrun", "numpy"):
            for k, part in vars(value).items():
                visit(f"{name}.{k}", part, depth + 1)

    def keep(name: str, array: np.ndarray) -> None:
        if array.dtype.kind in "fiub" and array.size <= MOST:
            found[name] = np.array(array, np.float64)

    for names in roots:
        for name, value in names.items():
            if not name.startswith("__"):
                visit(name, value, 0)
    return found


def beside(program: str) -> None:
    """Programs of Taichi import its own examples, and functions that matplotlib had once."""
    import matplotlib

    if not hasattr(matplotlib.cm, "get_cmap"):
        matplotlib.cm.get_cmap = matplotlib.colormaps.get_cmap  # type: ignore[attr-defined]
    patterns = next((p / "patterns.py" for p in Path(program).parents if (p / "patterns.py").exists()), None)
    if patterns is not None:
        for name, path in (("taichi.examples", None), ("taichi.examples.patterns", patterns)):
            spec = spec_from_file_location(name, path) if path else None
            sys.modules[name] = module_from_spec(spec) if spec else ModuleType(name)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module(sys.modules[name])


def run(side: str, program: str, frames: int, arguments: list[str]) -> dict[str, Any]:
    """The outcome of a program."""
    taichi = load(*side.split(":"), *([] if ":" in side else [""]))
    shown.replace(taichi, frames)
    shown.CLOCK.sync = taichi.sync
    beside(program)
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).parent)
    os.chdir(Path(program).parent)
    roots: list[dict[str, Any]] = []
    outcome: dict[str, Any] = {"status": "runs", "text": ""}
    np.random.seed(0)
    begin = time.perf_counter()
    shown.CLOCK.moments = [begin]
    try:
        roots.append(runpy.run_path(program, run_name="__main__"))
    except (shown.Enough, SystemExit):
        roots += in_traceback()
    except ImportError as error:
        outcome |= {"status": "refused" if type(error).__name__.startswith("Qdrun") else "misses a module", "text": str(error)}
    except BaseException as error:
        text = str(error)
        refused = type(error).__name__.startswith("Qdrun") and ("is not available" in text or "cannot be used" in text)
        outcome |= {"status": "refused" if refused else "fails", "text": f"{type(error).__name__}: {text}"}
        outcome["trace"] = traceback.format_exc()
    moments = [*shown.CLOCK.moments, time.perf_counter()]
    outcome["first"], outcome["frames"] = (
        moments[1] - moments[0],
        [b - a for a, b in pairwise(moments[1:])][: frames - 1],
    )
    outcome["arrays"] = arrays(roots) if outcome["status"] == "runs" else {}
    return outcome


def in_traceback() -> list[dict[str, Any]]:
    """The names of the functions that were running, and of their module."""
    out: list[dict[str, Any]] = []
    trace = sys.exc_info()[2]
    while trace is not None:
        frame = trace.tb_frame
        if "runpy" not in frame.f_code.co_filename and Path(frame.f_code.co_filename).parent != Path(__file__).parent:
            out += [frame.f_globals, frame.f_locals]
        trace = trace.tb_next
    return out


if __name__ == "__main__":
    _, side_, program_, frames_, out_, *rest = sys.argv
    target = Path(out_).absolute()
    result = run(side_, str(Path(program_).absolute()), int(frames_), rest)
    target.write_bytes(pickle.dumps(result))
    print(result["status"], result["text"][:300])
