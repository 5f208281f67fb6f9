"""Every operation of every type becomes code of AMD's GPUs; what would end the process is refused before LLVM sees it."""

from __future__ import annotations

import os
import re

import pytest
from amdgcn_harness import Made, compile_all, run
from ptx_harness import module_of
from test_nvptx_table import GROUPS, entry

from qdrun.compiler.codegen.amdgpu.amdgcn_table import AMDGCN, INTRINSICS, TABLE
from qdrun.compiler.codegen.amdgpu.hardware import amdgpu_target
from qdrun.compiler.errors import QdrunRuntimeError
from qdrun.compiler.runtime.amdgpu import build

CHIPS = ("gfx90a", "gfx942", "gfx1100")
WHOLE = bool(os.environ.get("QDRUN_TEST_ALL_CHIPS"))
"""Compile everything for each chip. Else each group of types has one of them."""
THREAD = "llvm.amdgcn.workitem.id.x"
SIGNATURES = {
    "i32": ("workitem.id.x", "workgroup.id.x"),
    "ptr addrspace(4)": ("implicitarg.ptr",),
    "void": ("s.barrier", "wave.barrier"),
    "i64 i1": ("ballot.i64",),
    "i32 i32 i32": ("ds.bpermute",),
}
"""Result and operands of AMD's intrinsics, by the ends of their names."""


@pytest.mark.slow
@pytest.mark.parametrize("types", GROUPS, ids=lambda g: "-".join(t.name for t in g))
def test_every_operation_becomes_code_without_memory_of_its_own(types):
    chips = CHIPS if WHOLE else CHIPS[GROUPS.index(types) % 3 :][:1]
    texts = [(module_of(types, amdgpu_target(chip)).text("; every operation"), chip) for chip in chips]
    for (text, _), made in zip(texts, compile_all(texts)):
        assert len(made.kernels) == text.count("define amdgpu_kernel") > 10
        assert not {name: k for name, k in made.kernels.items() if k["scratch_bytes"] or k["spilled"]}


@pytest.mark.slow
def test_every_entry_of_the_table_has_instructions():
    entries = [entry(name, suffix) for name, types in INTRINSICS.items() for suffix in types.split()]
    text = "".join(entries).replace("define ptx_kernel", "define amdgpu_kernel")
    assert len(entries) > 100
    assert TABLE.faults(text) == []
    for made in compile_all([(text, chip) for chip in (CHIPS if WHOLE else CHIPS[:1])], "listing"):
        assert len(made.kernels) == len(entries)
        assert "s_swappc" not in made.listing


def names() -> str:
    """A kernel for each of AMD's intrinsics."""
    entries: list[str] = []
    for full in sorted(AMDGCN):
        name = full.removeprefix("llvm.amdgcn.")
        (signature,) = [s for s, known in SIGNATURES.items() if name in known]
        result, *types = signature.replace("ptr addrspace(4)", "ptr_4").split()
        result = result.replace("ptr_4", "ptr addrspace(4)")
        args = ", ".join(f"{t} %{t}" for t in types)
        keep = "" if result == "void" else "%r = "
        read = "  %n = load i32, ptr addrspace(4) %r\n  store i32 %n, ptr %p\n"
        use = read if "ptr" in result else f"  store {result} %r, ptr %p\n" if keep else ""
        body = f"  %i32 = load i32, ptr %p\n  %i1 = icmp sgt i32 %i32, 0\n  {keep}call {result} @{full}({args})\n{use}  ret void\n}}\n"
        define = f"define amdgpu_kernel void @k_{name.replace('.', '_')}(ptr %p) {{\n{body}"
        entries.append(f"declare {result} @{full}({', '.join(types)})\n{define}")
    return "".join(entries)


ATOMICS = ("add", "sub", "min", "max", "umin", "umax", "and", "or", "xor", "xchg")


def atomics() -> str:
    """A kernel for each atomic on a field, as ``memory.exchange`` writes it."""
    target = amdgpu_target()
    made = [("i32", op) for op in ATOMICS] + [("i64", op) for op in ATOMICS] + [("float", "fadd"), ("double", "fadd")]
    kernels = []
    for ty, op in made:
        line = f'%old = atomicrmw {op} ptr %at, {ty} %x syncscope("{target.scope}") monotonic{target.atomic_facts}'
        at = f"  %k = call i32 @{THREAD}()\n  %at = getelementptr {ty}, ptr %p, i32 %k\n  %x = load {ty}, ptr %q\n"
        kernels.append(f"define amdgpu_kernel void @{op}_{ty}(ptr %p, ptr %q) {{\n{at}  {line}\n  ret void\n}}\n")
    return f"declare i32 @{THREAD}()\n" + "".join(kernels) + "!0 = !{}\n"


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[Made]]:
    """Code objects for all chips of what several tests look at."""
    texts = {"names": names(), "atomics": atomics()}
    made = iter(compile_all([(text, chip) for text in texts.values() for chip in CHIPS], "listing"))
    return {name: [next(made) for _ in CHIPS] for name in texts}


def test_every_name_of_amd_has_instructions(compiled):
    for made in compiled["names"]:
        assert len(made.kernels) == len(AMDGCN)
        assert "s_swappc" not in made.listing


def test_all_code_is_for_waves_of_64_threads(compiled):
    """Row 46 of the change requests: the bit of a kernel's properties, on chips with waves of 32 threads, too."""
    kernels = [k for made in compiled["names"] + compiled["atomics"] for k in made.kernels.values()]
    assert len(kernels) > 60
    assert {(k["wave"], k["properties"] & (1 << 10)) for k in kernels} == {(64, 0)}


def test_atomics_on_fields_are_one_instruction(compiled):
    """Row 47 of the change requests: no loop of compare-and-exchange, which may never end. gfx1100 has no addition of f64."""
    for made in compiled["atomics"]:
        loops = [name for name in made.kernels if re.search(r"cmpswap|cmpst|s_cbranch", made.body(name))]
        assert loops == (["fadd_double"] if made.chip == "gfx1100" else []), made.chip
        assert all(len(re.findall(r"global_atomic_\w+", made.body(n))) == 1 for n in made.kernels if n not in loops), made.chip


def calls(what: str, declare: str) -> str:
    """A text with an instruction."""
    kernel = f"define amdgpu_kernel void @k(ptr %p) {{\n  %x = load double, ptr %p\n  %n = call i32 @{THREAD}()\n"
    return f"declare i32 @{THREAD}()\n{declare}\n{kernel}  {what}\n  ret void\n}}\n"


PERMLANE = "%y = call i32 @llvm.amdgcn.permlane64.i32(i32 %n)", "declare i32 @llvm.amdgcn.permlane64.i32(i32)"


@pytest.mark.parametrize(
    ("what", "declare", "says"),
    [
        ("%y = call double @llvm.exp.f64(double %x)", "declare double @llvm.exp.f64(double)", "`llvm.exp.f64`"),
        ("%y = call float @llvm.sin.f32(float 1.0)", "declare float @llvm.sin.f32(float)", "`llvm.sin.f32`"),
        (
            "%y = call i32 @llvm.amdgcn.ballot.i32(i1 true)",
            "declare i32 @llvm.amdgcn.ballot.i32(i1)",
            "`llvm.amdgcn.ballot.i32`",
        ),
        (*PERMLANE, "`llvm.amdgcn.permlane64.i32`"),
        ("%y = call double @sin(double %x)", "declare double @sin(double)", "`sin`, which is not defined"),
        ('fence syncscope("block") seq_cst', "", "the scope `block`"),
        ("%y = fpext double %x to fp128", "", "the type fp128"),
    ],
)
def test_what_would_end_the_process_is_refused_by_name(what, declare, says):
    with pytest.raises(QdrunRuntimeError) as e:
        TABLE.check(calls(what, declare), "step")
    assert str(e.value) == (
        f"the GPU code of kernel `step` contains operations that LLVM cannot compile for AMD's GPUs: {says}\n"
        "  do: this is a bug in qdrun; report it with the kernel's source"
    )


def on_chip(words: int, kernels: int = 1) -> str:
    """A text whose kernels have so many words of on-chip memory each."""
    lines = [f"declare i32 @{THREAD}()"]
    for k in range(kernels):
        at = f"%at = getelementptr i64, ptr addrspace(3) @own{k}, i32 %t"
        body = f"  %t = call i32 @{THREAD}()\n  {at}\n  store volatile i64 %x, ptr addrspace(3) %at\n  ret void"
        lines.append(f"@own{k} = internal addrspace(3) global [{words} x i64] poison, align 16")
        lines.append(f"define amdgpu_kernel void @k{k}(i64 %x) {{\n{body}\n}}")
    return "\n".join(lines)


def test_more_on_chip_memory_than_a_block_has_is_refused():
    fits = compile_all([(on_chip(8192), "gfx942"), (on_chip(6000, 2), "gfx90a"), (on_chip(20_000), "gfx950")])
    assert [[k["lds_bytes"] for k in made.kernels.values()] for made in fits] == [[65_536], [48_000] * 2, [160_000]]
    for chip, words, most in (("gfx942", 8194, "65,536"), ("gfx950", 20_482, "163,840")):
        with pytest.raises(QdrunRuntimeError) as e:
            build.compile_object(on_chip(words), "step", chip)
        assert str(e.value) == (
            f"a loop of kernel `step` needs {8 * words:,} bytes of on-chip memory for a block; {chip} has {most}\n"
            "  do: declare smaller simt.block.SharedArray, or give the loop a smaller block_dim"
        )


@pytest.mark.parametrize("how", ["sine", "permlane64", "on-chip memory"])
def test_it_really_would_end_the_process(how):
    """Row 48 of the change requests: LLVM crashes on ``permlane64`` where a chip lacks it."""
    sine = "%y = call double @llvm.sin.f64(double %x)\n  store double %y, ptr %p", "declare double @llvm.sin.f64(double)"
    permlane = PERMLANE[0] + "\n  store i32 %y, ptr %p", PERMLANE[1]
    text = on_chip(8194) if how == "on-chip memory" else calls(*(sine if how == "sine" else permlane))
    texts = [(text, "gfx942")]
    done = run(texts, "unchecked")
    assert done.returncode != 0 and "QdrunRuntimeError" not in done.stderr
