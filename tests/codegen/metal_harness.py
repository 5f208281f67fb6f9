"""Runs kernels as Metal Shading Language: what clang makes of their sources, launched by a fake driver."""

from __future__ import annotations

import numpy as np
from grid_harness import FakeDriver, GridCompiled

from qdrun.compiler.codegen.metal.hardware import metal_target
from qdrun.compiler.codegen.metal.source import facts_of, head_of
from qdrun.compiler.codegen.metal.translate import translate
from qdrun.compiler.errors import DeviceError
from qdrun.tests.devices.metal import executor

END_OF_HEAD = "#pragma METAL fp contract(off)\n"


def has_clang() -> bool:
    try:
        return bool(executor.clang())
    except DeviceError:
        return False


class Driver(FakeDriver):
    """Launches run what clang has made of the source, on the arrays of the call alone."""

    def _launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra) -> int:
        try:
            live = executor.ends_of([(a.ctypes.data, a.nbytes) for a in self.arrays() if a.nbytes])
            self.code[self.names[function - 1]].run_on(extra[1] if extra else 0, gx, bx, shared, live)
        except Exception as e:  # the caller is native code
            self.failure = e
            return 999
        return 0


class MetalCompiled(GridCompiled):
    """A kernel as Metal Shading Language. ``load`` gives it its code."""

    def __init__(self, kernel, block=1, processors=1, target=None) -> None:
        target = target or metal_target(block)
        super().__init__(kernel, processors=processors, resident=block, target=target, driver=Driver())
        self.source = translate(self.code.device, kernel.name)
        self.handles = np.arange(1, len(self.code.functions) + 1, dtype=np.int64)

    def __call__(self, *args, fields=None, **rest):
        own = [self.status, self.returned, self.tmp, self.scratch, self.ring]
        given = [x for x in (*args, *(fields or {}).values()) if isinstance(x, np.ndarray)]
        self.driver.arrays = lambda: [*own, *given, self.context]
        status = super().__call__(*args, fields=fields, **rest)
        if self.driver.failure is not None:
            raise self.driver.failure
        return status


def load(*compiled: MetalCompiled) -> None:
    """Compile the sources of kernels of different names together: clang takes most of its time to begin."""
    facts, bodies, head = {}, [], ""
    for k, c in enumerate(compiled):
        facts |= facts_of(c.source)
        head, _, body = c.source.partition(END_OF_HEAD)
        bodies.append(f"namespace p{k} {{\n{body}}}\nusing namespace p{k};\n")
    source = head_of(facts) + head.partition("\n")[2] + "".join(bodies)
    code = executor.MetalExecutor().load(executor.image_of(source, "together"), "together")
    for c in compiled:
        c.driver.code, c.driver.names, c.driver.failure = code, c.code.functions, None
