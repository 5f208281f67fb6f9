"""Code objects of device texts for AMD's GPUs, compiled in a process of their own: LLVM may end it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

COMPILE = """
import json, sys
from dataclasses import asdict
from qdrun.compiler.codegen.gpu import closed_table
from qdrun.compiler.runtime.amdgpu import build
from qdrun.compiler.runtime.amdgpu.code_object import read_code
if "unchecked" in sys.argv:
    closed_table.ClosedTable.check = build.check_on_chip = lambda *given: None
made = []
for text, chip in json.load(sys.stdin):
    code = read_code(build.compile_object(text, "a test", chip, listing="listing" in sys.argv))
    made.append({"chip": code.chip, "kernels": {k.name: asdict(k) for k in code.kernels.values()}, "listing": code.listing})
print(json.dumps(made))
"""


@dataclass(frozen=True)
class Made:
    """A code object: its chip, the facts of its kernels (``CodeKernel``) by name, the assembly text."""

    chip: str
    kernels: dict[str, dict[str, Any]]
    listing: str

    def body(self, name: str) -> str:
        """The instructions of a kernel."""
        return self.listing.partition(f"\n{name}:\n")[2].partition(".section")[0]


def run(texts: list[tuple[str, str]], *how: str) -> subprocess.CompletedProcess[str]:
    """Compile texts, each for a chip. ``how``: "unchecked", without the closed table; "listing", with the assembly text."""
    command = [sys.executable, "-c", COMPILE, *how]
    return subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False)


def compile_all(texts: list[tuple[str, str]], *how: str) -> list[Made]:
    """The code objects of texts."""
    done = run(texts, *how)
    assert done.returncode == 0, done.stderr[-1500:]
    return [Made(**made) for made in json.loads(done.stdout)]
