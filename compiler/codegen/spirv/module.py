"""A SPIR-V module that is being written: sections of words, types and constants once each, capabilities where they are used."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable

from ..text.lines import float_of
from .features import Features, MissingFeature, Untranslated
from .opcodes import (
    GL_COMPUTE,
    GLSL450,
    MAGIC,
    PHYSICAL_STORAGE_BUFFER_64,
    VERSION,
    BuiltIn,
    Capability,
    Decoration,
    Mode,
    Opcode,
    StorageClass,
)

BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "ptr": 64, "half": 16, "float": 32, "double": 64}
"""Bits of a type of the text; a pointer is an integer."""
FLOATS = {"half": "<e", "float": "<f", "double": "<d"}
"""How a float is packed."""
_CAPABILITY_OF = {
    "i8": ("int8", Capability.Int8),
    "i16": ("int16", Capability.Int16),
    "half": ("float16", Capability.Float16),
    "double": ("float64", Capability.Float64),
}
BLOCK_CONSTANT, TAPES_CONSTANT = 0, 1
"""Numbers of the specialisation constants: threads of a block, 4-byte words of the on-chip memory that the launch asks for."""


class SpirvModule:
    """Sections, ids, types, constants.

    Args:
        features: of the device.
        block: threads of a block unless the pipeline says otherwise.
    """

    def __init__(self, features: Features, block: int) -> None:
        self.features, self.block = features, block
        self.last = 0
        self._capabilities = {Capability.Shader: 0, Capability.Int64: 0, Capability.PhysicalStorageBufferAddresses: 0}
        self._extensions = ["SPV_KHR_physical_storage_buffer"]
        self._entries: list[int] = []
        self._annotations: list[int] = []
        self._globals: list[int] = []
        self._known: dict[object, int] = {}
        self.functions: list[int] = []
        self.own_functions: dict[str, list[int]] = {}  # that no text has, with the variables that they name
        self.floats: set[int] = set()  # bits of the floats that are used
        self.glsl = self.id()
        self._mains: list[int] = []

    def id(self) -> int:
        """A new id."""
        self.last += 1
        return self.last

    # -- what the device must have
    def require(self, feature: str, capability: int) -> None:
        """Declare a capability.

        Raises:
            MissingFeature: the device does not have the feature.
        """
        if not getattr(self.features, feature):
            raise MissingFeature(feature)
        self._capabilities[capability] = 0

    def extend(self, extension: str) -> None:
        """Declare an extension of SPIR-V."""
        if extension not in self._extensions:
            self._extensions.append(extension)

    # -- types
    def _global(self, opcode: int, *words: int) -> int:
        """An instruction of the module that defines an id, once."""

        def define() -> int:
            found = self.id()
            self._globals += [(len(words) + 2) << 16 | opcode, found, *words]
            return found

        return self._once((opcode, *words), define)

    def _once(self, key: object, make: Callable[[], int]) -> int:
        """The id of a key, which is made when it is first asked for."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = make()
        return found

    def type(self, name: str) -> int:
        """A type of the text in registers; integers have no sign."""
        return self._once(name, lambda: self._new_type(name))

    def _new_type(self, name: str) -> int:
        if name == "i1":
            return self._global(Opcode.TypeBool)
        if name == "void":
            return self._global(Opcode.TypeVoid)
        if name not in BITS:
            raise Untranslated
        if name in _CAPABILITY_OF:
            self.require(*_CAPABILITY_OF[name])
        bits = BITS[name]
        if name in FLOATS:
            self.floats.add(bits)
            return self._global(Opcode.TypeFloat, bits)
        return self._global(Opcode.TypeInt, bits, 0)

    def vector(self, name: str, n: int) -> int:
        """So many values of a type."""
        return self._global(Opcode.TypeVector, self.type(name), n)

    def pointer(self, storage: int, ty: int) -> int:
        """A pointer to a type, by its id."""
        return self._global(Opcode.TypePointer, storage, ty)

    def function_type(self, result: str, parameters: list[str]) -> int:
        """The type of a function."""
        return self._global(Opcode.TypeFunction, self.type(result), *map(self.type, parameters))

    def array(self, name: str, size: int) -> int:
        """The type of an array of so many values, a number or the id of a constant."""
        return self._global(Opcode.TypeArray, self.type(name), size)

    def in_memory(self, name: str) -> int:
        """A type of the text in the device's memory, as a pointer to it.

        Raises:
            MissingFeature: the device has no such values, or not in its memory.
        """

        def make() -> int:
            if BITS[name] == 8:
                self.require("storage8", Capability.StorageBuffer8BitAccess)
            elif BITS[name] == 16:
                self.require("storage16", Capability.StorageBuffer16BitAccess)
            return self.pointer(StorageClass.PhysicalStorageBuffer, self.type(name))

        return self._once(("in memory", name), make)

    # -- constants
    def number(self, value: int, name: str = "i32") -> int:
        """An integer of a type."""
        return self._once(("number", name, value), lambda: self._constant(name, value))

    def constant(self, name: str, text: str) -> int:
        """A literal of the text."""
        return self._once(("literal", name, text), lambda: self._literal(name, text))

    def _literal(self, name: str, text: str) -> int:
        if name == "i1":
            return self._with_type(Opcode.ConstantTrue if text in ("true", "1") else Opcode.ConstantFalse, self.type("i1"))
        if text in ("zeroinitializer", "null"):
            return self._constant(name, 0)
        if name not in FLOATS:
            return self._constant(name, int(text))
        if text.startswith("0xH"):
            return self._constant(name, int(text[3:], 16))
        return self._constant(name, int.from_bytes(struct.pack(FLOATS[name], float_of(text)), "little"))

    def _constant(self, name: str, bits: int) -> int:
        """A number by its bits: words with the low end first, a narrow one in the low bits of its word."""
        bits &= (1 << BITS[name]) - 1
        words = [bits] if BITS[name] <= 32 else [bits & 0xFFFFFFFF, bits >> 32]
        return self._once(("bits", name, bits), lambda: self._typed(Opcode.Constant, self.type(name), *words))

    def composite(self, ty: int, values: list[int]) -> int:
        """A constant of a type with several values."""
        return self._with_type(Opcode.ConstantComposite, ty, *values)

    def _with_type(self, opcode: int, ty: int, *words: int) -> int:
        """An instruction of the module whose type stands before its id, once."""
        return self._once((opcode, ty, *words), lambda: self._typed(opcode, ty, *words))

    def _typed(self, opcode: int, ty: int, *words: int) -> int:
        found = self.id()
        self._globals += [(len(words) + 3) << 16 | opcode, ty, found, *words]
        return found

    def specialised(self, number: int, value: int) -> int:
        """A 4-byte constant that the pipeline may choose."""

        def make() -> int:
            found = self._typed(Opcode.SpecConstant, self.type("i32"), value)
            self.decorate(found, Decoration.SpecId, number)
            return found

        return self._once(("specialised", number), make)

    # -- variables
    def variable(self, key: object, storage: int, ty: int) -> int:
        """A variable of the module, once."""
        return self._once(key, lambda: self._typed(Opcode.Variable, self.pointer(storage, ty), storage))

    def built_in(self, number: int) -> int:
        """The variable of three numbers that the launch sets."""
        key = ("built in", number)
        known = key in self._known
        found = self.variable(key, StorageClass.Input, self.vector("i32", 3))
        if not known:
            self.decorate(found, Decoration.BuiltIn, number)
        return found

    def threads(self) -> int:
        """The number of threads in a block: a constant of the pipeline."""
        return self.specialised(BLOCK_CONSTANT, self.block)

    def set_block(self) -> None:
        """Make that number the size of blocks."""
        one = self.number(1)
        size = self._with_type(Opcode.SpecConstantComposite, self.vector("i32", 3), self.threads(), one, one)
        self.decorate(size, Decoration.BuiltIn, BuiltIn.WorkgroupSize)

    def words(self, n: int) -> int:
        """The push constants: so many 8-byte words."""
        key = ("words", n)
        if key in self._known:
            return self._known[key]
        ty, size, laid_out = self.type("i64"), self.number(n), self.id()  # not the type of an array without a layout
        self._globals += [4 << 16 | Opcode.TypeArray, laid_out, ty, size]
        self.decorate(laid_out, Decoration.ArrayStride, 8)
        block = self._global(Opcode.TypeStruct, laid_out)
        self.decorate(block, Decoration.Block)
        self._annotations += [5 << 16 | Opcode.MemberDecorate, block, 0, Decoration.Offset, 0]
        return self.variable(key, StorageClass.PushConstant, block)

    def function_of(self, name: str) -> int:
        """The id of a function of the text, which may be written later."""
        return self._once(("function", name), self.id)

    # -- decorations
    def decorate(self, what: int, *words: int) -> None:
        """Say something of an id."""
        self._annotations += [(len(words) + 2) << 16 | Opcode.Decorate, what, *words]

    # -- the whole
    def entry(self, function: int, name: str, variables: list[int]) -> None:
        """Make a function an entry point. ``variables``: of the module, all that it or a function that it calls names."""
        words = _string(name)
        self._mains.append(function)
        self._entries += [(3 + len(words) + len(variables)) << 16 | Opcode.EntryPoint, GL_COMPUTE, function, *words, *variables]

    def data(self) -> bytes:
        """The module, little-endian."""
        modes = self._modes()
        head: list[int] = []
        for capability in self._capabilities:
            head += [2 << 16 | Opcode.Capability, capability]
        for extension in self._extensions:
            words = _string(extension)
            head += [(len(words) + 1) << 16 | Opcode.Extension, *words]
        words = _string("GLSL.std.450")
        head += [(len(words) + 2) << 16 | Opcode.ExtInstImport, self.glsl, *words]
        head += [3 << 16 | Opcode.MemoryModel, PHYSICAL_STORAGE_BUFFER_64, GLSL450]
        out = array("I", [MAGIC, VERSION, 0, self.last + 1, 0])
        for section in (head, self._entries, modes, self._annotations, self._globals, self.functions):
            out.extend(section)
        return out.tobytes()

    def _modes(self) -> list[int]:
        """Exact floats of the widths that are used, where the device can be told so."""
        out: list[int] = []
        for mode, capability, widths in (
            (Mode.DenormPreserve, Capability.DenormPreserve, self.features.denorm_preserve),
            (Mode.SignedZeroInfNanPreserve, Capability.SignedZeroInfNanPreserve, self.features.signed_zero),
            (Mode.RoundingModeRTE, Capability.RoundingModeRTE, self.features.round_to_even),
        ):
            for width in sorted(widths & self.floats):
                self._capabilities[capability] = 0
                for main in self._mains:
                    out += [4 << 16 | Opcode.ExecutionMode, main, mode, width]
        return out


def is_zero(text: str) -> bool:
    """Whether a literal of a float is a zero of either sign."""
    if text.startswith("0xH"):
        return int(text[3:], 16) & 0x7FFF == 0
    return text == "zeroinitializer" or float_of(text) == 0.0


def _string(text: str) -> tuple[int, ...]:
    """A string in words, ended by a zero."""
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return struct.unpack(f"<{len(data) // 4}I", data)
