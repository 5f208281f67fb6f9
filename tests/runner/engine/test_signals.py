"""A worker that dies by a signal in a kernel: its trial runs again with every index checked, and its row names the user's line."""

import json

import pytest
from runner_helpers import only_run

import qdrun as qd
from qdrun.runner import submit
from qdrun.runner.engine.resume import resume
from qdrun.runner.store.follower import read
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.workers.records import failed_record, place_of

from . import jobs_for_bounds
from .jobs_for_bounds import Away, AwayParams, Slip, SlipParams

CONFIG = """version: 1
name: away
job: {{target: "{job}:Away"}}
sweep: {{method: list, trials: {trials}}}
limits: {limits}
storage: {storage}
"""
FAR = 1 << 29


@pytest.mark.parametrize("way", ["forward", "reverse"])
@pytest.mark.parametrize("options", [{"debug": True}, {"backend": "python"}], ids=["debug", "interpreter"])
def test_a_failed_check_says_the_trial_the_step_and_the_direction(way, options):
    job = Away(AwayParams(at=9, way=way), wanted=("x",))
    with pytest.raises(qd.QdrunRuntimeError) as caught, job.opened(**{"backend": "cpu", "threads": 1} | options):
        job.run()
    record = failed_record(caught.value, place_of(caught.value, "1f2e", job.watch))
    said = record["error"]["message"]
    name = "x" if way == "forward" else "far"
    compiled = f"index out of range: axis 0 of `{name}` has index 9 but extent 4\n  at "
    assert said.startswith(f"{name}[9] is outside its shape (4,)\n  at " if "backend" in options else compiled)
    assert f"\n  in trial 1f2e, {'time step 5, forward' if way == 'forward' else 'reverse'}" in said


@pytest.mark.parametrize(
    ("params", "debug", "kernel", "place"),
    [
        ({"x": -1.0}, True, "root", "time step 1, forward"),
        ({"x": 0.0}, True, "root", "reverse"),
        ({"count": 1 << 20}, {"overflow": True}, "count", "time step 0, forward"),
    ],
    ids=["nan", "infinite gradient", "overflow"],
)
def test_the_origin_of_a_nan_and_an_overflow_are_rows_with_their_place(params, debug, kernel, place):
    values = SlipParams.model_validate(params)
    job = Slip(values)
    with pytest.raises(qd.QdrunAssertionError) as caught, job.opened(threads=1, debug=debug):
        job.run()
    said = failed_record(caught.value, place_of(caught.value, "1f2e", job.watch))["error"]["message"]
    assert "jobs_for_bounds.py:" in said and f"kernel `{kernel}`" in said and f"\n  in trial 1f2e, {place}" in said
    job = Slip(values)
    with job.opened(threads=1, debug={"nan": False, "bounds": True, "overflow": False}):
        job.run()  # these checks were not asked for


def run(folder, trials, overrides=(), limits="{}", **how):
    config = folder / "away.yaml"
    text = CONFIG.format(job=jobs_for_bounds.__file__, trials=json.dumps(trials), limits=limits, storage=folder / "runs")
    config.write_text(text)
    return submit(config, overrides=overrides, **how).rows


@pytest.mark.slow
def test_the_row_is_the_users_line_and_a_crash_without_one_says_so(local_ray, tmp_path):
    found, good, aborted = run(
        tmp_path, [{"at": FAR}, {"at": 2}, {"way": "abort"}], limits="{retries: {crash: 1}, max_concurrent: 1}"
    )
    assert (good["status"], good["loss"], good["grad.x"], good["attempts"]) == ("done", 48.0, 72.0, 1)
    assert (found["status"], found["error_type"], found["attempts"]) == ("failed", "QdrunAssertionError", 2)
    lines = found["error"].splitlines()
    assert lines[0] == f"index out of range: axis 0 of `x` has index {FAR} but extent 4"
    assert "jobs_for_bounds.py:33 in kernel `step`" in lines[1] and lines[2].strip() == "y[None] += x[at + i] ** 3"
    assert f"  in trial {found['trial']}, time step 5, forward" in lines
    assert lines[-1].startswith("  its process died before: Segmentation fault; this is what it says when it is run again")
    assert (aborted["status"], aborted["error_type"], aborted["attempts"]) == ("poisoned", "WorkerCrashedError", 3)
    lines = aborted["error"].splitlines()
    assert lines[0] == "its process died: Aborted (3 attempts)"
    assert "  run again with every index checked, it died again: no index out of bounds was found" in lines
    events = read(RunFolder(str(only_run(tmp_path)))).events
    own = [(e["event"], e.get("failure"), e.get("charged")) for e in events if e.get("trial") == aborted["trial"]]
    assert [e for e in own if e[0] != "started"] == [
        ("retry", "crash", True),
        ("retry", "crash", False),
        ("ended", "crash", None),
    ]
    checked = [e["attempt"] for e in events if e["event"] == "started" and e.get("checked")]
    assert checked == [2, 2]


@pytest.mark.slow
def test_an_illegal_address_on_a_gpu_is_the_users_line_too(one_worker, tmp_path):
    """What the driver says of one is raised by the job here; every later call of the process fails alike."""
    found, good, nothing = run(tmp_path, [{"at": FAR, "way": "gpu"}, {"at": 2}, {"way": "gpu"}], limits="{retries: {crash: 0}}")
    assert (good["status"], good["loss"]) == ("done", 48.0)
    assert (found["status"], found["error_type"]) == ("failed", "QdrunAssertionError")
    lines = found["error"].splitlines()
    assert lines[0] == f"index out of range: axis 0 of `x` has index {FAR} but extent 4" and found["checks"] == "bounds"
    died = "kernel `step` failed: it read or wrote memory that is not its own (CUDA_ERROR_ILLEGAL_ADDRESS)"
    assert lines[-1] == f"  its process died before: {died}; this is what it says when it is run again with every index checked"
    assert (nothing["status"], nothing["error_type"]) == ("poisoned", "DeviceError")
    lines = nothing["error"].splitlines()
    assert lines[0].startswith(f"{died} (")
    assert "  run again with every index checked, it ended well: no index out of bounds was found" in lines


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [["device.backend=python"], []], ids=["interpreter", "debug"])
def test_debug_mode_says_it_at_once(one_worker, tmp_path, overrides):
    (row, good) = run(tmp_path, [{"at": FAR}, {"at": 2}], overrides, debug=not overrides)
    kind = "QdrunRuntimeError" if "python" in str(overrides) else "QdrunAssertionError"
    assert (row["status"], row["error_type"], row["attempts"]) == ("failed", kind, 1)
    assert str(FAR) in row["error"] and "jobs_for_bounds.py:33 in kernel `step`" in row["error"]
    assert f"\n  in trial {row['trial']}, time step 5, forward" in row["error"]
    assert (good["status"], good["loss"], good["grad.x"]) == ("done", 48.0, 72.0)


@pytest.mark.slow
def test_what_is_left_of_a_run_goes_on_in_debug_mode_and_its_rows_say_so(one_worker, tmp_path):
    config = tmp_path / "slip.yaml"
    text = CONFIG.format(
        job=jobs_for_bounds.__file__, trials='[{"x": -1.0}, {"x": 1.0}]', limits="{}", storage=tmp_path / "runs"
    )
    config.write_text(text.replace(":Away", ":Slip"))
    bad, good = submit(config).rows
    assert (bad["error_type"], bad["checks"], good["status"], good["checks"]) == ("NotFinite", None, "done", None)
    bad, again = resume(RunFolder(str(only_run(tmp_path))), failed=True, debug=True, quiet=True).rows
    assert (bad["status"], bad["error_type"], bad["checks"]) == ("failed", "QdrunAssertionError", "bounds, asserts, nan")
    assert "in kernel `root`" in bad["error"] and "time step 1, forward" in bad["error"]
    assert again == good
