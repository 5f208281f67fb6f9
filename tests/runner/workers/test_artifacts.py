"""Files that a trial leaves in its folder lie in the run folder when it has ended, below its attempt."""

import threading
from pathlib import Path

import pytest
from lane_helpers import Bench, record, wait_for

from qdrun.runner.store.files import LocalFiles, StorageFull
from qdrun.runner.workers import artifacts

HERE = Path(__file__).parent
NAMES = ["frames/0 of 2.0.bin", "frames/1 of 2.0.bin"]
TARGET = {"target": "jobs_with_files.py", "gradients": []}


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where the workers of this process make folders of trials."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == [], "nothing is left behind"


def files_of(bench, folder):
    """What lies there, by its path below."""
    below = bench.folder.files.below(folder)
    return {path.removeprefix(f"{folder}/"): bench.folder.files.read(path) for path in below}


def test_the_files_of_a_trial_are_in_the_run_folder_when_it_has_ended(bench, temporary):
    worker = bench.worker("Leaves", **TARGET)
    found = record(worker.run(bench.batch("t/1", x=2.0)))
    assert (found["status"], found["outputs"]["before"]) == ("done", 0.0)
    assert found["artifacts"] == {"path": "trials/t%2F1/a1/artifacts", "files": 2, "bytes": 6, "names": NAMES}
    assert files_of(bench, found["artifacts"]["path"]) == {"frames/0 of 2.0.bin": bytes(3), "frames/1 of 2.0.bin": b"\1\1\1"}


def test_a_failed_trial_leaves_its_files_and_each_attempt_begins_with_an_empty_folder(bench, temporary):
    worker = bench.worker("Leaves", **TARGET)
    first = record(worker.run(bench.batch("t1", mood="raise")))
    second = record(worker.run(bench.batch("t1", 2, count=1)))
    assert (first["status"], first["error"]["message"]) == ("failed", "after its files")
    names = [name.replace("2.0", "1.0") for name in NAMES]
    assert first["artifacts"] == {"path": "trials/t1/a1/artifacts", "files": 2, "bytes": 6, "names": names}
    assert (second["outputs"]["before"], second["artifacts"]["path"], second["artifacts"]["files"]) == (
        0.0,
        "trials/t1/a2/artifacts",
        1,
    )


def test_trials_that_follow_each_other_in_one_program_have_folders_of_their_own(bench, temporary):
    worker = bench.worker("Leaves", **TARGET)
    ends = [end for news in worker.run_all([bench.batch(f"t{k}", x=float(k)) for k in range(3)]) for end in news.ends]
    for k, end in enumerate(ends):
        found = record(end)
        assert found["outputs"]["before"] == 0.0
        assert set(files_of(bench, found["artifacts"]["path"])) == {f"frames/{i} of {float(k)}.bin" for i in range(2)}


def test_a_trial_that_was_stopped_leaves_its_files(bench, temporary):
    worker, found = bench.worker("Leaves", lanes=1, **TARGET), []
    thread = threading.Thread(target=lambda: found.append(worker.run(bench.batch("t1", mood="stop"))), daemon=True)
    thread.start()
    wait_for(lambda: worker.progress().lanes[0].steps > 2)
    worker.stop("t1", "enough")
    thread.join(60)
    assert record(found[0])["status"] == "cancelled" and record(found[0])["artifacts"]["files"] == 2


def test_a_trial_without_files_has_no_folder_and_links_and_pipes_are_left_out(bench, temporary):
    worker = bench.worker("Leaves", **TARGET)
    assert "artifacts" not in record(worker.run(bench.batch("t1", mood="none")))
    assert record(worker.run(bench.batch("t2", mood="link")))["artifacts"]["files"] == 2
    assert "artifacts" not in record(worker.run(bench.batch("t3", count=0))), "a folder without a file is none"


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_FILES"])
def test_a_folder_that_is_too_large_fails_its_trial_and_nothing_of_it_is_kept(bench, temporary, monkeypatch, limit):
    monkeypatch.setattr(artifacts, limit, 5 if limit == "MOST_BYTES" else 1)
    worker = bench.worker("Leaves", **TARGET)
    found = record(worker.run(bench.batch("t1")))
    assert (found["status"], found["failure"], found["error"]["type"]) == ("failed", "user_error", "TooManyArtifacts")
    assert found["error"]["message"].startswith("its artifacts are 6 bytes in 2 files, and a trial may leave ")
    assert "loss" not in found and "artifacts" not in found and not (bench.folder.path / "trials/t1/a1/artifacts").exists()
    found = record(worker.run(bench.batch("t2", mood="raise")))
    assert found["error"]["type"] == "RuntimeError", "its own error stays the one that counts"
    assert found["error"]["message"].startswith("after its files\n  its artifacts are 6 bytes")


def test_files_wait_for_room_as_results_do(bench, temporary, monkeypatch):
    real, left = LocalFiles.writing, [2]

    def writing(self, path):
        if "/artifacts/" in path and left[0]:
            left[0] -= 1
            raise StorageFull("no room")
        return real(self, path)

    monkeypatch.setattr(LocalFiles, "writing", writing)
    found = record(bench.worker("Leaves", **TARGET).run(bench.batch("t1")))
    assert (found["status"], found["artifacts"]["files"], left) == ("done", 2, [0])


def test_files_go_to_an_object_store_too(temporary):
    bench = Bench("memory://own-files/runs")
    try:
        found = record(bench.worker("Leaves", **TARGET).run(bench.batch("t1", x=2.0)))
        assert set(files_of(bench, found["artifacts"]["path"])) == {"frames/0 of 2.0.bin", "frames/1 of 2.0.bin"}
    finally:
        assert bench.workers[0].close(30.0)
