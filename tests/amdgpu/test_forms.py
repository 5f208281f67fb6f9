"""Instructions on shared registers, and parts of the lanes' registers, at random values against Python's integers."""

import numpy as np
import pytest

from qdrun.tests.devices.amdgpu.faults import UnknownInstruction
from qdrun.tests.devices.amdgpu.wave import EXEC, SCC

from .emulator_harness import Run

rng = np.random.default_rng()
M32, M64 = (1 << 32) - 1, (1 << 64) - 1
SPECIAL = [0, 1, 2, 31, 32, 63, 64, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, M32, 1 << 32, 1 << 63, (1 << 63) - 1, M64]


def number(bits):
    value = int(rng.choice(np.array(SPECIAL, np.uint64))) if rng.random() < 0.4 else int(rng.integers(0, M64, dtype=np.uint64))
    return value & ((1 << bits) - 1)


def signed(x, bits):
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def field(x, how, bits, is_signed):
    first, count = how & (bits - 1), how >> 16 & 0x7F
    found = x >> first & ((1 << count) - 1)
    return signed(found, count) if is_signed and count else found


def lowest(x, bits):
    return (x & -x).bit_length() - 1 if x else -1


def leading(x, bits):
    return bits - x.bit_length() if x else -1


def leading_signs(x, bits):
    return leading(~x & ((1 << bits) - 1) if x >> (bits - 1) else x, bits)


# ---- shared registers: the value of the result, and the flag if the instruction sets it (None: it does not)
def nonzero(r, bits):
    return int(r & ((1 << bits) - 1) != 0)


LOGIC = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b, "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b), "xnor": lambda a, b: ~(a ^ b),
}  # fmt: skip
TWO = {  # name: bits of the result, of the operands, value, flag of (result, a, b, flag before)
    **{f"s_{n}_b{k}": (k, k, k, f, lambda r, a, b, k=k: nonzero(r, k)) for n, f in LOGIC.items() for k in (32, 64)},
    **{f"s_lshl_b{k}": (k, k, 32, lambda a, b, k=k: a << b % k, lambda r, a, b, k=k: nonzero(r, k)) for k in (32, 64)},
    **{f"s_lshr_b{k}": (k, k, 32, lambda a, b, k=k: a >> b % k, lambda r, a, b, k=k: nonzero(r, k)) for k in (32, 64)},
    **{
        f"s_ashr_i{k}": (k, k, 32, lambda a, b, k=k: signed(a, k) >> b % k, lambda r, a, b, k=k: nonzero(r, k))
        for k in (32, 64)
    },
    **{
        f"s_bfe_{t}{k}": (k, k, 32, lambda a, b, k=k, t=t: field(a, b, k, t == "i"), lambda r, a, b, k=k: nonzero(r, k))
        for t in "iu"
        for k in (32, 64)
    },
    **{f"s_bfm_b{k}": (k, 32, 32, lambda a, b, k=k: (1 << a % k) - 1 << b % k, None) for k in (32, 64)},
    "s_add_u32": (32, 32, 32, lambda a, b: a + b, lambda r, a, b: int(r > M32)),
    "s_sub_u32": (32, 32, 32, lambda a, b: a - b, lambda r, a, b: int(b > a)),
    "s_add_i32": (32, 32, 32, lambda a, b: signed(a, 32) + signed(b, 32), lambda r, a, b: int(not -(1 << 31) <= r < 1 << 31)),
    "s_sub_i32": (32, 32, 32, lambda a, b: signed(a, 32) - signed(b, 32), lambda r, a, b: int(not -(1 << 31) <= r < 1 << 31)),
    "s_min_u32": (32, 32, 32, min, lambda r, a, b: int(a < b)),
    "s_max_u32": (32, 32, 32, max, lambda r, a, b: int(a >= b)),
    "s_min_i32": (
        32,
        32,
        32,
        lambda a, b: min(a, b, key=lambda x: signed(x, 32)),
        lambda r, a, b: int(signed(a, 32) < signed(b, 32)),
    ),
    "s_max_i32": (
        32,
        32,
        32,
        lambda a, b: max(a, b, key=lambda x: signed(x, 32)),
        lambda r, a, b: int(signed(a, 32) >= signed(b, 32)),
    ),
    "s_mul_i32": (32, 32, 32, lambda a, b: a * b, None),
    "s_mul_hi_u32": (32, 32, 32, lambda a, b: a * b >> 32, None),
    "s_mul_hi_i32": (32, 32, 32, lambda a, b: signed(a, 32) * signed(b, 32) >> 32, None),
    **{f"s_lshl{k}_add_u32": (32, 32, 32, lambda a, b, k=k: (a << k) + b, lambda r, a, b: int(r > M32)) for k in range(1, 5)},
    "s_pack_ll_b32_b16": (32, 32, 32, lambda a, b: a & 0xFFFF | (b & 0xFFFF) << 16, None),
    "s_pack_lh_b32_b16": (32, 32, 32, lambda a, b: a & 0xFFFF | b >> 16 << 16, None),
    "s_pack_hh_b32_b16": (32, 32, 32, lambda a, b: a >> 16 | b >> 16 << 16, None),
}
ONE = {
    **{f"s_mov_b{k}": (k, k, lambda a: a, None) for k in (32, 64)},
    **{f"s_not_b{k}": (k, k, lambda a: ~a, lambda r, a, k=k: nonzero(r, k)) for k in (32, 64)},
    **{f"s_brev_b{k}": (k, k, lambda a, k=k: int(f"{a:0{k}b}"[::-1], 2), None) for k in (32, 64)},
    **{f"s_bcnt1_i32_b{k}": (32, k, int.bit_count, lambda r, a: int(r != 0)) for k in (32, 64)},
    **{f"s_bcnt0_i32_b{k}": (32, k, lambda a, k=k: k - a.bit_count(), lambda r, a: int(r != 0)) for k in (32, 64)},
    **{f"s_ff1_i32_b{k}": (32, k, lambda a, k=k: lowest(a, k), None) for k in (32, 64)},
    **{f"s_flbit_i32_b{k}": (32, k, lambda a, k=k: leading(a, k), None) for k in (32, 64)},
    "s_flbit_i32": (32, 32, lambda a: leading_signs(a, 32), None),
    "s_flbit_i32_i64": (32, 64, lambda a: leading_signs(a, 64), None),
    "s_abs_i32": (32, 32, lambda a: abs(signed(a, 32)), lambda r, a: int(r != 0)),
    "s_sext_i32_i8": (32, 32, lambda a: signed(a, 8), None),
    "s_sext_i32_i16": (32, 32, lambda a: signed(a, 16), None),
}


def shared(first, bits):
    return f"s{first}" if bits == 32 else f"s[{first}:{first + 1}]"


def words(first, value):
    return {first: value, first + 1: value >> 32}


@pytest.mark.parametrize("name", [*TWO, *ONE])
def test_shared_registers_are_those_of_python(name):
    out, *sizes, function, flag = TWO.get(name) or ONE[name]
    for _ in range(40):
        given, before = [number(k) for k in sizes], int(rng.integers(2))
        if "bfe" in name:  # the parts of an operand that says where and how many
            given[1] = int(rng.integers(out)) | int(rng.integers(out + 1)) << 16
        texts = [shared(4 + 2 * k, bits) for k, bits in enumerate(sizes)]
        registers = {k: v for i, x in enumerate(given) for k, v in words(4 + 2 * i, x).items()} | {SCC: before}
        run = Run([f"{name} {', '.join([shared(2, out), *texts])}"], shared=registers)
        value = function(*given)
        assert run.s(2, out // 32) == value & ((1 << out) - 1), given
        assert run.wave.S[SCC] == (before if flag is None else flag(value, *given)), given


@pytest.mark.parametrize("name", ["s_addc_u32", "s_subb_u32"])
def test_the_flag_is_carried_on(name):
    for before in (0, 1) * 30:
        a, b = number(32), number(32)
        value = a + b + before if name == "s_addc_u32" else a - b - before
        run = Run([f"{name} s2, s4, s6"], shared={4: a, 6: b, SCC: before})
        assert run.s(2) == value & M32 and run.wave.S[SCC] == int(not 0 <= value <= M32)


ORDERS = ("gt", "ge", "lt", "le")


@pytest.mark.parametrize(
    "relation, kind", [(r, k) for r in ("eq", "lg", *ORDERS) for k in ("i32", "u32", "u64") if k != "u64" or r not in ORDERS]
)
def test_comparisons_of_shared_registers(relation, kind):
    bits = int(kind[1:])
    compare = {"eq": int.__eq__, "lg": int.__ne__, "gt": int.__gt__, "ge": int.__ge__, "lt": int.__lt__, "le": int.__le__}[
        relation
    ]
    for _ in range(40):
        a = number(bits)
        b = a if rng.random() < 0.3 else number(bits)
        pair = (signed(a, bits), signed(b, bits)) if kind[0] == "i" else (a, b)
        line = f"s_cmp_{relation}_{kind} {shared(4, bits)}, {shared(6, bits)}"
        assert Run([line], shared=words(4, a) | words(6, b)).wave.S[SCC] == int(compare(*pair))
        if bits == 32:
            short = int(rng.integers(1 << 16))
            pair = (signed(a, 32), signed(short, 16)) if kind[0] == "i" else (a, short)
            assert Run([f"s_cmpk_{relation}_{kind} s4, {hex(short)}"], shared={4: a}).wave.S[SCC] == int(compare(*pair))


def test_instructions_with_a_short_constant_extend_its_sign():
    for _ in range(40):
        a, short = number(32), int(rng.integers(1 << 16))
        run = Run([f"s_movk_i32 s2, {hex(short)}", f"s_mulk_i32 s4, {hex(short)}"], shared={4: a})
        assert run.s(2) == signed(short, 16) & M32 and run.s(4) == a * signed(short, 16) & M32
        run = Run([f"s_addk_i32 s4, {hex(short)}"], shared={4: a})
        value = signed(a, 32) + signed(short, 16)
        assert run.s(4) == value & M32 and run.wave.S[SCC] == int(not -(1 << 31) <= value < 1 << 31)


def test_choices_and_single_bits_of_shared_registers():
    for before in (0, 1) * 20:
        a, b, bit = number(64), number(64), int(rng.integers(64))
        given = words(4, a) | words(6, b) | {8: bit, SCC: before}
        lines = ["s_cselect_b32 s10, s4, s6", "s_cselect_b64 s[12:13], s[4:5], s[6:7]", "s_mov_b64 s[14:15], s[6:7]"]
        lines += ["s_cmov_b32 s14, s4", "s_bitset1_b32 s4, s8", "s_bitset0_b64 s[6:7], s8"]
        run = Run(lines, shared=given)
        assert run.s(10) == (a if before else b) & M32 and run.s(12, 2) == (a if before else b)
        assert run.s(14, 2) == (b & ~M32 | a & M32 if before else b)
        assert run.s(4) == (a | 1 << bit % 32) & M32 and run.s(6, 2) == b & ~(1 << bit)
        for name, bits, want in (("s_bitcmp0_b32", 32, 0), ("s_bitcmp1_b64", 64, 1)):
            found = Run([f"{name} {shared(4, bits)}, s8"], shared=given).wave.S[SCC]
            assert found == int((a & ((1 << bits) - 1)) >> bit % bits & 1 == want)


SAVED = {**LOGIC, "andn1": lambda a, b: ~a & b, "orn1": lambda a, b: ~a | b}


@pytest.mark.parametrize("name", SAVED)
def test_lanes_are_chosen_and_those_before_are_saved(name):
    for _ in range(20):
        before, a = int(rng.integers(1, M64, dtype=np.uint64)), number(64)
        new = SAVED[name](a, before) & M64
        run = Run([f"s_{name}_saveexec_b64 s[2:3], s[4:5]"], shared=words(4, a), mask=before)
        assert run.s(2, 2) == before and run.wave.exec() == run.s(EXEC, 2) == new and run.wave.S[SCC] == int(new != 0)
    run = Run([f"s_{name}_saveexec_b32 s2, s4"], shared={4: 0x0F0F}, mask=0x00FF, width=32)
    assert run.s(2) == 0xFF and run.wave.exec() == SAVED[name](0x0F0F, 0xFF) & M32


# ---- parts of the lanes' registers (SDWA)
PARTS = {
    "BYTE_0": (0, 8),
    "BYTE_1": (8, 8),
    "BYTE_2": (16, 8),
    "BYTE_3": (24, 8),
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
    "DWORD": (0, 32),
}


def lanes_of_bits():
    return rng.integers(0, 1 << 32, 64, np.uint64).astype(np.uint32)


def picked(x, part, is_signed):
    shift, bits = PARTS[part]
    x = int(x) >> shift & ((1 << bits) - 1)
    return (signed(x, bits) if is_signed and part != "DWORD" else x) & M32


def placed(old, value, part, unused):
    shift, bits = PARTS[part]
    mask = (1 << bits) - 1
    if unused == "UNUSED_PRESERVE":
        return int(old) & ~(mask << shift) & M32 | (value & mask) << shift
    return (signed(value, bits) << shift if unused == "UNUSED_SEXT" else (value & mask) << shift) & M32


def random_parts():
    return [str(rng.choice(list(PARTS))) for _ in range(3)], str(rng.choice(["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"]))


@pytest.mark.parametrize(
    "name, function",
    [("add_u32", lambda a, b: a + b), ("or_b32", lambda a, b: a | b), ("lshlrev_b32", lambda a, b: b << a % 32)],
)
def test_parts_of_registers_are_operands_and_results(name, function):
    for _ in range(60):
        a, b, old = lanes_of_bits(), lanes_of_bits(), lanes_of_bits()
        (first, second, target), unused = random_parts()
        signs = rng.random(2) < 0.5
        texts = [f"sext({v})" if minus else v for v, minus in zip(("v8", "v10"), signs, strict=True)]
        how = f"dst_sel:{target} dst_unused:{unused} src0_sel:{first} src1_sel:{second}"
        found = Run([f"v_{name}_sdwa v4, {', '.join(texts)} {how}"], lanes={4: old, 8: a, 10: b}).v(4)
        for x, y, before, out in zip(a, b, old, found, strict=True):
            value = function(picked(x, first, signs[0]), picked(y, second, signs[1])) & M32
            assert int(out) == placed(before, value, target, unused), how


def test_a_part_of_a_shared_register_is_an_operand():
    a, value = lanes_of_bits(), number(32)
    run = Run(
        ["v_add_u32_sdwa v4, s4, v8 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2 src1_sel:WORD_1"],
        lanes={8: a},
        shared={4: value},
    )
    assert run.v(4).tolist() == [(int(x) >> 16) + (value >> 16 & 0xFF) for x in a]


@pytest.mark.parametrize("name", ["add_co", "sub_co", "subrev_co", "addc_co", "subb_co"])
def test_sums_of_parts_have_a_carry(name):
    for _ in range(30):
        a, b, before = lanes_of_bits(), lanes_of_bits(), number(64)
        (first, second, _), _ = random_parts()
        more = ", vcc" if name in ("addc_co", "subb_co") else ""
        line = f"v_{name}_u32_sdwa v4, vcc, v8, sext(v10){more} dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:{first} src1_sel:{second}"
        run = Run([line], lanes={8: a, 10: b}, shared=words(106, before))
        carries = 0
        for k, out in enumerate(run.v(4)):
            x, y = picked(a[k], first, False), picked(b[k], second, True)
            carry = before >> k & 1 if more else 0
            value = x + y + carry if "add" in name else y - x if "rev" in name else x - y - carry
            assert int(out) == value & M32
            carries |= int(not 0 <= value <= M32) << k
        assert run.s(106, 2) == carries
    with pytest.raises(UnknownInstruction):
        Run([f"v_{name}_u32_sdwa v4, vcc, v8, v10{more} dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD"])
