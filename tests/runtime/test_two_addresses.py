"""Memory of the host that device code sees at another address, as on devices whose buffers have addresses of their own."""

import ctypes
import mmap
import os
from typing import ClassVar

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.runtime.gpu.memory import deferred_release
from qdrun.tests.devices.processor.driver import EmulatedDriver
from qdrun.tests.devices.processor.machine import EmulatedMachine


class Mapped(EmulatedDriver):
    """The emulated driver, whose pinned memory is mapped twice."""

    others: ClassVar[dict[int, int]] = {}  # the device's address of each block, by the host's
    sizes: ClassVar[dict[int, int]] = {}

    def host_allocate(self, nbytes):
        size, fd = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE, os.memfd_create("pinned")
        os.ftruncate(fd, size)
        views = [np.frombuffer(mmap.mmap(fd, size), np.uint8) for _ in range(2)]
        os.close(fd)
        host, device = (v.ctypes.data for v in views)
        with self.machine.lock:
            self.machine.pinned[host] = views[0]
        self.others[host], self.sizes[host] = device, size
        _kept.extend(views)
        return host

    def device_address(self, address):
        base = max(b for b in self.others if b <= address)
        return self.others[base] + address - base


_kept: list[np.ndarray] = []


@pytest.fixture
def words(monkeypatch):
    """All words that device functions are given; in the end, none may have been an address of the host's."""
    from qdrun.tests.devices.processor import driver

    seen: list[int] = []
    run = EmulatedMachine._run

    def noting(self, kernel, packed, *how):
        seen.extend((ctypes.c_uint64 * (len(packed) // 8)).from_buffer(packed))
        run(self, kernel, packed, *how)

    monkeypatch.setattr(driver, "EmulatedDriver", Mapped)
    monkeypatch.setattr(EmulatedMachine, "_run", noting)
    monkeypatch.setattr(deferred_release, "_devices", {})
    monkeypatch.setattr(Mapped, "others", {})
    monkeypatch.setattr(Mapped, "sizes", {})
    yield seen
    assert Mapped.others and seen
    assert not [w for w in seen for base, size in Mapped.sizes.items() if base <= w < base + size]
    assert any(base <= w < base + Mapped.sizes[host] for w in seen for host, base in Mapped.others.items())


def test_failures_and_returned_values(words):
    with qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64, debug=True, offline_cache=False):
        x = qd.field(qd.f64, shape=8)

        @qd.kernel
        def total(bad: qd.i32) -> qd.f64:
            s = 0.0
            for i in range(8):
                assert i != bad, f"iteration {i}"
                x[i] += i
            for i in range(8):
                s += x[i]
            return s

        assert total(-1) == 28
        with pytest.raises(qd.QdrunAssertionError, match="iteration 5"):
            total(5)
            qd.sync()
        assert total(9) > 28


def test_a_batch(words):
    with qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64, debug=True, batch=5, offline_cache=False):
        x = qd.field(qd.f64, shape=3)

        @qd.kernel
        def total(most: qd.f64) -> qd.f64:
            for i in x:
                assert x[i] < most, f"too large: {x[i]}"
            return x[0] + x[1]

        columns = np.arange(15.0).reshape(5, 3)
        x.from_numpy(columns)
        np.testing.assert_array_equal(total(100.0), columns[:, 0] + columns[:, 1])
        with pytest.raises(qd.TrialsFailed, match=r"2 of 5 trials failed: 3, 4\n  trial 3: .*too large: 11") as e:
            total(11.0)
            qd.sync()
        assert "too large: 12" in str(e.value.failed[4])
