"""Device text -> assembly or object code by LLVM, for the backends whose code LLVM makes.

LLVM ends the process on what a code generator cannot select; a backend's closed table of operations keeps that from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from ...errors import QdrunRuntimeError
from .. import jit
from ..interruptible import interruptible

_LAYOUT = re.compile(r'^target datalayout = ".*"\n', re.M)
_TRIPLE = re.compile(r'^target triple = ".*"\n', re.M)

LOOP_LINES = 4_000
"""Loops of longer functions are not unrolled."""
LARGE_LINES, LARGE_BLOCK = 20_000, 8_000
"""Above so many lines of a function, or of one basic block, three passes run, and the code generator at level 1."""
HUGE_LINES = 60_000
"""Above so many lines of a function no passes run."""


@dataclass(frozen=True, slots=True)
class Generator:
    """A code generator of LLVM.

    Attributes:
        triple, cpu, features: LLVM's names.
        gpus: whose they are, for messages.
        opt_level: of LLVM's passes and code generator.
        pic: the code may lie at any address.
        whole: large modules get a whole pipeline, too, of a lower level: the code generator relies on passes of its own in it.
    """

    triple: str
    cpu: str
    features: str
    gpus: str
    opt_level: int = 3
    pic: bool = False
    whole: bool = False


@cache
def _target(triple: str, gpus: str) -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        return llvm.Target.from_triple(triple)
    except RuntimeError as e:
        raise QdrunRuntimeError(f"this llvmlite has no code generator for {gpus}: {e}\n  do: pip install llvmlite") from e


def generate(text: str, name: str, by: Generator, tail: str = "", *, assembly: bool) -> bytes:
    """Compile a device module. The text is parsed anew each time: LLVM changes a module as it emits it, and a second emission may end the
    process.

    Args:
        text: LLVM text of the module.
        name: the kernel, for messages.
        by: compiles it.
        tail: metadata to be added to the text.
        assembly: emit assembly text, not an object.

    Raises:
        QdrunRuntimeError: LLVM refuses the text; names the kernel.
    """
    return interruptible(lambda: _generate(text, name, by, tail, assembly))


def _generate(text: str, name: str, by: Generator, tail: str, assembly: bool) -> bytes:
    size = jit.size_of(text)
    large = size.lines > LARGE_LINES or size.block > LARGE_BLOCK
    machine = _target(by.triple, by.gpus).create_target_machine(
        cpu=by.cpu,
        features=by.features,
        opt=1 if large else by.opt_level,
        reloc="pic" if by.pic else "default",
        codemodel="default",
    )
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(_headed(text, by.triple, machine) + tail, context)
    except RuntimeError as e:
        raise _invalid(name, e) from e
    try:
        try:
            module.verify()
        except RuntimeError as e:
            raise _invalid(name, e) from e
        _optimise(module, machine, by, size, large)
        return jit.emit(machine, module, assembly=assembly)
    finally:
        module.close()  # before its context


def _headed(text: str, triple: str, machine: Any) -> str:
    """The text with this LLVM's own data layout. It must be there when the text is parsed: without it an i64 is aligned to 4 bytes, and
    each access becomes two. Versions of LLVM differ in parts of it that our code does not use.
    """
    head = f'target datalayout = "{machine.target_data}"\ntarget triple = "{triple}"\n'
    return head + _TRIPLE.sub("", _LAYOUT.sub("", text))


def _invalid(name: str, error: RuntimeError) -> QdrunRuntimeError:
    return QdrunRuntimeError(
        f"the compiler produced invalid LLVM text for the GPU code of kernel `{name}`: {error}\n"
        "  do: this is a bug in qdrun; report it with the kernel's source"
    )


def _optimise(module: Any, machine: Any, by: Generator, size: jit.Size, large: bool) -> None:
    """The full pass pipeline, for modules that are not too large. Without vectorisation: GPUs have no SIMD lanes."""
    if size.lines > HUGE_LINES and not by.whole:
        return
    tuning = llvm.PipelineTuningOptions(1 if large else by.opt_level)
    tuning.loop_vectorization = tuning.loop_interleaving = tuning.slp_vectorization = False
    tuning.loop_unrolling = size.lines <= LOOP_LINES
    passes = llvm.create_pass_builder(machine, tuning)
    if by.whole or not large:
        manager = passes.getModulePassManager()
    else:
        manager = llvm.create_new_module_pass_manager()
        manager.add_sroa_pass()
        manager.add_instruction_combine_pass()
        manager.add_simplify_cfg_pass()
    jit.run_passes(manager, module, passes)
