"""The table of instructions that compute each lane's result from that lane's operands: their types, and the function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..values import conversions as c
from ..values import floats as f
from ..values import integers as n
from ..values.fused import fma16, fma32, fma64

_TYPES = {
    "u": np.uint32, "i": np.int32, "f": np.float32, "q": np.uint64, "l": np.int64, "d": np.float64, "h": np.uint16, "j": np.int16,
    "e": np.float16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation:
    """An instruction: the letter of its result's type, those of its operands, and the function.

    Attributes:
        tied: the last operand is the register of the result.
        keeps: on GFX9, a 16-bit result leaves the other half of its register as it is.
    """

    result: str
    operands: str
    function: Callable[..., Any]
    tied: bool = False
    keeps: bool = False


OPERATIONS: dict[str, Operation] = {}


def _add(names: str, types: str, function: Callable[..., Any], tied: bool = False, keeps: bool = False) -> None:
    for name in names.split():
        OPERATIONS[f"v_{name}"] = Operation(types[0], types[1:], function, tied, keeps)


def _add_extremes(suffix: str, letter: str, keeps: bool = False) -> None:
    _add(f"min_{suffix}", letter * 3, np.minimum)
    _add(f"max_{suffix}", letter * 3, np.maximum)
    for name, function in (("min3", n.minimum3), ("max3", n.maximum3), ("med3", n.median3)):
        _add(f"{name}_{suffix}", letter * 4, function, keeps=keeps)


def _add_floats() -> None:
    for kind, bits in (("e", 16), ("f", 32), ("d", 64)):
        one, two, three = kind * 2, kind * 3, kind * 4
        fma = {"e": fma16, "f": fma32, "d": fma64}[kind]
        _add(f"add_f{bits}", two, np.add)
        _add(f"sub_f{bits}", two, np.subtract)
        _add(f"subrev_f{bits}", two, n.reversed_difference)
        _add(f"mul_f{bits}", two, np.multiply)
        _add(f"min_f{bits} min_num_f{bits}", two, f.minimum)
        _add(f"max_f{bits} max_num_f{bits}", two, f.maximum)
        _add(f"fma_f{bits}", three, fma, keeps=True)
        _add(f"fmac_f{bits}", three, fma, tied=True, keeps=True)
        _add(f"fmaak_f{bits} fmamk_f{bits}", three, fma, keeps=True)
        for name, function in (
            ("floor", np.floor),
            ("ceil", np.ceil),
            ("trunc", np.trunc),
            ("rndne", np.rint),
            ("fract", f.fract),
        ):
            _add(f"{name}_f{bits}", one, function)
        _add(f"sqrt_f{bits}", one, np.sqrt)
        _add(f"rcp_f{bits} rcp_iflag_f{bits}", one, f.reciprocal)
        _add(f"rsq_f{bits}", one, f.reciprocal_root)
        _add(f"frexp_mant_f{bits}", one, f.mantissa)
        _add(f"frexp_exp_{'i16' if bits == 16 else 'i32'}_f{bits}", ("j" if bits == 16 else "i") + kind, f.binary_exponent)
        _add(f"ldexp_f{bits}", kind * 2 + ("j" if bits == 16 else "i"), f.scaled)
        _add(f"div_fixup_f{bits}", three, f.division_result, keeps=True)
    for kind, bits in (("e", 16), ("f", 32)):
        for name, function in (("exp", f.exp2), ("log", f.log2), ("sin", f.sine), ("cos", f.cosine)):
            _add(f"{name}_f{bits}", kind * 2, function)
        for name, function in (("min3", f.minimum3), ("max3", f.maximum3), ("med3", f.median3)):
            _add(f"{name}_f{bits} {name}_num_f{bits}", kind * 4, function, keeps=True)
    _add("mul_legacy_f32 mul_dx9_zero_f32", "fff", f.legacy_product)
    _add("mac_f32 mad_f32", "ffff", n.sum_product)
    OPERATIONS["v_mac_f32"] = Operation("f", "fff", n.sum_product, tied=True)


def _add_integers() -> None:
    _add("add_u32 add_nc_u32 add_nc_i32 add_i32", "uuu", np.add)
    _add("sub_u32 sub_nc_u32 sub_nc_i32 sub_i32", "uuu", np.subtract)
    _add("subrev_u32 subrev_nc_u32", "uuu", n.reversed_difference)
    _add("add_u64 add_nc_u64", "qqq", np.add)
    _add("and_b32", "uuu", np.bitwise_and)
    _add("or_b32", "uuu", np.bitwise_or)
    _add("xor_b32", "uuu", np.bitwise_xor)
    _add("xnor_b32", "uuu", n.xnor)
    _add("not_b32", "uu", np.invert)
    _add("mov_b32 accvgpr_read_b32 accvgpr_write_b32 accvgpr_mov_b32 accvgpr_read accvgpr_write", "uu", n.copied)
    _add("mov_b64", "qq", n.copied)
    _add_extremes("u32", "u")
    _add_extremes("i32", "i")
    _add("mul_lo_u32 mul_lo_i32", "uuu", np.multiply)
    _add("mul_hi_u32", "uuu", n.high_u32)
    _add("mul_hi_i32", "iii", n.high_i32)
    _add("mul_u32_u24", "uuu", n.product_u24)
    _add("mul_i32_i24", "uuu", n.product_i24)
    _add("mul_hi_u32_u24", "uuu", n.high_u24)
    _add("mul_hi_i32_i24", "uuu", n.high_i24)
    _add("mad_u32_u24", "uuuu", n.sum_product_u24)
    _add("mad_i32_i24", "uuuu", n.sum_product_i24)
    _add("lshlrev_b32", "uuu", n.shifted_left)
    _add("lshrrev_b32", "uuu", n.shifted_right)
    _add("ashrrev_i32", "iui", n.shifted_right)
    _add("lshlrev_b64", "quq", n.shifted_left)
    _add("lshrrev_b64", "quq", n.shifted_right)
    _add("ashrrev_i64", "lul", n.shifted_right)
    _add("add3_u32", "uuuu", n.sum3)
    _add("lshl_add_u32", "uuuu", n.shift_add)
    _add("add_lshl_u32", "uuuu", n.add_shift)
    _add("lshl_or_b32", "uuuu", n.shift_or)
    _add("and_or_b32", "uuuu", n.and_or)
    _add("or3_b32", "uuuu", n.or3)
    _add("xor3_b32", "uuuu", n.xor3)
    _add("xad_u32", "uuuu", n.xor_add)
    _add("lshl_add_u64", "qquq", n.shift_add_wide)
    _add("bfe_u32", "uuuu", n.field_u32)
    _add("bfe_i32", "uuuu", n.field_i32)
    _add("bfi_b32", "uuuu", n.field_insert)
    _add("bfm_b32", "uuu", n.field_mask)
    _add("alignbit_b32", "uuuu", n.aligned_bits)
    _add("alignbyte_b32", "uuuu", n.aligned_bytes)
    _add("perm_b32", "uuuu", n.permuted_bytes)
    _add("bfrev_b32", "uu", n.reversed_bits)
    _add("ffbh_u32 clz_i32_u32", "uu", n.leading_zeros)
    _add("ffbh_i32 cls_i32", "ui", n.leading_signs)
    _add("ffbl_b32 ctz_i32_b32", "uu", n.trailing_zeros)
    _add("bcnt_u32_b32", "uuu", n.ones_added)


def _add_halves() -> None:
    _add("add_u16 add_nc_u16 add_i16 add_nc_i16", "hhh", np.add)
    _add("sub_u16 sub_nc_u16 sub_i16 sub_nc_i16", "hhh", np.subtract)
    _add("subrev_u16", "hhh", n.reversed_difference)
    _add("mul_lo_u16", "hhh", np.multiply)
    _add("mad_u16 mad_i16 mad_legacy_u16", "hhhh", n.sum_product, keeps=True)
    _add("and_b16", "hhh", np.bitwise_and)
    _add("or_b16", "hhh", np.bitwise_or)
    _add("xor_b16", "hhh", np.bitwise_xor)
    _add("not_b16", "hh", np.invert)
    _add("mov_b16", "hh", n.copied)
    _add("lshlrev_b16", "hhh", n.shifted_left)
    _add("lshrrev_b16", "hhh", n.shifted_right)
    _add("ashrrev_i16", "jhj", n.shifted_right)
    _add_extremes("u16", "h", keeps=True)
    _add_extremes("i16", "j", keeps=True)
    _add("pack_b32_f16", "uhh", n.packed)
    _add("mad_u32_u16", "uhhu", lambda a, b, x: a.astype(np.uint32) * b.astype(np.uint32) + x)
    _add("mad_i32_i16", "ujji", lambda a, b, x: (a.astype(np.int32) * b.astype(np.int32) + x).view(np.uint32))


def _add_conversions() -> None:
    letters = {"f32": "f", "f64": "d", "f16": "e", "u32": "u", "i32": "i", "u16": "h", "i16": "j"}
    pairs = "f32_f64 f64_f32 f32_f16 f16_f32 f32_u32 f32_i32 f64_u32 f64_i32 f16_u16 f16_i16"
    for pair in pairs.split():
        to, source = pair.split("_")
        _add(f"cvt_{pair}", letters[to] + letters[source], c.to_type(_TYPES[letters[to]]))
    for pair in "u32_f32 i32_f32 u32_f64 i32_f64 u16_f16 i16_f16".split():
        to, source = pair.split("_")
        _add(f"cvt_{pair}", letters[to] + letters[source], c.to_integer(_TYPES[letters[to]]))
    for byte in range(4):
        _add(f"cvt_f32_ubyte{byte}", "fu", c.byte_to_float(byte))
    _add("cvt_flr_i32_f32 cvt_floor_i32_f32", "if", c.rounded_down)
    _add("cvt_rpi_i32_f32 cvt_nearest_i32_f32", "if", c.rounded_near)
    _add("cvt_pkrtz_f16_f32 cvt_pk_rtz_f16_f32", "uff", c.two_halves)
    _add("cvt_u32_u16", "uh", c.to_type(np.uint32))
    _add("cvt_i32_i16", "ij", c.to_type(np.int32))


_add_floats()
_add_integers()
_add_halves()
_add_conversions()

SATURATED: dict[str, Operation] = {
    f"v_{name}": Operation(letter, letter * 2, n.saturated(name))
    for letter, names in {
        "u": "add_u32 add_nc_u32 sub_u32 sub_nc_u32 subrev_u32 subrev_nc_u32",
        "i": "add_i32 add_nc_i32 sub_i32 sub_nc_i32",
        "h": "add_u16 add_nc_u16 sub_u16 sub_nc_u16",
        "j": "add_i16 add_nc_i16 sub_i16 sub_nc_i16",
    }.items()
    for name in names.split()
}
"""What the same instructions do with the modifier ``clamp``."""
