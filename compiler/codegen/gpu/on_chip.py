"""On-chip memory of a block as variables of an LLVM module, in address space 3, which is that of several backends."""

from __future__ import annotations

from .hardware import GridFn


class OnChipVariables:
    """The part of ``Hardware`` that gives addresses of on-chip memory."""

    def shared_words(self, e: GridFn, words: int) -> str:
        """A variable of the module, as large as the function that needs most: one function runs at a time."""
        return self.shared_variable(e, f"qd_shared_{words}", f"[{words} x i64]")

    def array(self, e: GridFn, task: int, begin: int, size: int) -> str:
        """A variable of the module."""
        return self.shared_variable(e, f"qd_array_{task}_{begin}", f"[{size} x i8]")

    def shared_variable(self, e: GridFn, name: str, ty: str) -> str:
        """The generic address of a variable of an LLVM type."""
        e.module.declare(name, f"@{name} = internal addrspace(3) global {ty} poison, align 16")
        return e.hoist(("shared", name), f"addrspacecast ptr addrspace(3) @{name} to ptr")

    def dynamic_shared(self, e: GridFn) -> str:
        """The variable that begins behind all others, as long as the launch asks for."""
        e.module.declare("qd_dynamic", "@qd_dynamic = external addrspace(3) global [0 x i64], align 16")
        return e.hoist("dynamic", "addrspacecast ptr addrspace(3) @qd_dynamic to ptr")
