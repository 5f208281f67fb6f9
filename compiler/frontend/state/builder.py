"""The builder of the front end: an ``ir.builder.Builder`` that also knows the kernel's default types and checks."""

from __future__ import annotations

from ...ir.builder import Builder
from ...ir.nodes import Block
from ...ir.types import DType, f32, i32


class FrontBuilder(Builder):
    """The builder that every lowering function of the front end gets as ``b``.

    Attributes:
        default_fp: the type of a float literal.
        default_ip: the type of an integer literal.
        debug: whether the user's asserts are compiled.
        check_bounds: whether every index is checked at run time.
        check_overflow: whether integer operations are.
        nan_check: whether operations that compute a NaN or an infinity are detected, including those on literals.
    """

    def __init__(
        self,
        block: Block,
        default_fp: DType = f32,
        default_ip: DType = i32,
        debug: bool = False,
        check_bounds: bool = False,
        check_overflow: bool = False,
        nan_check: bool = False,
    ) -> None:
        super().__init__(block)
        self.default_fp = default_fp
        self.default_ip = default_ip
        self.debug = debug
        self.check_bounds = check_bounds
        self.check_overflow = check_overflow
        self.nan_check = nan_check
