"""Where device memory comes from: chunks, the pool's order, what happens when the device is full, words that both sides see."""

from itertools import pairwise

import pytest

from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.gpu.memory.device_memory import CHUNK, SMALL, DeviceMemory
from qdrun.compiler.runtime.gpu.memory.pinned import PinnedMemory
from qdrun.compiler.runtime.gpu.memory.slab import Slab

from .fake_driver import FakeDriver


def memory_of(limit=1 << 30):
    driver = FakeDriver(limit)
    return driver, DeviceMemory(driver, 7)


def test_small_blocks_share_a_chunk_and_do_not_overlap():
    driver, memory = memory_of()
    sizes = [1, 63, 64, 65, 1000, SMALL]
    found = sorted((memory.allocate(n), n) for n in sizes)
    assert driver.names() == ["allocate"] and memory.reserved == CHUNK
    assert all(a % 64 == 0 for a, _ in found)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(found))


def test_a_freed_small_block_is_the_next_of_its_size():
    _, memory = memory_of()
    first, other = memory.allocate(100), memory.allocate(100)
    memory.free(first)
    assert memory.allocate(128) == first  # 100 and 128 are both two times 64
    assert memory.allocate(100) not in (first, other)


def test_an_empty_chunk_goes_back_but_one_stays():
    driver, memory = memory_of()
    blocks = [memory.allocate(SMALL) for _ in range(3 * CHUNK // SMALL)]
    assert memory.reserved == 3 * CHUNK and len(set(blocks)) == len(blocks)
    for b in blocks:
        memory.free(b)
    assert memory.reserved == CHUNK and driver.names().count("free") == 2
    memory.trim()
    assert memory.reserved == 0 and not driver.blocks


def test_a_chunk_that_went_back_leaves_nothing_in_the_bins():
    driver, memory = memory_of()
    blocks = [memory.allocate(SMALL) for _ in range(2 * CHUNK // SMALL)]
    for b in blocks:
        memory.free(b)
    again = [memory.allocate(SMALL) for _ in range(2 * CHUNK // SMALL)]
    spans = [(base, base + raw.size) for base, raw in driver.blocks.items()]
    assert all(any(a <= b and b + SMALL <= z for a, z in spans) for b in again) and len(set(again)) == len(again)


@pytest.mark.parametrize("nbytes", [SMALL, 1 << 20])
def test_the_collector_may_free_in_the_middle_of_an_allocation(nbytes):
    driver, memory = memory_of()
    blocks = [memory.allocate(SMALL) for _ in range(2 * CHUNK // SMALL)]
    large = memory.allocate(1 << 21)
    real = driver.allocate

    def collected(*args):
        for b in [*blocks, large]:
            memory.free(b)  # every chunk becomes empty
        assert set(blocks) and driver.names().count("free") == 0  # not yet
        return real(*args)

    driver.allocate = collected
    new = memory.allocate(nbytes)
    driver.allocate = real
    assert driver.names().count("free") == 2  # the large one, and one of the chunks: another one stays
    spans = [(base, base + raw.size) for base, raw in driver.blocks.items()]
    assert any(a <= new and new + nbytes <= z for a, z in spans)
    memory.free(new)
    memory.trim()
    assert not driver.blocks


def test_large_blocks_come_from_the_driver_one_by_one():
    driver, memory = memory_of()
    a, b = memory.allocate(SMALL + 1), memory.allocate(1 << 20)
    assert memory.reserved == SMALL + 1 + (1 << 20)
    memory.free(a)
    memory.free(b)
    assert driver.names() == ["allocate", "allocate", "free", "free"] and memory.reserved == 0


def test_a_full_device_is_waited_for_and_trimmed_before_it_is_out_of_memory():
    driver, memory = memory_of(limit=3 << 20)
    memory.free(memory.allocate(2 << 20))
    driver.calls.clear()
    memory.allocate(2 << 20)  # the pool has kept the freed bytes
    assert driver.names() == ["allocate", "synchronize", "trim", "allocate"]


def test_after_a_failed_allocation_the_pool_is_emptied():
    driver, memory = memory_of(limit=3 << 20)
    with pytest.raises(MemoryError):
        memory.allocate(4 << 20)
    assert driver.names() == ["allocate", "synchronize", "trim", "allocate", "trim"]
    assert memory.reserved == 0
    memory.allocate(3 << 20)


@pytest.mark.parametrize("when", [1, 2])
def test_a_failure_that_is_not_a_full_device_is_passed_on(when):
    driver, memory = memory_of(limit=1 << 20)
    if when == 1:
        driver.failures["allocate"] = 700
    else:
        driver.failures["synchronize"] = 700  # while the device is waited for
    with pytest.raises(DeviceError) as e:
        memory.allocate(2 << 20)
    assert e.value.code == 700 and e.value.restart


def test_pinned_words_are_given_out_again_only_after_their_stream_was_waited_for():
    memory = PinnedMemory(FakeDriver())
    a = memory.allocate(64, 7)
    before = memory.waiting(7)
    memory.free(a)
    memory.settled(before)  # that wait began before the block was freed
    b = memory.allocate(64, 8)
    assert b != a
    memory.settled(memory.waiting(8))  # another program's stream
    assert memory.allocate(64, 8) not in (a, b)
    memory.settled(memory.waiting(7))
    assert memory.allocate(64, 8) == a


def test_a_stream_that_ends_gives_its_pinned_words_back_and_no_others():
    memory = PinnedMemory(FakeDriver())
    a, b, c = memory.allocate(64, 7), memory.allocate(64, 8), memory.allocate(64, 7)
    memory.free(c)
    memory.ended(7)
    assert not memory.owns(a) and memory.owns(b)
    assert {memory.allocate(64, 9), memory.allocate(64, 9)} == {a, c}


def test_pinned_memory_is_never_unpinned():
    driver = FakeDriver()
    memory = PinnedMemory(driver)
    blocks = [memory.allocate(1 << 16, 1) for _ in range(4)]
    for b in blocks:
        memory.free(b)
    memory.settled(memory.waiting(1))
    assert "host_free" not in driver.names() and memory.reserved == 4 << 16
    assert {memory.allocate(1 << 16, 1) for _ in range(4)} == set(blocks)


def test_everything_is_released_whoever_uses_it():
    driver, memory = memory_of()
    for n in (10, SMALL, 1 << 20):
        memory.allocate(n)
    memory.release()
    assert not driver.blocks and memory.reserved == 0 and driver.names()[-2:] == ["synchronize", "trim"]


def test_a_block_larger_than_a_chunk_has_a_chunk_of_its_own():
    made = []
    slab = Slab(lambda n: made.append(n) or (1 << 20) * len(made), None, 1024)
    slab.allocate(5000)
    assert made == [5056] and slab.reserved == 5056
