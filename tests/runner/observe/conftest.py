"""Runs made by hand, whose journal has the times that a test wants."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "store"))
sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def made(tmp_path):
    """A run of so many trials, and its events written at the seconds after its start that the test gives."""
    from made_runs import Made

    return lambda *args, **options: Made(tmp_path / "runs", *args, **options)
