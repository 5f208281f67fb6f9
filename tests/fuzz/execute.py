"""Runs a program's file: imported like a user's, in a program with the options of one configuration."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import qdrun as qd
from qdrun.compiler.codegen.llvm.cost import least_of_sums
from qdrun.compiler.compile import keys
from qdrun.compiler.ir import meaning
from qdrun.compiler.runtime import cache
from qdrun.compiler.runtime.cpu import device
from qdrun.compiler.runtime.python import interpret

from .scalars import TRANSCENDENTAL, libm
from .sparse import sparse_fields


@dataclass(frozen=True)
class Config:
    """Where a program runs: options of ``qd.init``; ``level`` is LLVM's. ``second``: what is compared is a second run: of the
    file, which finds what the first one kept on disk (``file``); of ``main`` alone, whose launches are native (``main``); of the file with
    other constants than those that the first one compiled (``constants``). It draws the random numbers of a first run. ``exact``: its
    mathematics is the C library's. ``sparse``: its fields are sparse; ``budget``: in levels with a budget."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    level: int = 2
    second: str = ""
    exact: bool = True
    sparse: bool = False
    budget: bool = False

    def fields(self) -> AbstractContextManager[None]:
        """A block in which fields are made as it asks for."""
        return sparse_fields(self.budget) if self.sparse else nullcontext()


@dataclass(frozen=True)
class Outcome:
    """What a run left behind, or the error that ended it (``refused``: one of ours; ``lost``: the process has lost its device)."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    error: str = ""
    refused: bool = False
    lost: bool = False


INTERPRETER = Config("python", {"arch": "python"})
SCALAR = Config("cpu", {"cpu_max_num_threads": 1, "cpu_lanes": 1})
OTHERS = (
    Config("threads", {"cpu_max_num_threads": 4, "cpu_lanes": 1}),
    Config("lanes 4", {"cpu_max_num_threads": 1, "cpu_lanes": 4}),
    Config("lanes 16", {"cpu_max_num_threads": 2, "cpu_lanes": 16}),
    Config("default", {}),
    Config("debug", {"cpu_max_num_threads": 1, "cpu_lanes": 1, "debug": True}),
    Config("level 0", {"cpu_max_num_threads": 1, "cpu_lanes": 1}, level=0),
    Config("cached", {"cpu_max_num_threads": 1, "cpu_lanes": 1, "offline_cache": True}, second="file"),
    Config("constants", {"cpu_max_num_threads": 1, "cpu_lanes": 1, "offline_cache": True}, second="constants"),
    Config("sparse", {"cpu_max_num_threads": 1, "cpu_lanes": 1}, sparse=True),
    Config("budget", {"cpu_max_num_threads": 1, "cpu_lanes": 1}, sparse=True, budget=True),
    Config("relaunched", {"cpu_max_num_threads": 1, "cpu_lanes": 1}, second="main"),
    Config("emulated", {"arch": "cuda", "device": "emulated"}, exact=False),
)
CUDA = Config("cuda", {"arch": "cuda"}, exact=False)
VULKAN = Config("vulkan", {"arch": "vulkan", "device": "llvmpipe"}, exact=False)


class Noise:
    """How far mathematical functions are put off, in units of the last place; 0: not at all."""

    ulps = 0.0
    rng = random.Random(0)


def _function(name: str) -> Any:
    def f(*args: Any) -> Any:
        half = args[0].dtype == np.float16
        out = libm(name, *(map(np.float32, args) if half else args))
        with np.errstate(all="ignore"):
            if Noise.ulps:
                t = out.dtype.type
                out = (
                    t(out + t(Noise.rng.uniform(-Noise.ulps, Noise.ulps)) * np.spacing(np.abs(out)))
                    if np.isfinite(out)
                    else out
                )
            return np.float16(out) if half else out

    return f


def use_libm() -> None:
    """Let the interpreter's mathematical functions be those of this processor's machine code; ``Noise`` disturbs them.

    And let it add up as many iterations as a chunk of machine code has, before it adds the sums: then the bits must be equal.
    """
    meaning.REAL.update({name: _function(name) for name in TRANSCENDENTAL})
    interpret._run_task = _in_chunks


def _in_chunks(task: Any, number: int, launch: Any, chunk: int | None, run: Any = interpret._run_task) -> None:
    run(task, number, launch, least_of_sums(task, 1) if task.parallel and task.reductions else chunk)


@contextmanager
def flushing() -> Iterator[None]:
    """Inside the block the interpreter's atomic sums of f32 take numbers below 1.2e-38 for zero, as those of NVIDIA's GPUs do."""
    before = interpret.update

    def update(code: str, old: Any, *values: Any) -> Any:
        if code not in ("add", "sub") or old.dtype != np.float32:
            return before(code, old, *values)
        return _flushed(before(code, _flushed(old), *map(_flushed, values)))

    interpret.update = update
    try:
        yield
    finally:
        interpret.update = before


def _flushed(x: Any) -> Any:
    return np.copysign(np.float32(0.0), x) if abs(x) < np.finfo(np.float32).smallest_normal else x


def load(path: Path) -> dict[str, Any]:
    """Import a program's file anew; its names.

    Bytecode is not kept: Python would take that of another text of the same length that was written in the same second.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
        del sys.modules[path.stem]
    return vars(module)


def options_of(text: str) -> dict[str, Any]:
    """The default types of a program, by name, as its file says."""
    line = next(line for line in text.splitlines() if line.startswith("OPTIONS = "))
    return eval(line.removeprefix("OPTIONS = "), {})


@contextmanager
def level(config: Config) -> Iterator[None]:
    """LLVM's level for what is compiled inside the block; what was compiled at another one is not found."""
    if config.level == 2:
        yield
        return
    before, choices = cache.load_cached, keys.compile_choices

    def load_cached(text: str, name: str, exports: Any, imports: Any, _: int = 2, offline_cache: bool = True) -> Any:
        return before(text, name, exports, imports, config.level, offline_cache)

    device.load_cached, keys.compile_choices = load_cached, lambda o: (config.level, *choices(o))
    try:
        yield
    finally:
        device.load_cached, keys.compile_choices = before, choices


def start(config: Config, defaults: dict[str, Any], **more: Any) -> Any:
    """A program with a configuration's options."""
    types = {n: getattr(qd, t) for n, t in defaults.items()}
    options = {"offline_cache": False, **config.options, **types, **more}
    return qd.init(**options)


def other_constants(text: str) -> str:
    """The program with other numbers around its kernels, whose own text is the same."""
    return re.sub(r"^(C\d+|        self\.m) = (-?\d+)", lambda m: f"{m[1]} = {int(m[2]) + 1}", text, flags=re.MULTILINE)


def flat(out: dict[str, Any]) -> dict[str, np.ndarray]:
    """Results by name; those of structs by member."""
    found: dict[str, np.ndarray] = {}
    for name, value in out.items():
        if isinstance(value, dict):
            found |= {f"{name}.{m}": v for m, v in flat(value).items()}
        else:
            found[name] = np.asarray(value)
    return found


def run(path: Path, text: str, config: Config) -> Outcome:
    """Run a program's file; errors of ours are refusals, all others are findings of their own."""
    program = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = start(config, options_of(text))
            with level(config), config.fields():
                if config.second == "constants":
                    path.write_text(other_constants(text))
                    with suppress(qd.QdrunError):
                        load(path)["main"]()
                    path.write_text(text)
                    program.seeds.drawn = 0
                names = load(path)
                out = names["main"]()
                if config.second in ("file", "main"):
                    program.seeds.drawn = 0
                    out = (load(path) if config.second == "file" else names)["main"]()
                return Outcome(flat(out))
        except qd.QdrunError as e:
            return Outcome(error=f"{type(e).__name__}: {e}", refused=True, lost=bool(getattr(e, "restart", False)))
        except Exception as e:  # which nobody may see: where it was raised is told with it
            return Outcome(error=f"{type(e).__name__}: {e}\n{traceback.format_exc()}")
        finally:
            if program is not None:
                program.close()
