"""Translates a device text to a SPIR-V module.

Every device function of the text is an entry point of one module, under its name, with the helper functions that it calls. The module is
of SPIR-V 1.5 (Vulkan 1.2) and has no descriptors: the words of a launch are push constants, or, where they are more than
``MOST_PUSHED``, one push constant is the address of the words. A pipeline chooses two specialisation constants: 0 is the number of threads
of a block, 1 the size of the on-chip memory that the launch asks for, in 4-byte words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import QdrunError, QdrunRuntimeError, QdrunTypeError
from ..text import lines as text_lines
from ..text.control_flow import Unstructured
from ..text.foldable import foldable
from ..text.lines import CallInst, Line
from ..text.read import DeviceText, TextFunction, read, unreadable
from ..text.structure import StraightCode, structured
from . import arith, atomics, intrinsics, memory
from .body import SpirvBody
from .features import NAMES, Features, MissingFeature, Untranslated
from .module import SpirvModule
from .opcodes import ALIGNED, Opcode, StorageClass

MOST_PUSHED = 16
"""8-byte words that every device takes as push constants."""
DEFAULT_BLOCK = 64


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """An entry point.

    Attributes:
        name: of it, and of the device function.
        words: 8-byte words of a launch.
        pushed: they are the push constants; else their address is the one push constant.
        threads: of a block; 0: the launch decides.
        shared: bytes of on-chip memory that a block has in any case.
        dynamic: it has tapes in memory of each thread, of which a launch says the bytes.
    """

    name: str
    words: int
    pushed: bool
    threads: int
    shared: int
    dynamic: bool


@dataclass(frozen=True, slots=True)
class Translated:
    """A SPIR-V module, little-endian, and its entry points in the order of the text."""

    data: bytes
    functions: tuple[EntryFacts, ...]


def translate(text: str, features: Features) -> Translated:
    """The SPIR-V module of a device text.

    Args:
        text: as ``TranslatedHardware`` makes it.
        features: of the device. What the text does not use need not be there.

    Raises:
        QdrunTypeError: the device lacks something that the text uses; names the kernel, the feature and the line.
        QdrunRuntimeError: the text has a line that is not translated.
    """
    device_text = read(text)
    threads = [f.threads for f in device_text.entries if f.threads]
    writer = _Writer(device_text, SpirvModule(features, max(threads, default=DEFAULT_BLOCK)))
    try:
        return writer.write()
    except QdrunError:
        raise
    except MissingFeature as e:
        raise _lacking(device_text, e.feature, writer.line) from None
    except (Untranslated, KeyError):  # a form that is not known, or a register that is no value here
        raise unreadable(device_text.lines[writer.line - 1], writer.line) from None
    except Unstructured as e:
        raise QdrunRuntimeError(
            f"{_kernel(device_text)} has a control flow that cannot be translated: {e}"
            "\n  do: this is a bug in qdrun; report it with the kernel's source"
        ) from None


def _kernel(text: DeviceText) -> str:
    m = re.match(r"; (.+?) for ", text.lines[0]) if text.lines else None
    return m[1] if m else "a kernel"


def _lacking(text: DeviceText, feature: str, number: int) -> QdrunTypeError:
    what, vulkan = NAMES[feature]
    line = text.lines[number - 1].strip() if number else "its parameters"
    return QdrunTypeError(
        f"{_kernel(text)} uses {what}, which this device does not have ({vulkan}; line {number} of its device text: {line})",
        None,
        "use other types in this kernel, or another device",
    )


class _Writer:
    """Writes the functions of a text. ``line``: the one that is being written."""

    def __init__(self, text: DeviceText, module: SpirvModule) -> None:
        self.text, self.module = text, module
        self.line = 0
        self.bodies: dict[str, SpirvBody] = {}

    def write(self) -> Translated:
        """The module."""
        m, facts = self.module, list[EntryFacts]()
        m.set_block()
        for function in self.text.entries:
            self._function(function)
            variables, shared, dynamic = self._reached(function.name)
            m.entry(m.function_of(function.name), function.name, variables)
            pushed = not function.packed and function.words <= MOST_PUSHED
            facts.append(EntryFacts(function.name, function.words, pushed, function.threads, shared, dynamic))
        if not facts:
            self._nothing()
        return Translated(m.data(), tuple(facts))

    def _nothing(self) -> None:
        """An entry point for the module of a kernel without device functions: a module must have one."""
        m, body = self.module, SpirvBody(self.module, self.text)
        function = m.function_of("qd_nothing")
        body.do(Opcode.Return)
        head = [5 << 16 | Opcode.Function, m.type("void"), function, 0, m.function_type("void", [])]
        m.functions += body.whole([*head, 2 << 16 | Opcode.Label, m.id()])
        m.entry(function, "qd_nothing", [])

    def _reached(self, name: str) -> tuple[list[int], int, bool]:
        """The variables of the module that a function and what it calls name, and their on-chip memory."""
        seen, left, variables = {name}, [name], dict[int, None]()
        names: set[str] = set()
        while left:
            body = self.bodies[left.pop()]
            variables |= body.globals
            names |= body.on_chip
            new = [x for x in body.calls if x not in seen]
            seen.update(new)
            left += new
        used = [self.text.variables[x] for x in names]
        return list(variables), sum(x.size for x in used if not x.dynamic), any(x.dynamic for x in used)

    def _function(self, function: TextFunction) -> None:
        """Write a function, and those that it calls."""
        m, body = self.module, SpirvBody(self.module, self.text)
        self.bodies[function.name] = body
        if m.features.folds_wrongly:
            body.foldable = foldable(function)
        found = m.function_of(function.name)
        types = [] if function.entry else [ty for ty, _ in function.parameters]
        head = [5 << 16 | Opcode.Function, m.type(function.result), found, 0, m.function_type(function.result, types)]
        if not function.entry:
            for ty, register in function.parameters:
                value = body.values[register] = m.id()
                head += [3 << 16 | Opcode.FunctionParameter, m.type(ty), value]
        head += [2 << 16 | Opcode.Label, m.id()]
        if function.entry:
            self._read_words(function, body)
        self._events(function, body)
        m.functions += body.finish(head)
        for name in body.calls:
            if name not in self.bodies:
                self._function(self.text.functions[name])

    def _read_words(self, function: TextFunction, body: SpirvBody) -> None:
        """The parameters of an entry point."""
        m = self.module
        if not function.words:
            return
        word = m.pointer(StorageClass.PushConstant, m.type("i64"))
        pushed = not function.packed and function.words <= MOST_PUSHED
        block = body.named(m.words(function.words if pushed else 1))

        def push_constant(k: int) -> int:
            at = body.emit(Opcode.AccessChain, word, block, m.number(0), m.number(k))
            return body.op(Opcode.Load, "i64", at)

        if pushed:
            body.values |= {register: push_constant(k) for k, (_, register) in enumerate(function.parameters)}
            return
        base = push_constant(0)
        if function.packed:
            body.values[function.parameters[0][1]] = base
            return
        for k, (_, register) in enumerate(function.parameters):
            at = body.op(Opcode.IAdd, "i64", base, m.number(8 * k, "i64")) if k else base
            pointer = body.emit(Opcode.ConvertUToPtr, m.in_memory("i64"), at)
            body.values[register] = body.op(Opcode.Load, "i64", pointer, ALIGNED, 8)

    def _events(self, function: TextFunction, body: SpirvBody) -> None:
        events = structured(function)
        k = 0
        while k < len(events):
            event = events[k]
            k += 1
            if isinstance(event, StraightCode):
                for line, number in zip(event.lines, event.numbers):
                    self.line = number or self.line
                    _LINES[type(line)](body, line)
            else:
                k += body.control(event, events[k : k + 3])


def _call(body: SpirvBody, x: CallInst) -> None:
    """A call of a function of the text, or of what is written in its place."""
    function = body.text.functions.get(x.name)
    if function is None:
        if not intrinsics.call_intrinsic(body, x):
            raise Untranslated
        return
    body.calls[x.name] = None
    args = [body.operand(ty, a) for ty, a in zip(x.types, x.args)]
    body.values[x.result] = body.op(Opcode.FunctionCall, x.type, body.module.function_of(x.name), *args)


_LINES: dict[type[Line], Callable[[SpirvBody, Any], None]] = {
    text_lines.Alloca: memory.slot,
    text_lines.OnChip: memory.on_chip,
    text_lines.ElementAddress: memory.element,
    text_lines.Load: memory.load,
    text_lines.Store: memory.store,
    text_lines.AtomicLoad: atomics.load,
    text_lines.AtomicStore: atomics.store,
    text_lines.Update: atomics.update,
    text_lines.Swap: atomics.swap,
    text_lines.ExtractValue: atomics.part,
    text_lines.Fence: lambda body, x: intrinsics.fence(body),
    text_lines.Binary: arith.binary,
    text_lines.Negate: arith.negate,
    text_lines.Compare: arith.compare,
    text_lines.Select: arith.select,
    text_lines.CastInst: arith.cast,
    text_lines.Insert: memory.insert,
    text_lines.Extract: memory.extract,
    CallInst: _call,
}
