"""How a device computes, as it is asked when it is opened."""

from dataclasses import replace

import numpy as np
import pytest

from qdrun.compiler.codegen.spirv.features import ALL_WIDTHS
from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.vulkan import probe


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_code_for_the_device_has_fused_products_that_round_once(rig, monkeypatch, kind):
    """With or without the device's instruction: llvmpipe's rounds twice, and the probe finds it."""
    opened = rig.driver._here
    asked = probe._ask(kind, opened._run)
    assert asked.fused == asked.compared == probe.COUNT, "as code is made for the device"
    bits = np.dtype(kind).itemsize * 8
    monkeypatch.setattr(opened, "features", replace(opened.features, fused=ALL_WIDTHS))
    own = probe._ask(kind, opened._run)
    assert (own.fused == probe.COUNT) == (bits in opened.probed.fused)
    assert own.quotients == own.roots == own.subnormal == probe.COUNT or "llvmpipe" not in rig.info.name


def test_the_answers_are_kept_for_the_driver(rig, monkeypatch, tmp_path):
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path))
    opened, runs = rig.driver._here, []
    monkeypatch.setattr(opened, "features", replace(opened.features, fused=ALL_WIDTHS))

    def run(texts, data):
        runs.append(texts.name)
        return opened._run(texts, data)

    first = probe.probe(opened.physical, run)
    assert len(runs) == 2 and first == opened.probed == probe.probe(opened.physical, run) and len(runs) == 2
    probe.probe(replace(opened.physical, driver_version=7), run)
    assert len(runs) == 4, "another driver is asked again"
    without = probe.probe(replace(opened.physical, features=opened.physical.features - {"shaderFloat64"}), run)
    assert without.float64 is None and without.fused == first.fused - {64} and len(runs) == 5


def test_a_device_that_compares_wrongly_is_refused(rig, monkeypatch, tmp_path):
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path))

    def run(texts, data):
        out = rig.driver._here._run(texts, data)
        out.reshape(probe.COUNT, 8)[:3, 7] ^= np.uint64(1)
        return out

    for _ in range(2):  # also when it is remembered
        with pytest.raises(
            DeviceError, match=r"cannot be used with Vulkan: comparing 64-bit integers goes wrong \(3 of 256\)\n  do: "
        ):
            probe.probe(rig.driver._here.physical, run)
