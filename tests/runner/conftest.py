"""One local Ray for all tests of the runner, in a short folder of its own, always shut down."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray looks when it is loaded, by whichever test comes first, and never again


@pytest.fixture(scope="session")
def ray_folder():
    """A short folder for Ray's sockets and a token of its own; the user's are left alone."""
    folder = tempfile.mkdtemp(prefix="qr", dir="/tmp")
    token = Path(folder, "token")
    token.write_text("0123456789abcdef" * 4)
    saved = {name: os.environ.get(name) for name in ("RAY_TMPDIR", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")}
    os.environ |= {"RAY_TMPDIR": folder, "RAY_AUTH_TOKEN_PATH": str(token), "RAY_AUTH_MODE": "token"}
    yield folder
    for name, value in saved.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def local_ray(ray_folder):
    """A Ray with two cores and two pretended GPUs, open in this process: `submit` uses the one that is open."""
    import ray

    options = {
        "num_cpus": 2,
        "num_gpus": 2,
        "include_dashboard": False,
        "log_to_driver": False,
        "object_store_memory": 100 << 20,
    }
    ray.init(address="local", logging_level="ERROR", **options)
    yield ray
    ray.shutdown()
