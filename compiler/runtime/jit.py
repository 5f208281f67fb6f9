"""LLVM text -> optimised object bytes -> loaded code.

Compiling and loading are two steps, so that the disk cache can keep the bytes between them. Loaded code lives as long as its
``LoadedCode``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import warnings
import weakref
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from math import inf
from typing import Any, Literal

import llvmlite
import llvmlite.binding as llvm

from ..codegen.llvm.function import UNPACKED
from ..errors import PerformanceWarning, QdrunRuntimeError
from ..ir.threads import new_lock
from . import masked_stores
from .interruptible import interruptible

# the second part of the name of a processor's own intrinsics, by the first part of its triple
_INTRINSIC_FAMILIES = {"x86_64": "x86", "i686": "x86", "aarch64": "aarch64", "arm64": "aarch64"}
_FOREIGN_FAMILIES = frozenset(
    "x86 aarch64 arm nvvm amdgcn r600 ppc riscv s390 hexagon mips wasm loongarch spv dx bpf ve xcore".split()
)


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes that determine LLVM's time superlinearly, each the largest in a module.

    Attributes:
        lines: of a function.
        block: lines of a basic block.
        memory: loads and stores of a basic block, without stack slots.
        loops: of a function.
    """

    lines: float
    block: float
    memory: float = 0
    loops: float = 0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How LLVM compiles modules up to a size.

    Attributes:
        lines, memory, loops: the largest ``Size`` that it is for.
        passes: all of LLVM's -O1 or -O2, a few, or none.
        level: of the code generator. 1 allocates registers well; 0 keeps values on the stack, in code that is up to 9 times slower.
        loop_passes: unroll and vectorise loops.
        slp: vectorise straight-line code.
    """

    lines: float
    memory: float
    loops: float
    passes: Literal["all", "few", "none"]
    level: int
    loop_passes: bool = False
    slp: bool = False

    def fits(self, size: Size) -> bool:
        """Whether it is for modules of this size."""
        return size.lines <= self.lines and size.memory <= self.memory and size.loops <= self.loops


PIPELINES = (
    Pipeline(800, 400, 300, "all", 2, loop_passes=True, slp=True),
    Pipeline(4_000, 400, 300, "all", 2, loop_passes=True),
    Pipeline(100_000, 400, 300, "all", 1),
    Pipeline(100_000, inf, inf, "few", 1),
    Pipeline(inf, inf, inf, "none", 0),
)
"""The first one that fits compiles a module. The limits are seconds of compilation (``docs/internals/machine-code.md``).

- 800 lines: above, SLP takes a third of the time and gains nothing measurable.
- 4,000 lines: above, the loop passes take 5 of 6 s, and level 2 three times as long as level 1, for code of the same size.
- 400 accesses: above, the loop passes compare each with each: 11 s at 3,000.
- 300 loops: above, their analysis looks at all that lies before each: 0.4 s, and then the square.
- 100,000 lines: level 1 takes 25 to 60 s, and grows with the square.
"""

MOST_LINKS = 512
"""Libraries of one linker."""

_names = count(1)
_linker_lock = new_lock(sys.modules[__name__], "_linker_lock")
_linker: _Linker | None = None


@dataclass(frozen=True, slots=True)
class HostCpu:
    """The processor that code is compiled for."""

    triple: str
    cpu: str
    features: str


@cache
def host() -> HostCpu:
    """The processor of this machine, as LLVM names it."""
    _initialise()
    return HostCpu(llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


@cache
def versions() -> str:
    """The versions of everything that turns text into object bytes: part of every cache key."""
    return f"llvmlite {llvmlite.__version__}, llvm {'.'.join(map(str, llvm.llvm_version_info))}, {masked_stores.DONE}"


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _target_machine(opt_level: int) -> Any:
    """Position-independent code in the default code model: the bytes can be loaded anywhere, by any process."""
    machine = host()
    try:
        target = llvm.Target.from_triple(machine.triple)
        return target.create_target_machine(
            cpu=machine.cpu, features=machine.features, opt=opt_level, jit=True, codemodel="default", reloc="pic"
        )
    except RuntimeError as e:
        raise QdrunRuntimeError(f"LLVM has no code generator for this machine ({machine.triple}, {machine.cpu}): {e}") from e


def size_of(text: str) -> Size:
    """The size of a module."""
    function = block = lines = run = memory = accesses = most = loops = 0
    above: set[str] = set()  # the labels of a function so far: a branch to one of them closes a loop
    for line in text.splitlines():
        lines, run = lines + 1, run + 1
        is_access = " load " in line or line.startswith("  store ")
        accesses += is_access and ", ptr %s" not in line  # %s..: slots, which become registers
        if line.startswith("  br "):
            loops += any(to.partition(",")[0] in above for to in line.split("label %")[1:])
        if not line.startswith("  "):  # a label, the head or the end of a function
            block, run = max(block, run), 0
            memory, accesses = max(memory, accesses), 0
            if line.startswith("}"):
                function, most = max(function, lines), max(most, loops)
            if line.endswith(":"):
                above.add(line[:-1])
            else:
                lines = loops = 0
                above.clear()
    return Size(function, block, memory, most)


def pipeline_for(size: Size, name: str, opt_level: int = 2) -> Pipeline:
    """The pipeline for a module of kernel ``name``, lowered to ``opt_level``. Warns where the kernel is too large for optimised code."""
    pipeline = next(p for p in PIPELINES if p.fits(size))
    if pipeline.level == 0:
        warnings.warn(
            f"kernel `{name}` is compiled without optimisation, 2 to 9 times slower: one of its loops has {size.lines:,} lines of LLVM\n"
            "  do: write `for i in range(n)` for `qd.static(range(n))`, or split the loop into several that pass values through fields",
            PerformanceWarning,
            stacklevel=2,
        )
    level = min(opt_level, pipeline.level)
    if level == pipeline.level:
        return pipeline
    passes = pipeline.passes if level else "few"
    return replace(pipeline, passes=passes, level=level, loop_passes=False, slp=False)


def _optimise(module: Any, machine: Any, pipeline: Pipeline) -> None:
    if pipeline.passes == "none":
        return
    tuning = llvm.PipelineTuningOptions(pipeline.level)
    tuning.loop_vectorization = tuning.loop_interleaving = tuning.loop_unrolling = pipeline.loop_passes
    tuning.slp_vectorization = pipeline.slp
    passes = llvm.create_pass_builder(machine, tuning)
    if pipeline.passes == "all":
        manager = passes.getModulePassManager()
    else:
        manager = (
            llvm.create_new_module_pass_manager()
        )  # not NewGVN: it changed values of a batch (tests/jobs/test_topology_mbb.py)
        manager.add_sroa_pass()
        manager.add_instruction_combine_pass()
        manager.add_simplify_cfg_pass()
        manager.add_dead_store_elimination_pass()
        manager.add_aggressive_dce_pass()
        manager.add_instruction_combine_pass()
    run_passes(manager, module, passes)


def run_passes(manager: Any, module: Any, passes: Any) -> None:
    """Run a pass manager on a module, once, and free it.

    llvmlite (up to 0.50) frees none: a base class of its pass managers hides their destructor. 60 KB remain of each otherwise.
    """
    try:
        call("LLVMPY_RunNewModulePassManager", manager, module, passes)
    finally:
        llvm.ffi.lib.LLVMPY_DisposeNewModulePassManger(manager)
        manager.detach()


def call(name: str, *args: Any) -> Any:
    """A long-running function of llvmlite, without the lock that llvmlite holds around each of its functions.

    LLVM's passes and code generators work on one context, and each compilation here has a context and a target machine of its own. So two
    threads may compile at once; everything short still goes through the lock. The wrapper's attribute is no public name: without it, the
    function is called as llvmlite does.
    """
    wrapper = getattr(llvm.ffi.lib, name)
    return getattr(wrapper, "_cfn", wrapper)(*args)


def emit(machine: Any, module: Any, *, assembly: bool = False) -> bytes:
    """``machine.emit_object(module)``, or ``emit_assembly``; see ``call``."""
    lib = llvm.ffi.lib
    with llvm.ffi.OutputString() as error:
        buffer = call("LLVMPY_TargetMachineEmitToMemory", machine, module, 0 if assembly else 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        return ctypes.string_at(lib.LLVMPY_GetBufferStart(buffer), lib.LLVMPY_GetBufferSize(buffer))
    finally:
        lib.LLVMPY_DisposeMemoryBuffer(buffer)


def compile_text(text: str, name: str, opt_level: int = 2) -> bytes:
    """Compile a module to object bytes.

    The module is verified before anything else sees it: LLVM's later stages abort the process on malformed input. Names in
    the ``llvm.`` space that LLVM does not know would reach the linker as undefined symbols, so they are refused here.

    Raises:
        QdrunRuntimeError: LLVM refuses the text; names the kernel.
    """
    return interruptible(lambda: _compile(text, name, opt_level))


def _compile(text: str, name: str, opt_level: int) -> bytes:
    pipeline = pipeline_for(size_of(text), name, opt_level)
    if text.partition("\n")[0].endswith(UNPACKED):
        pipeline = replace(pipeline, slp=False)
    machine = _target_machine(pipeline.level)
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(text, context)
    except RuntimeError as e:
        raise _invalid(name, e) from e
    try:
        _check(module, machine, name)
        _optimise(module, machine, pipeline)
        if host().triple.startswith("x86_64"):
            module = masked_stores.mend(module, context)
        return emit(machine, module)
    finally:
        module.close()  # before its context: the garbage collector may destroy the two in either order, and one of them crashes


def _invalid(name: str, error: RuntimeError) -> QdrunRuntimeError:
    return QdrunRuntimeError(
        f"the compiler produced invalid LLVM text for kernel `{name}`: {error}\n"
        "  do: this is a bug in qdrun; report it with the kernel's source"
    )


def _check(module: Any, machine: Any, name: str) -> None:
    """Refuse what would abort the process later; fit the module to this machine."""
    made_for, here = module.triple, host().triple
    if made_for and made_for.split("-")[0] != here.split("-")[0]:
        raise QdrunRuntimeError(f"kernel `{name}` was compiled for {made_for}, but this machine is {here}")
    module.triple = here
    module.data_layout = str(machine.target_data)
    try:
        module.verify()
    except RuntimeError as e:
        raise _invalid(name, e) from e
    unknown = [f.name for f in module.functions if f.is_declaration and f.name.startswith("llvm.") and not _selectable(f)]
    if unknown:
        version = llvm.llvm_version_info[0]
        raise QdrunRuntimeError(f"kernel `{name}` uses {', '.join(unknown)}, which LLVM {version} does not have on {here}")


def _selectable(function: Any) -> bool:
    """Whether this machine's code generator has the intrinsic.

    LLVM gives its own intrinsics attributes when it parses their declaration; a name that it does not know gets none. One of
    another processor (``llvm.nvvm.*`` on a CPU) is known but has no instructions here.
    """
    family = function.name.split(".")[1]
    here = _INTRINSIC_FAMILIES.get(host().triple.split("-")[0], "")
    return any(True for _ in function.attributes) and (family == here or family not in _FOREIGN_FAMILIES)


@dataclass(slots=True, weakref_slot=True, eq=False)
class LoadedCode:
    """Code in memory: ``address`` of each exported symbol. Dropping the last reference unloads it. ``key``: its name on disk."""

    object_bytes: bytes
    addresses: dict[str, int]
    _tracker: Any = field(repr=False)
    key: str = ""

    def make_immortal(self) -> None:
        """Never unload this code: threads may run it until the process ends."""
        keep_for_ever(self)


def keep_for_ever(x: object) -> None:
    """Take a reference that is never given back, so that not even interpreter exit destroys the object."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(x))


class _Linker:
    """LLVM's linker, which owns the memory of code.

    It keeps some 9 KB of each library that it has ever linked, so that it is replaced after ``MOST_LINKS`` of them, and freed with the last
    code of its own. At interpreter exit it stays: pool threads may still run its code.
    """

    def __init__(self) -> None:
        _initialise()
        _load_math_library()
        # JITLink lays the sections of an object side by side. The older linker asks the system for each of them: in a process
        # with much memory they come to lie more than 2 GB apart, which code of the default model cannot span.
        side_by_side = sys.platform != "win32"
        self.lljit = llvm.create_lljit_compiler(_target_machine(2), use_jit_link=side_by_side, suppress_errors=True)
        self.links = 0
        self.users = 1  # the module, until it has another one
        keep_for_ever(self.lljit)

    def leave(self) -> None:
        """A user is gone; free everything after the last one."""
        with _linker_lock:
            self.users -= 1
            last = not self.users
        if last:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self.lljit))


def _get_linker() -> _Linker:
    """The linker for one more library, which is its user: call ``leave`` when that is gone."""
    global _linker
    with _linker_lock:
        if _linker is not None and _linker.links >= MOST_LINKS:
            _linker.leave()
            _linker = None
        found = _linker = _linker or _Linker()
        found.links += 1
        found.users += 1
    return found


def _load_math_library() -> None:
    """Make C's math functions visible by name. On macOS and with a dynamic libc they are already in the process."""
    if sys.platform.startswith("linux"):
        llvm.load_library_permanently("libm.so.6")
    elif sys.platform == "win32":
        llvm.load_library_permanently("ucrtbase.dll")


def load(object_bytes: bytes, exports: list[str], imports: dict[str, int], name: str) -> LoadedCode:
    """Link object bytes into this process.

    Args:
        object_bytes: what ``compile_text`` returned.
        exports: symbols whose addresses are wanted.
        imports: addresses of our own symbols; everything else is looked up in the process (libm, libc).
        name: the kernel, for messages.

    Raises:
        QdrunRuntimeError: a symbol is missing, or the bytes are no object file.
    """
    linker = _get_linker()
    builder = llvm.JITLibraryBuilder().add_object_img(object_bytes).add_current_process()
    for symbol, address in imports.items():
        builder.import_symbol(symbol, address)
    for symbol in exports:
        builder.export_symbol(symbol)
    try:
        tracker = builder.link(linker.lljit, f"{name}.{next(_names)}")
    except RuntimeError as e:
        linker.leave()
        raise QdrunRuntimeError(
            f"the code of kernel `{name}` cannot be loaded: {e}\n"
            "  do: the object code is damaged, or it calls a function that neither qdrun nor this process has; clear the kernel cache"
        ) from e
    code = LoadedCode(object_bytes, {s: tracker[s] for s in exports}, tracker)
    weakref.finalize(code, linker.leave).atexit = False
    return code


def libc() -> ctypes.CDLL:
    """The C library of this process."""
    return ctypes.CDLL(None)


def _llvm_lock(call: str) -> None:
    """``acquire`` or ``release`` the lock that llvmlite holds around most of its functions."""
    lock = getattr(getattr(llvm.ffi.lib, "_lock", None), "_lock", None)
    if lock is not None:
        getattr(lock, call)()


if hasattr(os, "register_at_fork"):
    # These functions change global state of LLVM: a fork waits for a running one.
    ends = functools.partial(_llvm_lock, "release")
    os.register_at_fork(before=functools.partial(_llvm_lock, "acquire"), after_in_parent=ends, after_in_child=ends)
