"""Code objects of AMD's GPUs: linked by us, read back, refused when they are not what was compiled, kept on disk."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise

import pytest

from qdrun.compiler.codegen.amdgpu.chips import CHIPS, chip_of
from qdrun.compiler.codegen.amdgpu.hardware import LAYOUT, TRIPLE, amdgpu_target
from qdrun.compiler.errors import QdrunRuntimeError
from qdrun.compiler.runtime import cache
from qdrun.compiler.runtime.amdgpu import build as building
from qdrun.compiler.runtime.amdgpu import code_object, elf
from qdrun.compiler.runtime.amdgpu.build import build, compile_assembly, compile_object
from qdrun.compiler.runtime.amdgpu.code_object import Malformed, check, read_code
from qdrun.compiler.runtime.amdgpu.link import LinkError, link
from qdrun.compiler.runtime.gpu.compiling import Generator, _target, generate
from qdrun.compiler.runtime.gpu.driver import Texts

SIZE = '"amdgpu-flat-work-group-size"="64,128" "uniform-work-group-size"="true"'
TEXT = f"""
@numbers = internal addrspace(4) constant [4 x i32] [i32 11, i32 22, i32 33, i32 44], align 4
@words = internal addrspace(3) global [32 x i64] poison, align 16
declare i32 @llvm.amdgcn.workitem.id.x()
declare ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
define amdgpu_kernel void @first(ptr %p0, i64 %p1) nounwind {SIZE} {{
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %k = and i32 %t, 3
  %at = getelementptr i32, ptr addrspace(4) @numbers, i32 %k
  %n = load i32, ptr addrspace(4) %at
  %h = call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
  %blocks = load i32, ptr addrspace(4) %h
  %sum = add i32 %n, %blocks
  store i32 %sum, ptr %p0
  ret void
}}
define amdgpu_kernel void @second(ptr addrspace(4) byref([3 x i64]) align 8 %packed) nounwind {SIZE} {{
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %at = getelementptr i64, ptr addrspace(3) @words, i32 %t
  store volatile i64 7, ptr addrspace(3) %at
  ret void
}}
"""


@pytest.fixture(scope="module")
def image() -> bytes:
    """A code object with two kernels."""
    return compile_object(TEXT, "two", "gfx942", listing=True)


def test_a_code_object_says_what_its_kernels_take(image):
    code = read_code(image)
    first, second = code.kernels["first"], code.kernels["second"]
    assert code.chip == "gfx942" and set(code.kernels) == {"first", "second"}
    assert (first.words_bytes, second.words_bytes, second.kernarg_bytes) == (16, 24, 24)
    assert first.hidden["hidden_block_count_x"] == 16 and first.hidden["hidden_group_size_x"] == 28 and not second.hidden
    assert (first.lds_bytes, second.lds_bytes) == (0, 256)
    assert {(k.wave, k.most_threads, k.scratch_bytes, k.spilled) for k in (first, second)} == {(64, 128, 0, 0)}
    assert "s_endpgm" in code.listing and code.listing == compile_assembly(TEXT, "two", "gfx942")


def test_the_parts_of_a_code_object_lie_where_its_headers_say(image):
    file = elf.read_elf(image)
    assert (file.type, file.ident[elf.ABIVERSION], file.flags & 0xFF) == (elf.SHARED, 3, 0x4C)
    ends = [(s.address, s.address + s.size) for s in file.segments]
    assert all(a[1] <= b[0] for a, b in pairwise(ends)), "segments do not overlap"
    assert len({begin // 4096 for begin, _ in ends}) == len(ends), "each has pages of its own"
    for section in (s for s in file.sections if s.flags & elf.ALLOC):
        (home,) = [s for s in file.segments if s.address <= section.address < s.address + s.size]
        at = section.address - home.address
        assert section.data == home.data[at : at + section.size] and section.address % section.align == 0
    both = [s for s in file.sections if s.type in (elf.SYMTAB, elf.DYNSYM)]
    assert {len(s.data) // 24 for s in both if s.type == elf.DYNSYM} == {5}, "two kernels, two descriptors, none"
    assert {s.name for s in file.symbols} >= {"first", "first.kd", "second", "second.kd", "numbers"}


def test_a_table_of_constants_is_found_by_the_code_that_reads_it(image):
    """``s_getpc`` and two additions of the halves of a distance: what the linker has written leads to the table."""
    file = elf.read_elf(compile_object(TEXT, "two", "gfx942"))
    code = next(s for s in file.sections if s.name == ".text")
    words = struct.unpack(f"<{len(code.data) // 4}I", code.data)
    numbers = next(s.value for s in file.symbols if s.name == "numbers")
    (pc,) = [k for k, w in enumerate(words) if w & 0xFF80FFFF == 0xBE801C00]  # s_getpc_b64
    low, high = (k for k in range(pc, pc + 8) if words[k] >> 23 in (0b100000000, 0b100000100) and words[k] & 0xFF00 == 0xFF00)
    distance = words[low + 1] | words[high + 1] << 32
    distance -= (distance >> 63) << 64
    assert code.address + 4 * (pc + 1) + distance == numbers
    table = next(s for s in file.segments if s.address <= numbers < s.address + s.size)
    assert struct.unpack_from("<4I", table.data, numbers - table.address) == (11, 22, 33, 44)


@pytest.mark.parametrize("chip", ["gfx90a", "gfx1100", "gfx1201"])
def test_other_chips_have_the_same_kernels(chip):
    code = read_code(compile_object(TEXT, "two", chip))
    assert code.chip == chip and {k.wave for k in code.kernels.values()} == {64}


def test_every_chip_has_its_code_generator_and_this_layout():
    """Sizes of pointers into on-chip and own memory, alignment of i64, and where own memory and globals lie."""
    for chip in CHIPS.values():
        machine = _target(TRIPLE, "AMD's GPUs").create_target_machine(cpu=chip.name, features=chip.features, opt=3)
        made = set(str(machine.target_data).split("-"))
        assert {"e", "p:64:64", "p1:64:64", "p3:32:32", "p4:64:64", "p5:32:32", "i64:64", "A5", "G1"} <= made & set(
            LAYOUT.split("-")
        )
        assert amdgpu_target(chip.name).layout == LAYOUT
    empty = "; nothing\n"
    assert [read_code(compile_object(empty, "none", name)).chip for name in CHIPS] == list(CHIPS)


@pytest.mark.parametrize(
    ("chip", "registers", "lds_bytes", "waves"),
    [
        ("gfx942", 154, 0, 3),  # 160 of 512
        ("gfx942", 18, 1032, 8),
        ("gfx942", 18, 33_000, 1),  # one block of two waves for four SIMDs
        ("gfx942", 18, 16_384, 2),
        ("gfx1100", 140, 0, 5),  # 144 of 768
        ("gfx1100", 18, 16_384, 4),  # a block for each of four, two waves each, on two SIMDs
        ("gfx906", 65, 0, 3),
    ],
)
def test_resident_waves_are_limited_by_registers_and_on_chip_memory(chip, registers, lds_bytes, waves):
    assert chip_of(chip).resident(registers, lds_bytes, 128) == waves


@pytest.mark.parametrize("name", ["gfx9999", "gfx803", "gfx1250", "gfx9-generic", "sm_90", ""])
def test_other_chips_are_refused_by_name(name):
    with pytest.raises(QdrunRuntimeError, match=f"no code is made for the AMD chip `{name}`\n  do: use one of gfx900, "):
        compile_object(TEXT, "two", name)
    with pytest.raises(QdrunRuntimeError, match="no code is made"):
        amdgpu_target(name)


def test_waves_of_32_threads_are_refused(monkeypatch):
    """The default of gfx1100, which LLVM takes where it is not told of the other one."""
    monkeypatch.setattr(type(chip_of("gfx1100")), "features", "")
    with pytest.raises(QdrunRuntimeError) as e:
        compile_object(TEXT, "two", "gfx1100")
    assert str(e.value) == (
        "the code object of kernel `two` for gfx1100 is wrong: kernel `first` is made for waves of 32 threads\n"
        "  do: this is a bug in qdrun or in LLVM; report it with the kernel's source and the version of llvmlite"
    )


def test_a_kernel_that_llvm_leaves_out_is_missed(monkeypatch):
    """It does so for a feature that the chip lacks, and says nothing."""
    monkeypatch.setattr(type(chip_of("gfx942")), "features", "+wavefrontsize32")
    with pytest.raises(QdrunRuntimeError, match=r"has the kernels \[\] in place of \['first', 'second'\]"):
        compile_object(TEXT, "two", "gfx942")


def test_code_for_another_chip_is_refused(image):
    with pytest.raises(Malformed, match="made for gfx942, not for gfx90a"):
        check(read_code(image), "gfx90a", ["first", "second"])


def test_what_only_a_runtime_of_ours_could_fill_in_is_refused(image):
    code = read_code(image)
    first = replace(code.kernels["first"], hidden={"hidden_heap_v1": 48})
    with pytest.raises(Malformed, match="kernel `first` asks for hidden_heap_v1"):
        check(replace(code, kernels={"first": first}), "gfx942", ["first"])


@pytest.mark.parametrize(("field", "value"), [("lds_bytes", 65_537), ("most_threads", 1025), ("vgprs", 513)])
def test_more_than_the_chip_has_is_refused(image, field, value):
    code = read_code(image)
    first = replace(code.kernels["first"], **{field: value})
    with pytest.raises(Malformed, match="kernel `first` takes more than gfx942 has"):
        check(replace(code, kernels={"first": first}), "gfx942", ["first"])


def at_descriptor(image: bytes, offset: int, value: int) -> bytes:
    """A word of the first kernel's descriptor changed; the file's first segment lies at its own offsets."""
    out = bytearray(image)
    struct.pack_into("<I", out, read_code(image).kernels["first"].descriptor + offset, value)
    return bytes(out)


@pytest.mark.parametrize(
    ("offset", "value", "says"),
    [
        (0, 64, "the metadata says"),
        (4, 16, "the metadata says"),
        (8, 8, "the metadata says"),
        (16, 256, "the descriptor's code is at"),
    ],
)
def test_a_descriptor_that_says_something_else_is_refused(image, offset, value, says):
    with pytest.raises(Malformed, match=says):
        read_code(at_descriptor(image, offset, value))


def test_damaged_files_are_refused(image):
    for bad in (b"", b"\x7fELF", image[:100], image[: len(image) // 2], b"\0" + image[1:]):
        with pytest.raises(Malformed, match="no code object"):
            read_code(bad)
    with pytest.raises(Malformed, match=r"has the kernels \[\]"):
        check(read_code(image.replace(b"amdhsa.kernels", b"amdhsa.kernelz")), "gfx942", ["first", "second"])
    with pytest.raises(
        QdrunRuntimeError, match=r"the code of kernel `two` cannot be loaded: no code object: .*\n  do: clear the kernel cache"
    ):
        building.code_of(image[:100], "two")


def object_of(text: str) -> bytes:
    """An object, past the closed table."""
    return generate(
        text, "two", Generator(TRIPLE, "gfx942", "", "AMD's GPUs", pic=True, whole=True), building._TAIL, assembly=False
    )


KERNEL = "define amdgpu_kernel void @k(ptr %p) {{\n{}\n  ret void\n}}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "@x = addrspace(1) global i32 5\n" + KERNEL.format("  store i32 1, ptr addrspace(1) @x"),
            "the section .data, which device code does not have",
        ),
        (
            "@x = external hidden addrspace(1) global i32\n" + KERNEL.format("  store i32 1, ptr addrspace(1) @x"),
            "`x`, which is not defined",
        ),
        ("declare void @f()\n" + KERNEL.format("  call void @f()"), "`f`, which is not defined"),
    ],
)
def test_objects_that_need_more_than_this_linker_are_refused(text, says):
    with pytest.raises(LinkError, match=says):
        link(object_of(text))


def test_a_linked_file_is_no_object(image):
    with pytest.raises(LinkError, match="no object file"):
        link(image)


def test_a_code_object_is_kept_by_text_chip_and_listing(tmp_path, monkeypatch):
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path))
    compiled = []
    monkeypatch.setattr(building, "_generate", lambda *given, **how: compiled.append(given) or GENERATE(*given, **how))
    texts = Texts("two", TEXT, "", "", ("first", "second"), "")
    made = build(texts, "gfx942")
    again = build(texts, "gfx942")
    assert not made.known and again.known and (again.data, again.key) == (made.data, made.key) and len(compiled) == 1
    disk = cache.disk_cache()
    found = disk.get(made.key) if disk else None
    assert found is not None and found[0] == made.data
    others = [
        build(texts, "gfx90a"),
        build(texts, "gfx942", listing=True),
        build(replace(texts, device=TEXT + "; other\n"), "gfx942"),
    ]
    assert len({made.key, *(o.key for o in others)}) == 4 and not any(o.known for o in others)
    assert not build(texts, "gfx942", keep=False).known
    assert read_code(others[1].data).listing and not read_code(made.data).listing


GENERATE = building._generate


def test_messagepack_of_all_lengths_is_read():
    pack = {
        b"\x05": 5,
        b"\xff": -1,
        b"\xcd\x01\x00": 256,
        b"\xd3" + b"\xff" * 8: -1,
        b"\xa2ab": "ab",
        b"\xd9\x03abc": "abc",
        b"\xda\x00\x01a": "a",
        b"\x92\x01\xc3": [1, True],
        b"\xdc\x00\x01\xc2": [False],
        b"\x81\xa1a\xc0": {"a": None},
        b"\xde\x00\x01\xa1b\x07": {"b": 7},
    }
    for data, value in pack.items():
        assert code_object._unpacked(data, 0) == (value, len(data))
    with pytest.raises(ValueError, match="MessagePack of type 0xca"):
        code_object._unpacked(b"\xca\0\0\0\0", 0)
