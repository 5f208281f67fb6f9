import ctypes
import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from qdrun.compiler.errors import QdrunRuntimeError
from qdrun.compiler.runtime import jit
from qdrun.tests.kept_code import KeptCode

GOOD = """
declare double @sin(double)
define double @entry(double %x) {
  %y = call double @sin(double %x)
  ret double %y
}
"""


def test_text_becomes_code_that_calls_the_math_library():
    code = jit.load(jit.compile_text(GOOD, "k"), ["entry"], {}, "k")
    f = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(code.addresses["entry"])
    assert f(0.5) == pytest.approx(0.479425538604203)


@pytest.mark.parametrize(
    "text, says",
    [
        ("this is no LLVM", "invalid LLVM text"),
        ("define void @entry() { ret i32 0 }", "invalid LLVM text"),
        ("define i32 @entry() {\n %a = add i32 %b, 1\n %b = add i32 %a, 1\n ret i32 %b }", "invalid LLVM text"),
        ("declare double @llvm.nosuch.f64(double)\ndefine double @entry(double %x) {\n"
         " %a = call double @llvm.nosuch.f64(double %x)\n ret double %a }", "llvm.nosuch.f64"),
        ("declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()\ndefine i32 @entry() {\n"
         " %a = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n ret i32 %a }", "llvm.nvvm"),
        ('target triple = "nvptx64-nvidia-cuda"\ndefine void @entry() { ret void }', "nvptx64"),
    ],
)  # fmt: skip
def test_bad_text_is_an_error_that_names_the_kernel(text, says):
    with pytest.raises(QdrunRuntimeError, match=says) as e:
        jit.compile_text(text, "my_kernel")
    assert "`my_kernel`" in str(e.value)


def test_a_missing_function_is_an_error_that_names_the_kernel():
    text = "declare void @qd_nobody_has_this()\ndefine void @entry() {\n call void @qd_nobody_has_this()\n ret void }"
    with pytest.raises(QdrunRuntimeError, match="`my_kernel` cannot be loaded"):
        jit.load(jit.compile_text(text, "my_kernel"), ["entry"], {}, "my_kernel")


@pytest.mark.parametrize("size", [0, 3, 300])
def test_damaged_object_bytes_are_an_error(size):
    with pytest.raises(QdrunRuntimeError, match="cannot be loaded"):
        jit.load(jit.compile_text(GOOD, "k")[:size], ["entry"], {}, "k")


def test_the_linker_survives_an_error():
    test_damaged_object_bytes_are_an_error(3)
    test_text_becomes_code_that_calls_the_math_library()


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_optimisation_level_compiles(level):
    code = jit.load(jit.compile_text(GOOD, "k", level), ["entry"], {}, "k")
    assert code.addresses["entry"]


FAR = """
import ctypes
from qdrun.compiler.runtime import jit
from qdrun.tests.kept_code import KeptCode

ops = "".join(f" %a{k + 1} = fmul double %a{k}, {1 + k % 200 / 1024:.12f}\\n" for k in range(2000))
data = jit.compile_text(f"define double @entry(double %a0) {{\\n{ops} ret double %a2000 }}", "k", 0)
jit.load(jit.compile_text("define void @entry() { ret void }", "k"), ["entry"], {}, "k")
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
def reserve(size):
    return libc.mmap(None, size, 0, 0x4022, -1, 0)  # PROT_NONE, private, anonymous, without swap
pages, wide = reserve(400 * 4096), reserve(1 << 33)
for size in (1 << 24, 1 << 20, 1 << 16, 1 << 14, 1 << 13, 1 << 12):  # fill what is free above the wide gap
    while (at := reserve(size)) > wide:
        pass
    libc.munmap(at, size)
for k in range(0, 400, 2):
    libc.munmap(pages + 4096 * k, 4096)
code = jit.load(data, ["entry"], {}, "k")
print(ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(code.addresses["entry"])(0.0))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reserves memory as Linux does")
def test_code_and_its_constants_are_not_torn_apart_where_memory_has_only_small_holes():
    """Its constants fit a hole of one page, its code only what lies 8 GB lower: an older linker ended the process."""
    done = subprocess.run([sys.executable, "-c", FAR], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.split() == ["0.0"]


ADD = "define i32 @add(i32 %x) {\n  %y = add i32 %x, 3\n  ret i32 %y\n}\n"


def test_a_linker_that_is_full_stays_until_its_last_code_is_gone(monkeypatch):
    monkeypatch.setattr(jit, "MOST_LINKS", 2)
    monkeypatch.setattr(jit, "_linker", None)
    bytes_of = jit.compile_text(ADD, "add")
    codes, linkers = [], []
    for _ in range(5):
        codes.append(jit.load(bytes_of, ["add"], {}, "add"))
        linkers.append(weakref.ref(jit._linker.lljit))
    assert [linker() is linkers[0]() for linker in linkers] == [True, True, False, False, False]
    del codes[0]
    gc.collect()
    assert linkers[0]() is not None
    assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(codes[0].addresses["add"])(4) == 7
    del codes[0]
    gc.collect()
    assert linkers[0]() is None and linkers[2]() is not None
    with pytest.raises(QdrunRuntimeError, match="cannot be loaded"):
        jit.load(bytes_of, ["no such symbol"], {}, "add")
    codes.clear()
    gc.collect()
    assert linkers[2]() is None and linkers[4]() is not None, "the module's own stays"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_compiling_and_loading_leave_nothing_behind():
    def megabytes():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

    def some(first):
        for n in range(first, first + 150):
            jit.load(jit.compile_text(ADD.replace("3", str(n)), "add"), ["add"], {}, "add")

    some(0)
    before = megabytes()
    some(1000)
    assert megabytes() < before + 6, "9 KB of each in the linker, which is freed when it is full"


def test_tests_optimise_one_text_in_so_many_and_all_where_limits_are_set(tmp_path, monkeypatch):
    levels = []
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "compile_text", lambda text, name, level: levels.append(level) or b"code")
    kept = KeptCode()

    def optimised(one_in):
        levels.clear()
        kept.one_in = one_in
        for n in range(1000 * one_in, 1000 * one_in + 200):
            kept.compile_text(f"; {n}", "k", 2)
        assert set(levels) <= {0, 2} and len(levels) == 200
        return levels.count(2)

    assert optimised(1) == 200 and 25 < optimised(4) < 75
    assert kept.versions() != jit.versions(), "processes that tests start do not find what was compiled quickly"
    monkeypatch.setattr(jit, "PIPELINES", jit.PIPELINES[1:])
    assert optimised(5) == 200
