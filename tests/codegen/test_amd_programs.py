"""Random programs for AMD's GPUs: real code objects on the emulator of their instructions leave the same bytes as the interpreter.

``QDRUN_AMD_PROGRAMS``: how many for each chip and size of a wave, new ones each time. By default the same 2.
"""

from __future__ import annotations

import ctypes as C
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from grid_harness import FakeDriver, GridCompiled
from test_grid import run_like_the_interpreter

from qdrun.compiler.codegen.amdgpu.hardware import amdgpu_target
from qdrun.compiler.runtime.amdgpu import build
from qdrun.tests.devices.amdgpu.executor import AmdExecutor
from qdrun.tests.devices.amdgpu.memory import Region
from qdrun.tests.devices.processor.machine import emulated_machine

sys.path.insert(0, str(Path(__file__).parents[1]))
from irgen import generate

PROGRAMS = int(os.environ.get("QDRUN_AMD_PROGRAMS", "0"))


class Driver(FakeDriver):
    """Launches run on the emulator, on the arrays of the call alone."""

    def _launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra) -> int:
        words = C.string_at(extra[1], C.c_uint64.from_address(extra[3]).value) if extra else b""
        try:
            self.code[self.names[function - 1]].run_on(words, gx, bx, shared, self.find)
        except Exception as e:  # the caller is native code
            self.failure = e
            return 999
        return 0

    def find(self, address):
        for array in self.arrays():
            if array.ctypes.data <= address < array.ctypes.data + array.nbytes:
                return Region(array.ctypes.data, array.reshape(-1).view(np.uint8))
        return None


class AmdCompiled(GridCompiled):
    """A kernel as the code object of a chip."""

    def __init__(self, kernel, chip) -> None:
        driver = Driver()
        super().__init__(kernel, processors=1, resident=1, target=amdgpu_target(chip, block=1), driver=driver)
        image = build.compile_object(self.code.device, kernel.name, chip, listing=True)
        driver.code, driver.names, driver.failure = (
            AmdExecutor(chip, emulated_machine().executed).load(image, kernel.name),
            self.code.functions,
            None,
        )
        self.handles = np.arange(1, len(driver.names) + 1, dtype=np.int64)

    def __call__(self, *args, fields=None, **rest):
        own = [self.status, self.returned, self.tmp, self.scratch, self.ring]
        given = [x for x in (*args, *(fields or {}).values()) if isinstance(x, np.ndarray)]
        self.driver.arrays = lambda: [*own, *given, self.context]
        status = super().__call__(*args, fields=fields, **rest)
        if self.driver.failure is not None:
            raise self.driver.failure
        return status


def check_programs(chip):
    for seed in random.sample(range(1 << 20), PROGRAMS) or (1000, 1001):
        program = generate(seed, 60)
        for number, decl in enumerate(program.kernel.args):
            decl.index = number
        try:
            # The larger of two zeros is the one without a minus; on the processor it is one of them.
            run_like_the_interpreter(program, AmdCompiled(program.kernel, chip), zeros=True)
        except Exception as e:
            e.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("chip", ["gfx90a", "gfx942", "gfx1100"])
def test_random_programs_agree_with_the_interpreter(chip):
    check_programs(chip)


def test_random_programs_in_waves_of_32_threads(monkeypatch):
    """What the product never makes: the emulator has both sizes."""
    monkeypatch.setattr(build, "chip_of", lambda name: SimpleNamespace(features="", lds_bytes=65_536))
    monkeypatch.setattr(build, "check", lambda *args: None)
    widths = []
    load = AmdExecutor.load

    def loaded(*args):
        found = load(*args)
        widths.extend(k.code.width for k in found.values())
        return found

    monkeypatch.setattr(AmdExecutor, "load", loaded)
    check_programs("gfx1100")
    assert set(widths) == {32}
