"""The two kinds of places where a run can lie."""

import sys
import uuid
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(params=["local", "memory"])
def where(request, tmp_path):
    """A folder of this machine, or one of fsspec's memory, empty."""
    return str(tmp_path / "runs") if request.param == "local" else f"memory://{uuid.uuid4().hex}/runs"
