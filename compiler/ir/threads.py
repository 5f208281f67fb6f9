"""Locks that are re-created in forked children, and properties that are computed once.

A fork copies locks as they are, and the threads that would open them are not in the child. So every lock of the compiler is made by
``new_lock``, and all of them are replaced in the child before anything else runs there.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

V = TypeVar("V")
T = TypeVar("T")

_locks: weakref.WeakKeyDictionary[object, tuple[str, ...]] = weakref.WeakKeyDictionary()
"""The attributes that hold locks, by the objects that have them."""


def new_lock(owner: object, name: str) -> threading.RLock:
    """A lock for an attribute of an object or a module. In a forked child the attribute holds another one, which is open.

    It is reentrant: the collector may run while it is held, and call destructors that take it again.

    Args:
        owner: has the attribute; can be hashed by its identity, and referred to weakly.
        name: of the attribute. The caller assigns what is returned.
    """
    _locks[owner] = (*_locks.get(owner, ()), name)
    return threading.RLock()


class _Forks:
    """Replaces the locks in a forked child.

    The collector rests until then: a destructor that it calls may take a lock that no thread opens.
    """

    def __init__(self) -> None:
        self._lock, self._count, self._collects = threading.Lock(), 0, False

    def before(self) -> None:
        with self._lock:
            if not self._count:
                self._collects = gc.isenabled()
                gc.disable()
            self._count += 1

    def after_in_parent(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._collects:
                gc.enable()

    def after_in_child(self) -> None:
        """The one thread of the child keeps what it held itself: a ``with`` refers to the lock that it has taken."""
        self._lock, self._count = threading.Lock(), 0
        for reference in _locks.keyrefs():
            owner = reference()
            for name in () if owner is None else _locks[owner]:
                object.__setattr__(owner, name, threading.RLock())
        if self._collects:
            gc.enable()


if hasattr(os, "register_at_fork"):
    _forks = _Forks()
    os.register_at_fork(before=_forks.before, after_in_parent=_forks.after_in_parent, after_in_child=_forks.after_in_child)


class Turns:
    """Serialises threads that request the same key. A key has a lock while a thread holds or awaits it."""

    def __init__(self) -> None:
        self._lock = new_lock(self, "_lock")
        self._turns: dict[Hashable, _Turn] = {}

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """A block that one thread runs at a time for each key."""
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
            turn.count += 1
        try:
            with turn.lock:
                yield
        finally:
            with self._lock:
                turn.count -= 1
                if not turn.count:
                    del self._turns[key]


class _Turn:
    def __init__(self) -> None:
        self.lock, self.count = new_lock(self, "lock"), 0


class once(Generic[V]):
    """A property that is made when it is first asked for, and kept in the object's ``__dict__``.

    An object with an attribute ``lock`` has it made by one thread. Without one, several threads may make it at once, and all of them get
    the first. (``functools.cached_property`` of Python 3.11 has one lock for all objects, and it is not replaced after a fork.)
    """

    def __init__(self, make: Callable[[Any], V]) -> None:
        self._make, self._name, self.__doc__ = make, make.__name__, make.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> once[V]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> V: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self
        made = owner.__dict__
        lock = made.get("lock")
        if lock is None:
            return made.setdefault(self._name, self._make(owner))
        with lock:
            if self._name not in made:
                made[self._name] = self._make(owner)
            return made[self._name]


class Living(Generic[T]):
    """A thread-safe set of weak references."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[T, None] = weakref.WeakKeyDictionary()

    def add(self, one: T) -> None:
        """Know an object, which is hashed by its identity."""
        self._known[one] = None

    def discard(self, one: T) -> None:
        """Know an object no longer, if it was known."""
        self._known.pop(one, None)

    def __contains__(self, one: object) -> bool:
        return one in self._known

    def __iter__(self) -> Iterator[T]:
        living = (reference() for reference in self._known.keyrefs())  # a list, made in one step
        return iter([one for one in living if one is not None])

    def __len__(self) -> int:
        return len(self._known)
