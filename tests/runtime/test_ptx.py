"""LLVM text to PTX and to machine code, and what is kept of both."""

import dataclasses
import re

import pytest

from qdrun.compiler.errors import DeviceError, QdrunRuntimeError
from qdrun.compiler.runtime.cuda import ptx
from qdrun.compiler.runtime.gpu.driver import Texts

from .fake_driver import INFOS, FakeDriver

TEXT = """
define ptx_kernel void @k(ptr %x, i64 %n) {
entry:
  %p = getelementptr i64, ptr %x, i64 3
  store i64 %n, ptr %p
  ret void
}
"""


def test_ptx_is_made_for_the_chip_and_version_that_were_asked_for():
    text = ptx.compile_ptx(TEXT, "k", "sm_80")
    assert ".version 8.0" in text and ".target sm_80" in text and ".visible .entry k(" in text
    assert ".version 8.1" in ptx.compile_ptx(TEXT, "k", "sm_90", "+ptx81")


def test_an_i64_is_stored_at_once_whatever_layout_the_text_has():
    for head in ("", 'target datalayout = "e-i64:32"\n', 'target triple = "x86_64-unknown-linux-gnu"\n'):
        text = ptx.compile_ptx(head + TEXT, "k", "sm_90")
        assert text.count("st.global") == 1 and "b64 \t[%rd" in text.replace("u64", "b64"), text


SHORT = """
declare i16 @llvm.abs.i16(i16, i1)
define ptx_kernel void @k(ptr %x, ptr %y) {
entry:
  %a = load i16, ptr %x
  %n = sub i16 0, %a
  %m = call i16 @llvm.abs.i16(i16 %a, i1 false)
  %c = icmp sge i16 %n, %m
  %z = zext i1 %c to i32
  store i32 %z, ptr %y
  ret void
}
"""


def test_16_bits_are_negated_in_16_bits():
    """The assembler would take 32, and -32768 would be positive in a comparison."""
    text = ptx.compile_ptx(SHORT, "k", "sm_90")
    assert "neg.s16" not in text and "abs.s16" not in text
    negated = re.search(r"not\.b16 (%rs\d+), (%rs\d+);\n\tadd\.s16 (%rs\d+), (%rs\d+), 1;", text)
    assert negated and negated[1] == negated[3] == negated[4] != negated[2]
    assert re.search(
        r"\{ \.reg \.b16 %sign; shr\.s16 %sign, (%rs\d+), 15; xor\.b16 (%rs\d+), \1, %sign; sub\.s16 \2, \2, %sign; \}", text
    )
    assert "neg.s64" in ptx.mended("\tneg.s64 \t%rd1, %rd2;\n") and ptx.mended(text) == text


def test_32_bits_are_negated_without_the_instruction_that_a_minimum_of_three_forgets():
    assert ptx.mended("\tneg.s32 \t%r9, %r6;\n") == "\tnot.b32 %r9, %r6;\n\tadd.s32 %r9, %r9, 1;\n"


def test_text_that_llvm_refuses_names_the_kernel():
    for bad in (TEXT.replace("i64 %n, ptr %p", "i64 %m, ptr %p"), TEXT.replace("ret void", "ret i32 0")):
        with pytest.raises(QdrunRuntimeError, match="invalid LLVM text for the GPU code of kernel `k`"):
            ptx.compile_ptx(bad, "k", "sm_90")


@pytest.mark.parametrize("cpu, features", [("sm_99", "+ptx80"), ("sm_90", "+sse"), ("sm_90", "")])
def test_a_chip_or_a_version_that_llvm_would_guess_is_refused(cpu, features):
    with pytest.raises(QdrunRuntimeError, match=r"no chip|no PTX version"):
        ptx.compile_ptx(TEXT, "k", cpu, features)


@pytest.mark.parametrize(
    "chip, cpu", [("sm_70", "sm_70"), ("sm_80", "sm_80"), ("sm_87", "sm_86"), ("sm_90", "sm_90"), ("sm_121", "sm_90")]
)
def test_a_device_gets_the_newest_code_that_it_can_run(chip, cpu):
    assert ptx.target_cpu(dataclasses.replace(INFOS[0], chip=chip)) == cpu


def test_a_device_that_is_too_old_is_refused():
    with pytest.raises(DeviceError, match=r"Test GPU has compute capability 6.1, and 7.0 is needed"):
        ptx.target_cpu(dataclasses.replace(INFOS[0], chip="sm_61"))


def test_parameters_of_more_than_4_kb_need_a_driver_that_takes_them():
    old = dataclasses.replace(INFOS[0], driver_version=12000)
    ptx.check_features("+ptx80", old, "k")
    ptx.check_features("+ptx81", INFOS[0], "k")
    with pytest.raises(DeviceError, match="kernel `k` has more than 4 KB of parameters"):
        ptx.check_features("+ptx81", old, "k")


def build(text, name, driver, info, keep=True):
    made = ptx.build(Texts(name, text, "", "", (), "+ptx80"), driver.assemble, info, keep)
    return made.data, made.key, made.known


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path))
    compiled = []
    real = ptx.compile_ptx
    monkeypatch.setattr(ptx, "compile_ptx", lambda *args: compiled.append(args[1]) or real(*args))
    return compiled


def test_ptx_is_kept_by_text_and_machine_code_by_ptx_driver_and_chip(kept):
    driver = FakeDriver()
    image, key, known = build(TEXT, "k", driver, INFOS[0])
    assert image.startswith(b"\x7fELF") and not known
    assert build(TEXT, "k", driver, INFOS[0]) == (image, key, True)
    assert (kept, driver.names()) == (["k"], ["assemble"])
    newer = dataclasses.replace(INFOS[0], driver_version=13010)
    assert build(TEXT, "k", driver, newer)[2] is False  # LLVM has nothing to do, the driver has
    assert (kept, driver.names()) == (["k"], ["assemble"] * 2)
    other = build(TEXT, "k", driver, INFOS[1])[1]
    assert other != key and (kept, len(driver.calls)) == (["k"], 3)  # another chip, the same PTX
    build(TEXT.replace("i64 3", "i64 4"), "k2", driver, INFOS[0])
    assert kept == ["k", "k2"]


def test_nothing_is_kept_where_nothing_shall_be(kept, tmp_path):
    for _ in range(2):
        build(TEXT, "k", FakeDriver(), INFOS[0], keep=False)
    assert kept == ["k", "k"] and not list(tmp_path.rglob("*.qdo"))


def test_a_damaged_entry_is_made_again(kept, tmp_path):
    driver = FakeDriver()
    image = build(TEXT, "k", driver, INFOS[0])[0]
    for path in tmp_path.rglob("*.qdo"):
        path.write_bytes(path.read_bytes()[:-3])
    assert build(TEXT, "k", driver, INFOS[0])[0] == image and len(kept) == 2


def _narrowing(real: str, wide: int, narrow: int) -> str:
    return f"""
define ptx_kernel void @k_{real}_{narrow}(ptr %p, ptr %q) {{
  %x = load {real}, ptr %p
  %y = fmul {real} %x, %x
  %b = bitcast {real} %y to i{wide}
  %t = trunc i{wide} %b to i{narrow}
  store i{narrow} %t, ptr %q
  ret void
}}
"""


@pytest.mark.parametrize(
    ("real", "wide", "narrow"),
    [("half", 16, 8), ("float", 32, 8), ("float", 32, 16), *(("double", 64, n) for n in (8, 16, 32))],
)
def test_the_low_bits_of_a_float_are_stored_as_bits(real, wide, narrow):
    """The assembler would convert the number to an integer where the register is wider than the store."""
    text = ptx.compile_ptx(_narrowing(real, wide, narrow), "k", "sm_90")
    bits = 16 if narrow < 32 and wide > 16 else 32
    found = re.search(rf"cvt\.u{bits}\.u{wide} (%low0), %r\w+; st\.global\.b{narrow} \[%rd\d+\], (%low0); \}}", text)
    assert found, text
    assert not re.search(rf"st\.global\.b{narrow} .*, %r", text)


def test_stores_of_several_values_are_narrowed_one_by_one():
    plain = "\tst.global.v2.b32 \t[%rd1+4], {%r1, %r2};\n\tst.global.b64 \t[%rd1], %rd2;\n\tst.shared.b32 \t[%r1], 0;\n"
    assert ptx.mended(plain) == plain
    assert ptx.mended("\tst.global.v2.b16 \t[%rd1+4], {%rs1, %r2};\n") == (
        "\t{ .reg .b16 %low0; cvt.u16.u32 %low0, %r2; st.global.v2.b16 [%rd1+4], {%rs1, %low0}; }\n"
    )
