"""Instructions that compute lane by lane, at random and special values, against Python's integers, fractions and NumPy.

Those that the hardware approximates (``v_exp_f32`` and its like) have no exact result to compare with.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from qdrun.tests.devices.amdgpu.faults import UnknownInstruction
from qdrun.tests.devices.amdgpu.writing.lane_table import OPERATIONS, SATURATED

from .emulator_harness import Run

rng = np.random.default_rng()
M32, M64 = (1 << 32) - 1, (1 << 64) - 1
DTYPES = {"u": "u4", "i": "i4", "f": "f4", "q": "u8", "l": "i8", "d": "f8", "h": "u2", "j": "i2", "e": "f2"}
FLOAT_VALUES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, 1e-8, 6e-8, 1e-40, 3e4, 65504.0, 1e20, math.inf, -math.inf, math.nan]
SPECIAL = {
    "u4": [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, M32, 0xFFFF, 0x10000],
    "i4": [0, 1, -1, 31, 32, 0x7FFFFFFF, -0x80000000, -0x7FFFFFFF],
    "u8": [0, 1, M32, 1 << 32, 1 << 63, M64, (1 << 63) - 1],
    "i8": [0, 1, -1, 1 << 32, -(1 << 63), (1 << 63) - 1],
    "u2": [0, 1, 15, 16, 0x7FFF, 0x8000, 0xFFFF],
    "i2": [0, 1, -1, 15, 16, 0x7FFF, -0x8000],
    "f4": FLOAT_VALUES,
    "f8": FLOAT_VALUES,
    "f2": FLOAT_VALUES,
}


def values(letter):
    """64 values of a type: special ones, and random bits or magnitudes."""
    dtype = np.dtype(DTYPES[letter])
    with np.errstate(over="ignore"):
        special = np.array(SPECIAL[DTYPES[letter]], dtype)
    if dtype.kind == "f":
        bits = rng.integers(0, 256, 64 * dtype.itemsize, np.uint8).view(dtype)
        with np.errstate(over="ignore"):
            random = np.where(
                rng.random(64) < 0.5, bits, (rng.standard_normal(64) * 10.0 ** rng.integers(-3, 4, 64)).astype(dtype)
            )
    else:
        random = rng.integers(0, 256, 64 * dtype.itemsize, np.uint8).view(dtype)
    out = random.astype(dtype)
    places = rng.permutation(64)[:32]
    out[places] = rng.choice(special, 32)
    return out


def signed(x, bits):
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def field(x, first, count, is_signed):
    first, count = first & 31, count & 31
    found = (x >> first) & ((1 << count) - 1)
    return found - (1 << count) if is_signed and count and found >> (count - 1) else found


def permuted(high, low, choice):
    both, out = high << 32 | low, 0
    for k in range(4):
        which = choice >> 8 * k & 255
        byte = (
            both >> 8 * which & 255
            if which < 8
            else 255 * (both >> (16 * (which - 8) + 15) & 1)
            if which < 12
            else 0
            if which == 12
            else 255
        )
        out |= byte << 8 * k
    return out


def leading(x, bits=32):
    return bits - x.bit_length() if x else M32


INTEGERS = {
    "add_u32 add_nc_u32 add_nc_i32 add_i32 add_u64 add_nc_u64 add_u16 add_nc_u16 add_i16 add_nc_i16": lambda a, b: a + b,
    "sub_u32 sub_nc_u32 sub_nc_i32 sub_i32 sub_u16 sub_nc_u16 sub_i16 sub_nc_i16": lambda a, b: a - b,
    "subrev_u32 subrev_nc_u32 subrev_u16": lambda a, b: b - a,
    "and_b32 and_b16": lambda a, b: a & b,
    "or_b32 or_b16": lambda a, b: a | b,
    "xor_b32 xor_b16": lambda a, b: a ^ b,
    "xnor_b32": lambda a, b: ~(a ^ b),
    "not_b32 not_b16": lambda a: ~a,
    "mov_b32 mov_b64 mov_b16 accvgpr_read_b32 accvgpr_write_b32 accvgpr_mov_b32 accvgpr_read accvgpr_write": lambda a: a,
    "min_u32 min_i32 min_u16 min_i16": min,
    "max_u32 max_i32 max_u16 max_i16": max,
    "min3_u32 min3_i32 min3_u16 min3_i16": min,
    "max3_u32 max3_i32 max3_u16 max3_i16": max,
    "med3_u32 med3_i32 med3_u16 med3_i16": lambda a, b, c: sorted((a, b, c))[1],
    "mul_lo_u32 mul_lo_i32 mul_lo_u16": lambda a, b: a * b,
    "mul_hi_u32 mul_hi_i32": lambda a, b: a * b >> 32,
    "mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "mul_i32_i24": lambda a, b: signed(a, 24) * signed(b, 24),
    "mul_hi_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32,
    "mul_hi_i32_i24": lambda a, b: signed(a, 24) * signed(b, 24) >> 32,
    "mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "mad_i32_i24": lambda a, b, c: signed(a, 24) * signed(b, 24) + c,
    "mad_u16 mad_i16 mad_legacy_u16 mad_u32_u16 mad_i32_i16": lambda a, b, c: a * b + c,
    "lshlrev_b32": lambda a, b: b << (a & 31),
    "lshrrev_b32 ashrrev_i32": lambda a, b: b >> (a & 31),
    "lshlrev_b64": lambda a, b: b << (a & 63),
    "lshrrev_b64 ashrrev_i64": lambda a, b: b >> (a & 63),
    "lshlrev_b16": lambda a, b: b << (a & 15),
    "lshrrev_b16 ashrrev_i16": lambda a, b: b >> (a & 15),
    "add3_u32": lambda a, b, c: a + b + c,
    "lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "add_lshl_u32": lambda a, b, c: (a + b) << (c & 31),
    "lshl_or_b32": lambda a, b, c: (a << (b & 31)) | c,
    "and_or_b32": lambda a, b, c: (a & b) | c,
    "or3_b32": lambda a, b, c: a | b | c,
    "xor3_b32": lambda a, b, c: a ^ b ^ c,
    "xad_u32": lambda a, b, c: (a ^ b) + c,
    "lshl_add_u64": lambda a, b, c: (a << (b & 7)) + c,
    "bfe_u32": lambda a, b, c: field(a, b, c, False),
    "bfe_i32": lambda a, b, c: field(a, b, c, True),
    "bfi_b32": lambda a, b, c: (a & b) | (~a & c),
    "bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
    "alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "perm_b32": permuted,
    "bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "ffbh_u32 clz_i32_u32": leading,
    "ffbh_i32 cls_i32": lambda a: leading(~a if a < 0 else a),
    "ffbl_b32 ctz_i32_b32": lambda a: (a & -a).bit_length() - 1 if a else M32,
    "bcnt_u32_b32": lambda a, b: a.bit_count() + b,
    "pack_b32_f16": lambda a, b: a | b << 16,
    "cvt_u32_u16 cvt_i32_i16": lambda a: a,
}
EXACT = {f"v_{name}": function for names, function in INTEGERS.items() for name in names.split()}


def run_one(name, op, given, mask=None, more="", shared=()):
    """The result of one instruction whose operands are in v[8:9], v[10:11], v[12:13], or, with their bits in ``shared`` by their places, in
    s[8:9], ..; v[4:5] gets it.
    """
    files = ["s" if k in shared else "v" for k in range(len(op.operands))]
    texts = [
        f"{f}[{8 + 2 * k}:{9 + 2 * k}]" if t in "qld" else f"{f}{8 + 2 * k}" for k, (f, t) in enumerate(zip(files, op.operands))
    ]
    words = {8 + 2 * k + half: bits >> 32 * half for k, bits in dict(shared).items() for half in (0, 1)}
    target = "v[4:5]" if op.result in "qld" else "v4"
    lanes = {8 + 2 * k: x for k, x in enumerate(given)}
    if op.tied:
        lanes[4], texts = lanes.pop(8 + 2 * (len(given) - 1)), texts[:-1]
    run = Run([f"{name} {', '.join([target, *texts])}{more}"], lanes=lanes, mask=mask, shared=words)
    return run.v(8 if op.result in "hje" else 4, op.result)


@pytest.mark.parametrize("name", sorted(EXACT))
def test_integers_are_those_of_python(name):
    op = OPERATIONS[name]
    given = [values(t) for t in op.operands]
    got = run_one(name, op, given)
    size = 8 * got.dtype.itemsize
    want = [EXACT[name](*map(int, row)) & ((1 << size) - 1) for row in zip(*given, strict=True)]
    assert [int(x) & ((1 << size) - 1) for x in got] == want


@pytest.mark.parametrize("name", sorted(SATURATED))
def test_sums_with_clamp_stay_in_range(name):
    op = SATURATED[name]
    given = [values(t) for t in op.operands]
    got = run_one(name, op, given, more=" clamp")
    limits = np.iinfo(got.dtype)
    want = [min(max(EXACT[name](*map(int, row)), limits.min), limits.max) for row in zip(*given, strict=True)]
    assert got.tolist() == want


def rounded(x, dtype):
    """The float nearest to a fraction, ties to even: by its integer mantissa."""
    bits = {2: (11, -24, 65504.0), 4: (24, -149, 3.4028234663852886e38), 8: (53, -1074, 1.7976931348623157e308)}[dtype.itemsize]
    if x == 0:
        return 0.0
    exponent = max(math.floor(math.log2(abs(x.numerator)) - math.log2(x.denominator)) - bits[0] - 1, bits[1] - 2)
    while abs(x) >= Fraction(2) ** (exponent + bits[0]):
        exponent += 1
    exponent = max(exponent, bits[1])
    scaled = x / Fraction(2) ** exponent
    whole = round(scaled)  # ties to even
    value = whole * Fraction(2) ** exponent
    return (math.inf if x > 0 else -math.inf) if abs(value) > Fraction(bits[2]) else float(value)


FLOATS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "subrev": lambda a, b: b - a, "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c, "fmac": lambda a, b, c: a * b + c,
}  # fmt: skip


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("name", sorted(FLOATS))
def test_sums_and_products_are_rounded_once(name, bits):
    op = OPERATIONS[f"v_{name}_f{bits}"]
    given = [values(t) for t in op.operands]
    got = run_one(f"v_{name}_f{bits}", op, given)
    checked = 0
    for row, out in zip(zip(*given, strict=True), got, strict=True):
        if all(np.isfinite(row)):
            want = FLOATS[name](*(Fraction(float(x)) for x in row))
            assert float(out) == rounded(want, got.dtype), (row, out)
            checked += 1
        else:
            with np.errstate(all="ignore"):
                plain = FLOATS[name](*(np.longdouble(x) for x in row)).astype(got.dtype)  # products of finite ones are finite
            assert np.array_equal(out, plain, equal_nan=True)
    assert checked > 10


NUMPY = {
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rndne": np.rint, "sqrt": np.sqrt, "rcp": lambda x: x.dtype.type(1) / x,
    "min": np.fmin, "max": np.fmax,
}  # fmt: skip


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("name", sorted(NUMPY))
def test_functions_are_those_of_numpy(name, bits):
    op = OPERATIONS[f"v_{name}_f{bits}"]
    given = [values(t) for t in op.operands]
    with np.errstate(all="ignore"):
        want = NUMPY[name](*given)
    assert np.array_equal(run_one(f"v_{name}_f{bits}", op, given), want, equal_nan=True)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_a_zero_with_a_minus_is_below_one_without(bits):
    zeros = np.array([0.0, -0.0] * 32, f"f{bits // 8}")
    for name, want in (("min", True), ("max", False)):
        op = OPERATIONS[f"v_{name}_f{bits}"]
        for given in ((zeros, -zeros), (-zeros, zeros)):
            assert (np.signbit(run_one(f"v_{name}_f{bits}", op, list(given))) == want).all()


@pytest.mark.parametrize("bits", [32, 64])
def test_a_division_by_steps_is_rounded_once(bits):
    kind = "d" if bits == 64 else "f"
    pair = (lambda k: f"v[{k}:{k + 1}]") if bits == 64 else (lambda k: f"v{k}")
    va, vb, lower, upper, x, e, q = (pair(k) for k in (8, 10, 12, 14, 16, 18, 20))
    better = [f"v_fma_f{bits} {e}, -{lower}, {x}, 1.0", f"v_fma_f{bits} {x}, {e}, {x}, {x}"]
    closer = [f"v_fma_f{bits} {e}, -{lower}, {q}, {upper}", f"v_fma_f{bits} {q}, {e}, {x}, {q}"]
    lines = [  # as LLVM has them
        f"v_div_scale_f{bits} {lower}, s[0:1], {vb}, {vb}, {va}",
        f"v_rcp_f{bits} {x}, {lower}",
        f"v_div_scale_f{bits} {upper}, vcc, {va}, {vb}, {va}",
        *(better * (2 if bits == 64 else 1)),
        f"v_mul_f{bits} {q}, {upper}, {x}",
        *(closer if bits == 32 else []),
        f"v_fma_f{bits} {e}, -{lower}, {q}, {upper}",
        f"v_div_fmas_f{bits} {q}, {e}, {x}, {q}",
        f"v_div_fixup_f{bits} {q}, {q}, {vb}, {va}",
    ]
    for _ in range(20):
        a, b = values(kind), values(kind)
        got = Run(lines, lanes={8: a, 10: b}).v(20, kind)
        with np.errstate(all="ignore"):
            want = a / b
        assert np.array_equal(got, want, equal_nan=True)


CONVERSIONS = [name for name in OPERATIONS if name.startswith("v_cvt_") and "_" in name[6:] and name.count("_") == 3]
WIDE = {"f32", "f64", "f16", "u32", "i32", "u16", "i16"}


@pytest.mark.parametrize("name", [n for n in CONVERSIONS if set(n.split("_")[2:]) <= WIDE])
def test_conversions_saturate_and_round(name):
    op = OPERATIONS[name]
    given = values(op.operands)
    got = run_one(name, op, [given])
    for x, out in zip(given, got, strict=True):
        if got.dtype.kind == "f":
            with np.errstate(over="ignore"):
                assert np.array_equal(out, got.dtype.type(x), equal_nan=True)
        elif not np.isfinite(x):
            limits = np.iinfo(got.dtype)
            assert out == (0 if np.isnan(x) else limits.max if x > 0 else limits.min)
        else:
            limits = np.iinfo(got.dtype)
            assert out == min(max(math.trunc(float(x)), limits.min), limits.max)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_lanes_that_take_no_part_keep_their_registers(name):
    op = OPERATIONS[name]
    given = [values(t) for t in op.operands]
    whole = run_one(name, op, given)
    mask = int(rng.integers(1, M64, dtype=np.uint64))
    part = run_one(name, op, given, mask)
    taking_part = np.array([mask >> k & 1 for k in range(64)], bool)
    unsigned = f"u{whole.dtype.itemsize}"
    assert np.array_equal(part.view(unsigned)[taking_part], whole.view(unsigned)[taking_part])
    if not op.tied:
        empty = Run([], mask=mask).v(8 if op.result in "hje" else 4, op.result)
        assert np.array_equal(part.view(unsigned)[~taking_part], empty.view(unsigned)[~taking_part])


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_an_operand_may_be_a_shared_register(name):
    op = OPERATIONS[name]
    for place in range(len(op.operands) - op.tied):
        given = [values(t) for t in op.operands]
        given[place][:] = given[place][0]
        bits = int(given[place].view(f"u{given[place].dtype.itemsize}")[0])
        assert_same_bits(run_one(name, op, given, shared={place: bits}), run_one(name, op, given))


def assert_same_bits(a, b):
    unsigned = f"u{a.dtype.itemsize}"
    same = a.view(unsigned) == b.view(unsigned)
    if a.dtype.kind == "f":  # numpy gives another NaN, or another zero of two, where it computes a value in a vector's rest
        same |= (np.isnan(a) & np.isnan(b)) | ((a == 0) & (b == 0))
    assert same.all()


RELATIONS = {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}  # fmt: skip
OF_FLOATS = {
    **{k: v for k, v in RELATIONS.items() if k != "ne"},
    "neq": RELATIONS["ne"], "lg": lambda a, b: a < b or a > b,
    "o": lambda a, b: not (math.isnan(a) or math.isnan(b)), "u": lambda a, b: math.isnan(a) or math.isnan(b),
    "nlt": lambda a, b: not a < b, "nle": lambda a, b: not a <= b,
    "ngt": lambda a, b: not a > b, "nge": lambda a, b: not a >= b, "nlg": lambda a, b: not (a < b or a > b),
}  # fmt: skip
LETTERS = {"u32": "u", "i32": "i", "f32": "f", "u64": "q", "i64": "l", "f64": "d", "u16": "h", "i16": "j", "f16": "e"}


@pytest.mark.parametrize("relation, kind", [(r, k) for k in LETTERS for r in (OF_FLOATS if k[0] == "f" else RELATIONS)])
def test_comparisons_set_the_bits_of_lanes_that_take_part(relation, kind):
    a, b = values(LETTERS[kind]), values(LETTERS[kind])
    same = rng.random(64) < 0.3
    b = np.where(same, a, b)
    texts = ("v[8:9]", "v[10:11]") if kind.endswith("64") else ("v8", "v10")
    mask = int(rng.integers(1, M64, dtype=np.uint64))
    table = OF_FLOATS if kind[0] == "f" else RELATIONS
    bits = sum(1 << k for k in range(64) if table[relation](a[k], b[k]))
    for chosen in (M64, mask):
        lines = [
            f"v_cmp_{relation}_{kind}_e32 vcc, {texts[0]}, {texts[1]}",
            f"v_cmp_{relation}_{kind}_e64 s[4:5], {texts[0]}, {texts[1]}",
        ]
        run = Run(lines, lanes={8: a, 10: b}, mask=chosen)
        assert run.s(106, 2) == run.s(4, 2) == bits & chosen
        run = Run([f"v_cmpx_{relation}_{kind} exec, {texts[0]}, {texts[1]}"], lanes={8: a, 10: b}, mask=chosen)
        assert run.wave.exec() == bits & chosen


@pytest.mark.parametrize("bits, least", [(16, 2.0**-14), (32, 2.0**-126), (64, 2.0**-1022)])
def test_classes_of_floats(bits, least):
    """NaN are 0 (signalling) and 1, then from minus infinity to infinity: infinite, normal, subnormal, zero, and the same back."""
    kind = {16: "e", 32: "f", 64: "d"}[bits]
    a, chosen = values(kind), int(rng.integers(1024)) & ~3 | int(rng.choice([0, 3]))

    def number(x):
        x = float(x)
        if math.isnan(x):
            return 0
        side = 3 if math.isinf(x) else 2 if abs(x) >= least else 1 if x else 0
        return 6 + side if math.copysign(1.0, x) > 0 else 5 - side

    text, pair = ("v[8:9]", "s[8:9]") if bits == 64 else ("v8", "s8")
    run = Run([f"v_cmp_class_f{bits}_e64 s[4:5], {text}, v12"], lanes={8: a, 12: np.full(64, chosen, np.uint32)})
    assert run.s(4, 2) == sum(1 << k for k in range(64) if chosen >> number(a[k]) & 1)
    word = int(a.view(f"u{bits // 8}")[0])
    run = Run(
        [f"v_cmp_class_f{bits}_e64 s[4:5], {pair}, v12"],
        lanes={12: np.full(64, chosen, np.uint32)},
        shared={8: word, 9: word >> 32},
    )
    assert run.s(4, 2) == (M64 if chosen >> number(a[0]) & 1 else 0)


def test_what_is_not_known_says_its_name_and_does_not_stay():
    with pytest.raises(UnknownInstruction, match="does not know `v_mfma_f32_4x4x1f32 v0, v1, v2, v3`\n  do: report"):
        Run(["v_mfma_f32_4x4x1f32 v0, v1, v2, v3"])
    assert Run(["v_mov_b32_e32 v4, 7"]).v(4).tolist() == [7] * 64
