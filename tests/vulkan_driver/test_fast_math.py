"""``fast_math`` takes GLSL's functions."""

import numpy as np
import pytest

import qdrun as qd

FUNCTIONS = {"sin": np.sin, "cos": np.cos, "tan": np.tan, "exp": np.exp}


@pytest.fixture
def results(start):
    """What the functions give for some arguments, accurate and fast."""

    def run(arguments, fast):
        start(fast_math=fast, offline_cache=False)
        x = qd.field(qd.f32, shape=len(arguments))
        s, c, t, e = (qd.field(qd.f32, shape=len(arguments)) for _ in FUNCTIONS)

        @qd.kernel
        def all_of_them():
            for i in x:
                s[i], c[i], t[i], e[i] = qd.sin(x[i]), qd.cos(x[i]), qd.tan(x[i]), qd.exp(x[i])

        x.from_numpy(arguments)
        all_of_them()
        return dict(zip(FUNCTIONS, (f.to_numpy() for f in (s, c, t, e))))

    return lambda arguments: (run(arguments, False), run(arguments, True))


def test_fast_functions_are_others_and_as_close_as_vulkan_promises(results):
    x = np.random.default_rng().uniform(-3.1, 3.1, 4096).astype(np.float32)
    accurate, fast = results(x)
    for name, f in FUNCTIONS.items():
        exact = f(x.astype(float))
        assert (accurate[name] != fast[name]).any()
        if name == "exp":
            assert (np.abs(fast[name] / exact - 1.0) < 8 * 2.0**-24).all()
        elif name != "tan":
            assert (np.abs(fast[name] - exact) < 2.0**-11).all()
    quotient = fast["sin"].astype(float) / fast["cos"]
    assert np.allclose(fast["tan"], quotient, rtol=1e-5)


def test_fast_exp_keeps_its_limits(results):
    x = np.array([np.inf, -np.inf, np.nan, 88.7, 89.0, -104.5, -200.0, 0.0, -0.0], np.float32)
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp(x.astype(float)).astype(np.float32)
    assert np.allclose(results(x)[1]["exp"], exact, rtol=1e-6, atol=0.0, equal_nan=True)
