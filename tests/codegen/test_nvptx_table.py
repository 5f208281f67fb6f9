"""Every operation of every type becomes PTX; what would end the process is refused before LLVM sees it."""

from __future__ import annotations

import re

import pytest
from ptx_harness import can_link, compile_text, module_of

from qdrun.compiler.codegen.cuda import nvptx_table
from qdrun.compiler.codegen.cuda.approximate import APPROXIMATIONS
from qdrun.compiler.codegen.cuda.hardware import LAYOUT, TRIPLE
from qdrun.compiler.errors import QdrunRuntimeError
from qdrun.compiler.ir.types import f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64

HEAD = f'target datalayout = "{LAYOUT}"\ntarget triple = "{TRIPLE}"\n'
LLVM = {"f16": "half", "f32": "float", "f64": "double"} | {f"i{n}": f"i{n}" for n in (8, 16, 32, 64)}
ONE_FLAG, TWO, THREE = (
    "ctlz cttz abs".split(),
    "copysign minnum maxnum minimum maximum smax smin umax umin".split(),
    "fma fmuladd fshl fshr",
)
GROUPS = [(f16,), (f32,), (f64,), (i8, i16, u8, u16, u1), (i32, i64, u32, u64)]


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("types", GROUPS, ids=lambda g: "-".join(t.name for t in g))
def test_every_operation_becomes_ptx(types, fast):
    if fast and not any(t.is_real for t in types):
        pytest.skip("fast_math changes nothing for integers")
    module = module_of(types, fast_math=fast)
    done = compile_text(module.text("; every operation"), *(["machine"] if can_link() else []))
    assert done.returncode == 0, done.stderr[-800:]
    ptx = done.stdout
    assert ptx.count(".visible .entry") == len(module.functions)
    assert ".local" not in ptx  # arrays of a thread would live in the GPU's memory
    assert "call" not in re.findall(r"^\s*(?:@%p\d+ )?(\w+)", ptx, re.M)
    loose = re.findall(r"^\s*(?:add|sub|mul|mad)\.(?:f32|f64)\b.*", ptx, re.M)
    assert not loose, loose[
        :3
    ]  # without .rn the assembler may fuse a product and a sum, in one copy of a body and not in another


@pytest.mark.parametrize("cpu", ["sm_70", "sm_75", "sm_80"])
def test_older_chips_have_every_function_too(cpu):
    done = compile_text(module_of((f32,)).text(""), cpu=cpu)
    assert done.returncode == 0, done.stderr[-800:]
    assert ".local" not in done.stdout


def entry(name, suffix):
    """A kernel that calls one entry of the table."""
    kinds = suffix.split(".")
    ty, arg = LLVM[kinds[0]], LLVM[kinds[-1]]
    full = f"llvm.{name}.{suffix}"
    n = 3 if name in THREE.split() else 2 if name in TWO else 1
    flag = ", i1 false" if name in ONE_FLAG else ""
    afn = "afn " if name in nvptx_table.APPROXIMATE else ""
    loads = "".join(f"  %x{k} = load {arg}, ptr %p{k}\n" for k in range(n))
    declare = f"declare {ty} @{full}({', '.join([arg] * n)}{', i1' if flag else ''})\n"
    args = ", ".join(f"{arg} %x{k}" for k in range(n))
    tag = re.sub(r"\W", "_", f"{name}_{suffix}")
    body = f"{loads}  %r = call {afn}{ty} @{full}({args}{flag})\n  store {ty} %r, ptr %o\n  ret void\n}}\n"
    return f"{declare}define ptx_kernel void @k_{tag}(ptr %o, ptr %p0, ptr %p1, ptr %p2) {{\n{body}"


def test_every_entry_of_the_table_has_instructions():
    tables = {**nvptx_table.INTRINSICS, **nvptx_table.APPROXIMATE}
    entries = [entry(name, suffix) for name, types in tables.items() for suffix in types.split()]
    assert len(entries) > 100
    text = HEAD + "".join(entries)
    assert nvptx_table.NVPTX.faults(text) == []
    done = compile_text(text, *(["machine"] if can_link() else []))
    assert done.returncode == 0, done.stderr[-800:]
    assert done.stdout.count(".visible .entry") == len(entries)


SIGNATURES = {
    "i32": (
        "activemask",
        "read.ptx.sreg.tid.",
        "read.ptx.sreg.ntid.",
        "read.ptx.sreg.ctaid.",
        "read.ptx.sreg.nctaid.",
        "read.ptx.sreg.laneid",
        "read.ptx.sreg.lanemask.lt",
    ),
    "i64": ("read.ptx.sreg.clock64", "read.ptx.sreg.globaltimer"),
    "void": ("barrier0", "membar."),
    "void i32": ("barrier.cta.sync.aligned.all", "bar.warp.sync"),
    "i32 i32 i32 i32 i32": tuple(f"shfl.sync.{how}.i32" for how in ("idx", "up", "down", "bfly")),
    "float i32 float i32 i32": tuple(f"shfl.sync.{how}.f32" for how in ("idx", "up", "down", "bfly")),
    "i32 i32 i1": ("vote.ballot.sync",),
    "i1 i32 i1": ("vote.any.sync", "vote.all.sync"),
    "i32 i32 i32": ("match.any.sync.i32",),
    "i32 i32 i64": ("match.any.sync.i64",),
    "i32 float": ("f2i.", "f2ui."),
    "float float": ("ex2.", "lg2.", "rcp.", "rsqrt."),
}
"""Result and operands of NVIDIA's intrinsics, by the beginnings of their names."""


def test_every_name_of_nvidia_has_instructions():
    """A misspelt one would become a call."""
    entries: list[str] = []
    for full in sorted(nvptx_table.NVVM):
        name = full.removeprefix("llvm.nvvm.")
        (signature,) = [s for s, starts in SIGNATURES.items() if name.startswith(starts)]
        result, *types = signature.split()
        literal = {"float": "%x", "i1": "true", "i64": "5", "i32": "0" if name.startswith("barrier") else "-1"}
        args = ", ".join(f"{t} {'31' if name.startswith('shfl') and k > 1 else literal[t]}" for k, t in enumerate(types))
        out = f"call {result} @{full}({args})\n"
        keep = "" if result == "void" else f"  store {result} %r, ptr %p\n"
        body = f"  %x = load float, ptr %p\n  {'%r = ' if keep else ''}{out}{keep}  ret void\n}}\n"
        tag = name.replace(".", "_")
        entries.append(f"declare {result} @{full}({', '.join(types)})\ndefine ptx_kernel void @k_{tag}(ptr %p) {{\n{body}")
    done = compile_text(HEAD + "".join(entries), *(["machine"] if can_link() else []))
    assert done.returncode == 0, done.stderr[-800:]
    assert "call" not in re.findall(r"^\s*(\w+)", done.stdout, re.M)
    assert ".extern" not in done.stdout
    assert not nvptx_table.NVPTX.knows("llvm.nvvm.barrier1")


def calls(what, declare):
    return f"{HEAD}{declare}\ndefine ptx_kernel void @k(ptr %p) {{\n  %x = load double, ptr %p\n  {what}\n  ret void\n}}\n"


@pytest.mark.parametrize(
    ("what", "declare", "says"),
    [
        ("%y = call double @llvm.exp.f64(double %x)", "declare double @llvm.exp.f64(double)", "`llvm.exp.f64`"),
        ("%y = call double @llvm.sin.f64(double %x)", "declare double @llvm.sin.f64(double)", "`llvm.sin.f64`"),
        ("%y = call float @llvm.sin.f32(float 1.0)", "declare float @llvm.sin.f32(float)", "`llvm.sin.f32` without `afn`"),
        (
            "%y = call float @llvm.nvvm.sin.aprox.f(float 1.0)",
            "declare float @llvm.nvvm.sin.aprox.f(float)",
            "`llvm.nvvm.sin.aprox.f`",
        ),
        ("%y = call double @sin(double %x)", "declare double @sin(double)", "`sin`, which is not defined"),
        ("store i8 0, ptr @a.b", "@a.b = global i8 0", "the name `a.b`: letters, digits and _ only"),
        ("%y = fpext double %x to fp128", "", "the type fp128"),
    ],
)
def test_what_would_end_the_process_is_refused_by_name(what, declare, says):
    with pytest.raises(QdrunRuntimeError) as e:
        nvptx_table.NVPTX.check(calls(what, declare), "step")
    assert str(e.value) == (
        f"the GPU code of kernel `step` contains operations that LLVM cannot compile for NVIDIA's GPUs: {says}\n"
        "  do: this is a bug in qdrun; report it with the kernel's source"
    )


@pytest.mark.parametrize("name", ["exp", "log"])
def test_it_really_would_end_the_process(name):
    text = calls(
        f"%y = call double @llvm.{name}.f64(double %x)\n  store double %y, ptr %p", f"declare double @llvm.{name}.f64(double)"
    )
    assert compile_text(text, "unchecked").returncode != 0
    done = compile_text(text)
    assert "QdrunRuntimeError: the GPU code of kernel `a test`" in done.stderr


def test_fast_math_takes_the_approximations_and_nothing_else():
    def instructions(fast):
        done = compile_text(module_of((f32, f64), fast_math=fast).text(""))
        assert done.returncode == 0, done.stderr[-800:]
        bodies = re.findall(r"entry (\w+)\((.*?)^}", done.stdout, re.M | re.S)
        return {name: sorted(set(re.findall(r"\b[a-z]+\d?\.approx[.\w]*", body))) for name, body in bodies}

    plain, fast = instructions(False), instructions(True)
    changed = {name.split("_")[0] for name in fast if fast[name] != plain[name]}
    assert changed == set(APPROXIMATIONS)
    assert not [name for name in fast if "_f64_" in name and fast[name] != plain[name]]
    said = {name.split("_")[0]: found for name, found in fast.items() if "_f32_" in name and name.split("_")[0] in changed}
    assert said == {
        "sin": ["sin.approx.f32"],
        "cos": ["cos.approx.f32"],
        "tan": ["cos.approx.f32", "div.approx.f32", "sin.approx.f32"],
        "exp": ["ex2.approx.ftz.f32"],
        "div": ["div.approx.f32"],
        "sqrt": ["sqrt.approx.f32"],
        "rsqrt": ["rsqrt.approx.f32"],
    }
