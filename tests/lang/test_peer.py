"""The same kernels in quadrants and here, on the same inputs. What differs on purpose is in docs/language-differences.md.

The peer runs in a process of its own: this file, as a program, writes what the peer computes.
"""

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import peer_corners  # noqa: F401
import peer_structs  # noqa: F401
import peer_structures  # noqa: F401
from peer_kernels import CASES


def compute(lib, name):
    """The arrays of one case, in a program of its own."""
    lib.init(arch=lib.cpu, fast_math=False, offline_cache=False, ad_stack_experimental_enabled=True)
    rng = np.random.default_rng(sum(map(ord, name)))
    return [np.asarray(a) for a in CASES[name](lib, rng)]


@pytest.fixture(scope="module")
def of_the_peer(tmp_path_factory):
    """What the peer computes, for every case; an error is its text."""
    if importlib.util.find_spec("quadrants") is None:
        pytest.skip("quadrants is not installed (pip install qdrun[bench])")
    where = tmp_path_factory.mktemp("peer") / "results.pickle"
    done = subprocess.run([sys.executable, __file__, str(where)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return pickle.loads(where.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_what_it_computes_in_the_peer(name, of_the_peer):
    import qdrun as qd

    theirs, ours = of_the_peer[name], compute(qd, name)
    assert not isinstance(theirs, str), theirs
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        single = b.dtype != np.float64 or not name.startswith("gradient")
        np.testing.assert_allclose(a, b, rtol=3e-5 if single else 1e-11, atol=1e-5 if single else 1e-12)


def main(where):
    """Compute every case with the peer."""
    import quadrants

    results = {}
    for name in CASES:
        try:
            results[name] = compute(quadrants, name)
        except Exception as e:
            results[name] = f"{type(e).__name__}: {e}"
    Path(where).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
