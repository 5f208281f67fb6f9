"""How large the sources for Apple's GPUs are: lines and bytes of Metal Shading Language of the kernels of a gradient. No GPU is needed.

``python -m benchmarks.metal_text [--case diffmpm,mpm88,..]`` runs each case on the emulated device, at its small size, translates the
kernels of its gradient, and prints a row for each. A peer project's change requests give 57,853 lines for its largest reverse kernel, and
7,617 after its stacks had one counter in common and pushes no branch.
"""

from __future__ import annotations

import argparse

from benchmarks.amd_code import gradients_of, table
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.codegen.gpu.grid.rows import tapes_of
from qdrun.compiler.codegen.metal.hardware import metal_target
from qdrun.compiler.codegen.metal.translate import translate


def rows_of(case: str) -> list[list[str]]:
    """The kernel, lines of the device text, lines and bytes of the source, and states that its stacks keep; the largest first."""
    rows: list[tuple[int, list[str]]] = []
    for kernel, plain in gradients_of(case):
        text = emit_grid(kernel, metal_target(), plain, tapes_of(kernel)).device
        source = translate(text, kernel.name)
        kept = sum(len(stack.locals) for task in kernel.tasks for stack in task.stacks)
        lines = source.count("\n")
        row = [case, kernel.name, f"{text.count(chr(10)):,}", f"{lines:,}", f"{len(source.encode()):,}", str(kept)]
        rows.append((lines, row))
    return [row for _, row in sorted(rows, reverse=True)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--case",
        default="gated_grid,diffmpm,mpm88,volume,sin1024",
        help="names of benchmarks.cuda's cases, separated by commas",
    )
    rows = [row for case in parser.parse_args().case.split(",") for row in rows_of(case)]
    table(["case", "kernel", "lines of LLVM text", "lines of MSL", "bytes of MSL", "states on stacks"], rows)


if __name__ == "__main__":
    main()
