"""The Python bindings of the drivers' libraries have every name that the drivers use, which no run without a device would show."""

import re
from functools import reduce
from pathlib import Path

import pytest

from qdrun.compiler.runtime.amdgpu import driver as hip
from qdrun.compiler.runtime.cuda import driver as cuda
from qdrun.compiler.runtime.gpu import library


def missing(names, bindings):
    """What the drivers' common part uses and the bindings do not have."""
    text = Path(library.__file__).read_text()
    common = set(re.findall(r'_(?:do|function)\(f?"([\w{}* ]+)"', text))
    assert len(common) > 25 and common > names.functions.keys()
    plain = {name.replace("{8 * width}", str(bits)) for name in common for bits in (8, 16, 32)}
    functions = {names.functions.get(name) or f"{names.prefix}{name}" for name in plain}
    attributes = [names.function + end for end in ("LOCAL_SIZE_BYTES", "NUM_REGS", "SHARED_SIZE_BYTES")]
    values = [*names.pool, names.keeps, names.used, names.reserved, names.capture, *attributes]
    return [name for name in [*functions, *values] if not has(bindings, name)]


def has(bindings, name):
    try:
        return reduce(getattr, name.split("."), bindings) is not None
    except AttributeError:
        return False


def test_cuda_python_has_every_name_that_is_used():
    d = pytest.importorskip("cuda.bindings.driver")
    text = Path(cuda.__file__).read_text()
    functions = set(re.findall(r"\bd\.(cu\w+)", text))
    assert len(functions) > 25 and not [f for f in functions if not hasattr(d, f)]
    assert not missing(cuda.NAMES, d)
    for group, member in re.findall(r"\bd\.(CU\w+)\.(CU_\w+)", text):
        assert hasattr(getattr(d, group), member), (group, member)
    members = set(re.findall(r"\b(CU_JIT_\w+)", text))
    assert members and not [m for m in members if not any(hasattr(g, m) for g in (d.CUjit_option, d.CUjitInputType))]
    for name in re.findall(r'attribute\("(\w+)"\)', text):
        assert hasattr(d.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")


def test_hip_python_has_every_name_that_is_used():
    d = pytest.importorskip("hip").hip
    text = Path(hip.__file__).read_text()
    names = set(re.findall(r"\bd\.(hip\w+(?:\.hip\w+)?)", text))
    assert len(names) > 20 and not [name for name in names if not has(d, name)]
    assert not missing(hip.NAMES, d)


def test_a_name_that_is_not_there_is_found():
    class Nothing:
        pass

    assert len(missing(cuda.NAMES, Nothing())) > 35
