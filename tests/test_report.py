"""The report about a device: what it says of tests that pass, fail, or end their process."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes end by signals")

MIXED = """
import pytest

def test_right():
    pass

def test_wrong():
    assert [1, 2] == [1, 3], "they differ"

@pytest.mark.skip(reason="not here")
def test_skipped():
    pass
"""


@pytest.fixture(scope="module")
def report():
    sys.path.insert(0, str(Path(__file__).parents[1]))
    try:
        from tests import report
    finally:
        sys.path.pop(0)
    return report


@pytest.mark.slow
def test_a_file_is_counted_and_its_failures_are_shown(report, tmp_path):
    path = tmp_path / "test_mixed.py"
    path.write_text(MIXED)
    found = report.run_file(path, ["-p", "no:cacheprovider"], 100)
    assert (found.passed, len(found.failed), found.skipped, found.crashed, found.fine) == (1, 1, 1, "", False)
    ((name, text),) = found.failed.items()
    assert name.endswith("::test_wrong") and "they differ" in text
    whole = report.text("a card", ["- facts"], [report.Outcome("first steps", 1), found], 1)
    assert "2 passed, 1 failed, 1 skipped, 0 crashed; 1 of 1 files." in whole and "they differ" in whole
    assert "| test_mixed.py | 1 | 1 | 1 |" in whole


@pytest.mark.slow
def test_a_process_that_a_fault_ends_names_its_last_test(report, tmp_path):
    path = tmp_path / "test_fault.py"
    path.write_text("import os\n\ndef test_before():\n    pass\n\ndef test_fault():\n    os.abort()\n")
    found = report.run_file(path, ["-p", "no:cacheprovider", "-p", "no:faulthandler"], 100)
    assert not found.fine and found.crashed.startswith("ended by SIGABRT") and "test_fault.py::test_fault" in found.crashed
    assert "test_fault.py crashed" in report.text("a card", [], [report.Outcome("first steps", 1), found], 1)


@pytest.mark.slow
def test_a_file_that_hangs_is_ended(report, tmp_path):
    path = tmp_path / "test_hangs.py"
    path.write_text("import time\n\ndef test_hangs():\n    time.sleep(100)\n")
    found = report.run_file(path, ["-p", "no:cacheprovider"], 3)
    assert found.crashed.startswith("stopped after 3 s")


def test_without_a_device_the_command_says_why():
    command = [sys.executable, "-m", "tests.report", "--arch", "amdgpu", "--device", "77"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, cwd=Path(__file__).parents[1])
    if Path("/dev/kfd").exists():
        pytest.skip("this machine has an AMD GPU")
    assert done.returncode == 2 and "- amdgpu not usable: no such device on this machine: no AMD GPU driver" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["cuda", "metal"])
def test_the_first_steps_on_the_emulated_device(report, arch):
    found = report.probe(arch, "emulated")
    assert found.fine and found.passed == 1, found.crashed
    assert "a recorded graph gives the right sum" in found.said
