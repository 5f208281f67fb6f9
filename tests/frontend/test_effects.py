"""Which Python functions may be called again: those whose text shows that they do nothing but give a result."""

import functools
import math
import os
from dataclasses import dataclass

import pytest

from qdrun.compiler.frontend.source.effects import attribute_is_plain, effect_free

GAIN, SIZES, SEEN = 2.0, (3, 4), []


def line(x, k=3):
    """Of a slope."""
    y = x * GAIN + k
    return y if y > 0 else -y


def several(n):
    total = 0
    for i in range(n):
        if i % 2:
            total += sum([line(j) for j in range(i)]) + math.floor(math.pi) + SIZES[1]
    assert total >= 0
    return total, min(n, 2)


def appends(x):
    SEEN.append(x)
    return x


def calls_one_that_appends(x):
    return line(x) + appends(x)


def reads_a_list(x):
    return len(SEEN) + x


def prints(x):
    print(x)
    return x


def opens(x):
    return os.getpid()


def remembers(x, kept=[]):  # noqa: B006
    kept += [x]
    return len(kept)


def counts(x):
    global GAIN
    GAIN += 1
    return x


def calls_its_argument(x):
    return x()


def imports(x):
    import os  # noqa: F401

    return x


def walrus(x):
    return (y := x) + y


def recursive(x):
    return recursive(x - 1) if x else 0


def generates(x):
    yield x


@functools.lru_cache
def cached(x):
    return x


@functools.wraps(line)
def wrapped(x):
    SEEN.append(x)


FREE = [line, several]
NOT_FREE = [
    *(appends, calls_one_that_appends, reads_a_list, prints, opens, remembers, counts, calls_its_argument, imports, walrus),
    *(recursive, generates, cached, wrapped, lambda x: x, len, math.sin, os.system, os.getpid, eval, 3, int),
]


@pytest.mark.parametrize("fn", FREE)
def test_arithmetic_of_literals_is_free_of_effects(fn):
    assert effect_free(fn)


@pytest.mark.parametrize("fn", NOT_FREE)
def test_what_may_do_more_is_not(fn):
    assert not effect_free(fn)


class Plain:
    __slots__ = ("slot",)


@dataclass
class Body:
    mass: float = 2.0

    @property
    def weight(self):
        return self.mass * 9.81

    @property
    def noisy(self):
        SEEN.append(self)
        return self.mass

    @functools.cached_property
    def twice(self):
        return self.weight + self.weight

    @functools.cached_property
    def opened(self):
        return os.getpid()

    def moved(self, by):
        return self.mass + by


class Dynamic:
    def __getattr__(self, name):
        return SEEN.append(name)


class Watched:
    x = 1

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


def test_attributes_that_run_code_are_told_from_those_that_do_not():
    plain, body = Plain(), Body()
    plain.slot = 3
    for base, name in [(plain, "slot"), (math, "pi"), (Body, "mass"), *((body, n) for n in "mass weight twice moved".split())]:
        assert attribute_is_plain(base, name), name
    for base, name in [(Dynamic(), "x"), (Watched(), "x"), (body, "noisy"), (body, "opened"), (body, "missing")]:
        assert not attribute_is_plain(base, name), name
    assert effect_free(body.moved)
    body.opened  # what is kept in the object is found there
    assert attribute_is_plain(body, "opened")
    assert not SEEN
