"""What a random program is made of while it is written: its choices, its arrays, the names in scope."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .scalars import INTEGERS, REALS, TYPES, U1, Type

T = TypeVar("T")
SWITCHES = (
    "while break continue loops ndrange grouped static structfor falling func early reference template vector matrix struct method ternary"
    " boolop chain atomic cast bitcast ndarray numpy returns serial dynamic tuple walrus bits division power shift minmax rounding"
    " augmented annotated reduction oriented slice swizzle shape u1 toplevel range64 random"
    " layout views again vectors records pairs endless nested algebra parts"
).split()
"""What programs may have; each program has some of it, so that no part drowns in the others."""


@dataclass(frozen=True)
class Text:
    """An expression: its source, its type, and whether it is made of literals only."""

    text: str
    type: Type
    literal: bool = False


@dataclass(frozen=True)
class Array:
    """A field or an array argument. ``grid``: its reals stay small whole numbers, so that sums are exact in any order."""

    name: str
    type: Type
    shape: tuple[int, ...]
    element: tuple[int, ...] = ()
    kind: str = "field"
    grid: bool = False
    layout: str = ""


@dataclass(frozen=True)
class Form:
    """A struct type: members by name with their type and shape; names of its methods."""

    name: str
    members: dict[str, tuple[Type, tuple[int, ...]]]

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Name:
    """A name in scope; ``shape`` is that of a vector or matrix, ``form`` that of a struct; ``static``: a number of Python's."""

    name: str
    type: Type
    shape: tuple[int, ...] = ()
    mutable: bool = True
    form: Form | None = None
    static: bool = False


@dataclass
class Place:
    """Where statements stand. ``roles``: what this parallel loop does with each array; None: anything (one thread)."""

    roles: dict[str, str] | None = None
    own: Callable[[Array], list[str]] = lambda _: []
    loops: int = 0
    breakable: bool = False
    continuable: bool = False
    functions: bool = True
    arrays: bool = True


@dataclass
class Choices:
    """The random choices of a program, and what it is about."""

    rng: random.Random
    mathematics: bool = False  # sines and the like: the last bits differ from machine to machine
    on: set[str] = field(default_factory=set)
    ints: list[Type] = field(default_factory=list)
    reals: list[Type] = field(default_factory=list)
    edge: bool = False
    features: set[str] = field(default_factory=set)
    count: int = 0

    @classmethod
    def of(cls, seed: str) -> Choices:
        """The choices of one program."""
        rng = random.Random(seed)
        c = cls(rng, mathematics=rng.random() < 0.25, edge=rng.random() < 0.35)
        share = rng.choice((0.25, 0.5, 0.75))
        c.on = {s for s in SWITCHES if rng.random() < (0.05 if s == "random" else share)}  # the model has no random numbers
        if random.Random(f"{seed}:stages").random() < 0.3:
            c.on.add("stages")
        if random.Random(f"{seed}:stencil").random() < 0.4:
            c.on.add("stencil")
        c.ints = [TYPES["i32"], *rng.sample(INTEGERS, rng.randrange(3))] if rng.random() < 0.6 else rng.sample(INTEGERS, 3)
        c.reals = [TYPES["f32"], *rng.sample(REALS, rng.randrange(2))] if rng.random() < 0.6 else rng.sample(REALS, 2)
        return c

    def pick(self, options: Sequence[T]) -> T:
        return self.rng.choice(options)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def has(self, switch: str, p: float = 1.0) -> bool:
        """Whether to use a part of the language here."""
        if switch in self.on and (p == 1.0 or self.chance(p)):
            self.features.add(switch)
            return True
        return False

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def type(self) -> Type:
        return self.pick((*self.ints, *self.reals, *((U1,) if "u1" in self.on else ())))

    # ---- numbers
    def whole(self, t: Type | None = None) -> int:
        """A whole number; one of the ends of a type in some programs."""
        if self.edge and t is not None and self.chance(0.4):
            low, high = t.limits
            return self.pick((low, high, low + 1, high - 1, 0, 1, max(low, -1)))
        low = 0 if t is not None and t.kind in "ub" else -9
        return self.number(low, 1 if t == U1 else 12)

    def real(self) -> float:
        if self.edge and self.chance(0.25):
            return self.pick((0.0, -0.0, 1e-40, -5e-324, 1e30, -65504.0, 1e-8, 3.4e38, 0.1, 16777217.0, 1e300))
        return self.pick((self.number(-40, 40) / 8, round(self.rng.uniform(-3, 3), 3), float(self.number(-6, 6))))

    def data(self, a: Array) -> str:
        """The first content of an array, as source of a numpy array."""
        count = 1
        for n in a.shape + a.element:
            count *= n
        values = [self._content(a) for _ in range(count)]
        dtype = "bool" if a.type == U1 else a.type.numpy.name
        return f'np.array([{", ".join(values)}], "{dtype}").reshape({a.shape + a.element})'

    def _content(self, a: Array) -> str:
        if a.type.real:
            if a.grid:
                return str(float(self.number(-4, 4)))
            if self.edge and self.chance(0.1):
                return self.pick(("np.nan", "np.inf", "-np.inf", "-0.0"))
            value = self.real()
            limit = {16: 65504.0, 32: 3.4e38, 64: 1e308}[a.type.bits]
            return repr(max(-limit, min(limit, value)))
        return str(self.whole(a.type)) if a.type != U1 else str(self.chance(0.5))


def literal(value: Any) -> str:
    """A number as source; negative ones in brackets."""
    return f"({value!r})" if value < 0 or str(value).startswith("-") else repr(value)
