"""Long functions call mathematical functions, short ones contain their code: the bits are the same, and the code grows linearly."""

import contextlib

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.codegen.llvm.function import LlvmModule
from qdrun.compiler.codegen.llvm.target import Target
from qdrun.compiler.codegen.math import calls
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.runtime import jit

BATCH = 5
ARGUMENTS = np.array([0.0, -0.0, 0.7, -3.1, 12.5, 2e5, 3e10, -7e12, np.inf, np.nan, 1e-310, 1.0, 5.5, -1e9, 0.3, 2.0])


@pytest.fixture
def texts(monkeypatch):
    """The LLVM text of what is compiled, by the kernel's name."""
    found = {}
    original = jit.compile_text

    def recorded(text, name, opt_level=2):
        code = original(text, name, opt_level)
        found[name] = (text, len(code))
        return code

    monkeypatch.setattr(jit, "compile_text", recorded)
    return found


def _run(dtype, **options):
    """Each function and its derivative at all arguments: sine and cosine of one value, and of values in branches."""
    CACHE.clear()
    with qd.init(default_fp=dtype, offline_cache=False, **options) as program:
        trials = options.get("batch", 1)
        of_one = 16 // trials
        x = qd.field(dtype, shape=of_one, needs_grad=True)
        y = qd.field(dtype, shape=(of_one, 8), needs_grad=True)

        @qd.kernel
        def all_of_them():
            for _ in range(1):
                for i in qd.static(range(of_one)):
                    a = x[i]
                    y[i, 0] = qd.sin(a) * 1.5 + qd.cos(a)
                    y[i, 1] = qd.cos(a * 1.0000001)
                    y[i, 2] = qd.tanh(a) + qd.exp(-qd.abs(a))
                    y[i, 3] = qd.pow(qd.abs(a) + 0.1, 1.3)
                    y[i, 4] = qd.log(qd.abs(a) + 1.0)
                    y[i, 5] = qd.atan2(a, 0.3) + qd.tan(a)
                    if a > 1.0:
                        y[i, 6] = qd.sin(a)
                    else:
                        y[i, 6] = qd.cos(a)
                    y[i, 7] = qd.asin(a * 1e-13) + qd.acos(a * 1e-13)

        def in_trial(b):
            return program.trial(b) if trials > 1 else contextlib.nullcontext()

        def of_trials(tensor):
            out = []
            for b in range(trials):
                with in_trial(b):
                    out.append(tensor.to_numpy())
            return np.array(out)

        for b in range(trials):
            with in_trial(b):
                x.from_numpy(ARGUMENTS[of_one * b :][:of_one].astype(x.to_numpy().dtype))
        all_of_them()
        y.grad.fill(1.0)
        all_of_them.grad()
        found = of_trials(y), of_trials(x.grad)
        return [np.where(np.isnan(v), 7.5, v).tobytes() for v in found]  # the sign of a NaN says nothing


WHERE = {
    "lanes of a batch": {"batch": 8},
    "one trial": {},
    "a GPU": {"arch": qd.cuda, "device": "emulated"},
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", [qd.f32, qd.f64])
def test_calls_give_the_bits_of_code_in_line(monkeypatch, texts, dtype, where):
    monkeypatch.setattr(calls, "MOST_LINES", 10**9)
    in_line = _run(dtype, **WHERE[where])
    assert not any(" noinline" in text for text, _ in texts.values())
    monkeypatch.setattr(calls, "MOST_LINES", 0)
    assert _run(dtype, **WHERE[where]) == in_line
    if "arch" not in WHERE[where]:
        text, _ = texts["all_of_them_grad"]
        assert text.count(" noinline") > 10 and "@qd_sin_cos_" in text


def test_a_sine_and_a_cosine_of_different_blocks_do_not_share_a_call():
    ty = "<8 x double>"
    module = LlvmModule(Target("cpu", lanes=8))
    lines = [f"  %s = call {ty} @qd_sin_v8f64({ty} %x)", "next1:", f"  %c = call {ty} @qd_cos_v8f64({ty} %x)"]
    assert calls._paired(module, "\n".join(lines)) == "\n".join(lines)
    assert "qd_sin_cos_v8f64" in calls._paired(module, "\n".join(lines[::2]))


def _gradient_size(texts, function, n):
    with qd.init(default_fp=qd.f64, batch=BATCH, offline_cache=False):
        x = qd.field(qd.f64, shape=16, needs_grad=True)
        loss = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.func
        def step(v, a):
            return (function(v, a) if qd.static(function is qd.pow) else function(v)) * 0.3 + a

        @qd.kernel
        def chain():
            for _ in range(1):
                v = x[0]
                for i in qd.static(range(n)):
                    v = step(v, x[i % 10])
                loss[None] = v

        x.fill(0.85)
        loss.grad.fill(1.0)
        chain()
        chain.grad()
        return texts["chain_grad"][1]


@pytest.mark.parametrize("function", [qd.sin, *(pytest.param(f, marks=pytest.mark.slow) for f in (qd.tan, qd.pow))])
def test_code_grows_linearly_in_a_batch(texts, function):
    small, large = (_gradient_size(texts, function, n) for n in (100, 200))
    assert large < 2.5 * small < 160_000
