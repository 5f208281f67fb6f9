"""What the tests of the runner share."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_job_is_loaded():
    """A test begins without another test's job: the place of its modules would be what ``monkeypatch`` puts back on the path."""
    module = sys.modules.get("qdrun.runner.jobcode.imports")
    if module is not None:
        module.IMPORTS.release()
