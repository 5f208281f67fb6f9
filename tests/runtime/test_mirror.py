"""The host's copy of a device's memory, by property: random writes, launches and reads against a model. The memory is a second buffer."""

import ctypes
import random
import threading

import numpy as np
import pytest

from qdrun.compiler.runtime import mirror as mirrors
from qdrun.compiler.runtime.base import mirrored
from qdrun.compiler.runtime.host_memory import reserved_bytes
from qdrun.compiler.runtime.mirror import Mirror, changing, clear, copy, reading, store, writing
from qdrun.compiler.runtime.runs import Runs, elements_of, parts_of


class FakeLink:
    """A device whose memory is an array. What is put into its queue happens when somebody waits, and the count moves at once."""

    dlpack, stream = None, 0

    def __init__(self, nbytes: int) -> None:
        self.lock = threading.RLock()
        self.memory = np.zeros(nbytes, np.uint8)
        self.base = 1 << 40  # an address that no host code could use
        self.queue, self.count, self.copied, self.waits, self.looked = [], 0, 0, 0, 0

    def _at(self, address: int, nbytes: int) -> np.ndarray:
        first = address - self.base
        assert 0 <= first and first + nbytes <= self.memory.size, "outside of the device's memory"
        return self.memory[first : first + nbytes]

    def launches(self) -> int:
        return self.count

    def launch(self, change) -> None:
        """A kernel: ``change`` works on the memory when its turn comes."""
        self.queue.append(lambda: change(self.memory))
        self.count += 1

    def _wait(self) -> None:
        self.waits += 1
        for work in self.queue:
            work()
        self.queue = []

    def download(self, to: int, source: int, nbytes: int) -> None:
        self._wait()
        self.copied += nbytes
        ctypes.memmove(to, self._at(source, nbytes).ctypes.data, nbytes)

    def upload(self, to: int, source: int, nbytes: int) -> None:
        data = np.frombuffer(ctypes.string_at(source, nbytes), np.uint8)
        self.queue.append(lambda: self._at(to, nbytes).__setitem__(slice(None), data))

    def memset(self, to: int, word: int, count: int, width: int) -> None:
        data = np.frombuffer(word.to_bytes(width, "little") * count, np.uint8)
        self.queue.append(lambda: self._at(to, data.size).__setitem__(slice(None), data))

    def copy(self, to: int, source: int, nbytes: int) -> None:
        self.queue.append(lambda: self._at(to, nbytes).__setitem__(slice(None), self._at(source, nbytes).copy()))

    def download_rows(self, to: int, parts: list[tuple[int, Runs]]) -> None:
        for source, runs in parts:
            for k in range(runs.rows):
                self.download(to + k * runs.nbytes, source + k * runs.step, runs.nbytes)
            to += runs.rows * runs.nbytes

    def upload_rows(self, to: int, source: int, runs: Runs) -> None:
        for k in range(runs.rows):
            self.upload(to + k * runs.step, source + k * runs.nbytes, runs.nbytes)

    def fill_rows(self, to: int, row: bytes, runs: Runs) -> bool:
        data = np.frombuffer(row * runs.rows, np.uint8)
        self.upload_rows(to, data.ctypes.data, runs)
        return self.count % 2 == 0  # a device refuses some

    def join(self) -> None:
        """Nobody else works on it."""

    def settle(self, stream: int = 0) -> None:
        self._wait()

    def arrived(self) -> None:
        self.looked += 1


class Part:
    """An array in a mirror, the same array in the device's memory, and a model of it in host memory."""

    def __init__(self, mirror: Mirror, link: FakeLink, model: np.ndarray, at: int, dtype, shape, strides=None) -> None:
        self.mirror = mirror
        self.array = np.ndarray(shape, dtype, mirror.view.data, at, strides)
        self.model = np.ndarray(shape, dtype, model.data, at, strides)
        self.at, self.dtype, self.shape, self.strides = at, dtype, shape, strides

    def on(self, memory: np.ndarray) -> np.ndarray:
        return np.ndarray(self.shape, self.dtype, memory.data, self.at, self.strides)


def the_parts() -> tuple[FakeLink, list[Part], np.ndarray]:
    """Parts of an allocation: dense, interleaved, transposed, 0-D, 8-byte, in groups of trials; in blocks."""
    n = 1 << 13
    link, model = FakeLink(n), np.zeros(n, np.uint8)
    allocation = mirrored(link.base, n, "fields", link)
    m = allocation.mirror
    assert m is not None
    m.split([0, 512, 1024, 1088, 2048, *range(4096, 8192, 1024)])
    parts = [
        Part(m, link, model, 0, np.float32, (8, 16)),
        Part(m, link, model, 512, np.float32, (32,), (12,)),  # interleaved with the next
        Part(m, link, model, 516, np.float64, (32,), (12,)),
        Part(m, link, model, 1024, np.int32, ()),
        Part(m, link, model, 1088, np.int64, (6, 20), (8, 48)),  # transposed
        Part(m, link, model, 2048, np.float32, (4, 8, 16)),
        Part(m, link, model, 4096, np.float32, (4, 8, 5), (1024, 4, 32)),  # groups of 8 trials, which have these four
        Part(m, link, model, 4096 + 160, np.float64, (4, 8), (1024, 8)),
        Part(m, link, model, 4096 + 224, np.int8, (4, 8, 2, 3), (1024, 1, 24, 8)),
        Part(m, link, model, 4096 + 512, np.int16, (4, 8, 32), (1024, 2, 16)),
    ]
    return link, parts, model


def one_step(rng: random.Random, link: FakeLink, parts: list[Part]) -> str:
    """A random action on a mirror and on the model; checks what it reads."""
    part = rng.choice(parts)
    index = tuple(rng.randrange(n) for n in part.shape)
    values = np.array([rng.randrange(-99, 99) for _ in range(part.array.size)], part.dtype).reshape(part.shape)
    action = rng.choice("element fill assign launch launch peek read copied copy slice change element_of_tile".split())
    if action == "element":
        with writing(part.mirror, part.array[(*index, ...)]) as place:
            place[...] = values.flat[0] if values.size else 0
        part.model[index] = values.flat[0]
    elif action == "fill":
        part.model[...] = value = rng.choice([0, 1, 7])
        store(part.mirror, part.array, value)
    elif action == "element_of_tile" and part.array.ndim and part.array.flags.c_contiguous:
        store(part.mirror, part.array, values.reshape(-1, part.shape[-1])[0])
        part.model[...] = values.reshape(-1, part.shape[-1])[0]
    elif action == "assign":
        store(part.mirror, part.array, values.astype(np.float64) if part.dtype != np.int64 else values)
        part.model[...] = values
    elif action == "launch":
        factor = rng.choice([2, 3, -1])
        link.launch(lambda memory: np.add(part.on(memory), factor, out=part.on(memory)))
        np.add(part.model, factor, out=part.model)
    elif action == "peek":
        assert part.mirror.peek(part.array[(*index, ...)])[()] == part.model[index]
    elif action == "read":
        assert np.array_equal(reading(part.mirror, part.array), part.model)
    elif action == "copied":
        assert np.array_equal(part.mirror.copied(part.array), part.model)
    elif action == "copy":
        other = rng.choice([p for p in parts if p.shape == part.shape] + [part])
        copy(part.mirror, part.array, other.mirror, other.array)
        part.model[...] = other.model.copy()
    elif action == "slice" and part.array.ndim:
        store(part.mirror, part.array[1:], 5)
        part.model[1:] = 5
    elif action == "change":
        with changing(part.mirror, part.array) as place:
            place += 1
        part.model += 1
    return action


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("small", [0, 1 << 16])
def test_reads_find_what_was_written_and_launched(seed, small, monkeypatch):
    monkeypatch.setattr(mirrors, "SMALL", small)
    monkeypatch.setattr(mirrors, "PEEK_BYTES", 64)
    rng = random.Random(seed)
    link, parts, model = the_parts()
    done = [one_step(rng, link, parts) for _ in range(80)]
    for part in parts:
        assert np.array_equal(part.mirror.copied(part.array), part.model), done
    link._wait()
    assert np.array_equal(link.memory, model), done  # and nothing was written between the parts


@pytest.mark.parametrize("seed", range(20))
def test_memory_that_is_shared_is_read_anew(seed):
    rng = random.Random(seed)
    link, parts, _ = the_parts()
    parts[0].mirror.shared = True
    for _ in range(40):
        if rng.random() < 0.3:  # another library writes, and no launch is counted
            part = rng.choice(parts)
            link._wait()
            part.on(link.memory)[...] = 17
            part.model[...] = 17
        one_step(rng, link, parts)
    for part in parts:
        assert np.array_equal(reading(part.mirror, part.array), part.model)


def test_a_fill_writes_the_value():
    for value in (0, 1, -1, 3.5, 1e300):
        for dtype in (np.float64, np.float32, np.int8, np.int16):
            if dtype is not np.float64 and (value == 1e300 or (value == 3.5 and dtype is not np.float32)):
                continue
            link = FakeLink(1 << 20)
            m = mirrored(link.base, 1 << 20, "fields", link).mirror
            array = m.view.view(dtype)[5:-3]
            m.fill(array, np.asarray(value))
            link._wait()
            found = link.memory.view(dtype)
            assert (found[5:-3] == dtype(value)).all() and not found[:5].any() and not found[-3:].any()


def test_one_element_costs_its_bytes_and_many_the_block():
    link = FakeLink(1 << 22)
    m = mirrored(link.base, 1 << 22, "fields", link).mirror
    array = m.view.view(np.float32)
    link.launch(lambda memory: memory.view(np.float32).__setitem__(7, 3.0))
    assert m.peek(array[7, ...]) == 3.0 and link.copied == 4
    for k in range(200):
        m.peek(array[k, ...])
    assert 1 << 22 <= link.copied <= (1 << 22) + 4 * 64
    waits = link.waits
    assert link.looked == waits  # failures of launches are asked for whenever the host has waited
    assert m.peek(array[7, ...]) == 3.0 and link.waits == waits  # nothing was launched: the host's copy is current


def test_parts_that_fill_a_block_are_cleared_at_once():
    link, parts, model = the_parts()
    m = parts[0].mirror
    m.split([0, 512, 1024, 1088, 2048], [512, 32 * 12, 4, 960, 2048])
    link.launch(lambda memory: memory.fill(1))
    model[:] = 1
    clear([(p.mirror, p.array) for p in parts[1:3]])  # the two that are interleaved
    assert link.waits == 0
    model[512:1024] = 0  # the gap behind them, too
    assert all(np.array_equal(m.copied(p.array), p.model) for p in parts)
    link.launch(lambda memory: memory.fill(1))
    model[:] = 1
    clear([(p.mirror, p.array) for p in parts[1:2]] + [(None, own := np.ones(3))])  # one of the two
    parts[1].model[...] = 0
    assert all(np.array_equal(m.copied(p.array), p.model) for p in parts) and not own.any()


def test_a_write_costs_no_read_and_no_wait():
    link = FakeLink(1 << 20)
    m = mirrored(link.base, 1 << 20, "fields", link).mirror
    link.launch(lambda memory: memory.fill(1))
    array = m.view.view(np.float64)
    with m.writing(array[3, ...]) as place:
        place[...] = 4.0
    m.assign(array[100:50000], np.arange(49900))
    m.fill(array[60000:], np.asarray(2.0))
    m.copy_from(array[:10], m, array[100:110])
    assert link.waits == 0
    assert m.copied(array)[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, *[np.frombuffer(b"\1" * 8)[0]] * 2]
    assert (array.shape, m.copied(array)[60000]) == ((1 << 17,), 2.0)


def test_a_launch_between_a_copy_and_its_note_leaves_the_copy_old():
    link = FakeLink(64)
    m = mirrored(link.base, 64, "fields", link).mirror
    link.launch(lambda memory: memory.fill(1))
    download = link.download

    def late(*args):
        download(*args)
        link.launch(lambda memory: memory.fill(2))  # another thread
        link.download = download

    link.download = late
    assert (m.read(m.view) == 1).all() and (m.read(m.view) == 2).all()


def test_a_write_that_fails_leaves_no_block_that_passes_for_current():
    link = FakeLink(64)
    m = mirrored(link.base, 64, "fields", link).mirror
    with pytest.raises(ZeroDivisionError), m.writing(m.view) as place:
        place[:3] = 9
        raise ZeroDivisionError
    assert not m.read(m.view).any()
    assert link.lock.acquire(blocking=False)


def test_several_threads_write_while_launches_go_on():
    """Each thread writes its own array and launches on it: no thread may lose what it wrote to what another one uploads or reads."""
    link = FakeLink(1 << 12)
    own = link.launch
    link.launch = lambda change: locked(link, lambda: own(change))
    for name in ("download", "upload", "memset", "copy"):
        real = getattr(link, name)
        setattr(link, name, lambda *a, real=real: locked(link, lambda: real(*a)))
    m = mirrored(link.base, 1 << 12, "fields", link).mirror
    arrays = [m.view.view(np.int64)[64 * k : 64 * k + 64] for k in range(4)]  # of one block
    wrong = []

    def work(k: int) -> None:
        mine, rng, here = arrays[k], random.Random(k), slice(64 * k, 64 * k + 64)
        model = np.zeros(64, np.int64)
        for step in range(200):
            i = rng.randrange(64)
            with m.writing(mine[i, ...]) as place:
                place[...] = step
            model[i] = step
            link.launch(lambda memory: np.add(memory.view(np.int64)[here], 1, out=memory.view(np.int64)[here]))
            model += 1
            if step % 3 == 0 and not np.array_equal(m.copied(mine), model):
                wrong.append((k, step))
            if step % 5 == 0 and m.peek(mine[i, ...]) != model[i]:
                wrong.append((k, step, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def locked(link: FakeLink, run):
    with link.lock:
        return run()


def test_large_mirrors_take_memory_where_they_are_read():
    link = FakeLink(64)
    view = reserved_bytes(1 << 36)  # more than the machine has: reserved, not committed
    assert view.nbytes == 1 << 36 and view[1 << 35] == 0
    m = Mirror(link, link.base, view)
    assert m.holds(view.ctypes.data + 5) and not m.holds(view.ctypes.data - 1)


def test_no_mirror_of_what_no_host_code_reads():
    link = FakeLink(64)
    for category in ("adstack", "temporaries", "arguments"):
        assert mirrored(link.base, 64, category, link).mirror is None


def test_one_field_of_many_trials_is_copied_and_written_by_itself():
    groups, step = 64, 1 << 14
    link = FakeLink(groups * step)
    m = mirrored(link.base, groups * step, "fields", link).mirror
    m.split(range(0, groups * step, step))
    field, values = np.ndarray((groups, 8), np.float64, m.view.data, 256, (step, 8)), np.arange(groups * 8.0).reshape(groups, 8)
    before = link.memory.copy()
    m.assign(field, values)
    link.launch(lambda memory: memory)
    assert link.copied == 0 and np.array_equal(m.copied(field), values)
    assert link.copied == field.nbytes
    np.ndarray((groups, 8), np.float64, before.data, 256, (step, 8))[...] = values
    assert np.array_equal(link.memory, before)


def test_parts_of_an_array_have_elements_at_one_distance():
    rng, split = np.random.default_rng(), 0
    for _ in range(200):
        shape = tuple(rng.integers(1, 6, rng.integers(1, 5)).tolist())
        strides, step = [], 4
        for extent in reversed(shape):
            strides.insert(0, step)
            step = step * extent + 4 * int(rng.integers(0, 3))  # others lie behind some of the levels
        memory = np.zeros(step, np.uint8)
        array = np.ndarray(shape, np.int32, memory, 0, tuple(strides))
        axes = rng.permutation(len(shape))
        parts = parts_of(array.transpose(axes))
        split += len(parts) > 1
        for part in parts:
            assert elements_of(part) is not None
            part += 1
        assert (array == 1).all() and memory.view(np.int32).sum() == array.size
    assert split > 20
    gaps = np.zeros((20, 20, 20, 2, 2), np.int32)[:, :19, :19, :1]
    assert parts_of(gaps) is None  # 380 and more
    assert len(parts_of(gaps[0, 0])) == 2
