"""What jobs log on a worker: shown while it runs, in the run's folder afterwards, of trials alone and of batches."""

import threading

import jobs_for_lanes
import numpy as np
from lane_helpers import record, wait_for

from qdrun.runner.live import writer
from qdrun.runner.live.points import live_values
from qdrun.runner.store.columns import decoded
from qdrun.runner.workers import BatchSpec
from qdrun.runner.workers.spec import BatchColumns

TARGET = {"target": "jobs_that_log.py", "gradients": []}


def test_a_running_trial_shows_what_it_has_logged_and_its_files_have_it_meanwhile(bench, monkeypatch):
    monkeypatch.setattr(writer, "WRITE_EVERY_S", 0.01)
    jobs_for_lanes.GATES["log"] = threading.Event()
    worker = bench.worker("Says", lanes=1, **TARGET)
    running = threading.Thread(target=worker.run, args=(bench.batch("t1", number=6.0, wait="log"),))
    running.start()
    wait_for(lambda: (point := worker.progress().lanes[0].point) is not None and point.step == 3)
    (lane,) = worker.progress().running().values()
    assert lane.seen()["values"] == {"loss": 2.0, "t": 2.0} and lane.progress == "time step 3, loss 2, t 2"
    wait_for(lambda: "t1" in live_values(bench.folder) and len(live_values(bench.folder)["t1"]) == 2)
    jobs_for_lanes.GATES["log"].set()
    running.join()
    wait_for(lambda: len(live_values(bench.folder)["t1"]) == 4)
    found = live_values(bench.folder)["t1"]
    assert found.step.tolist() == [1, 2, 3, 4] and found["loss"].tolist() == [6.0, 3.0, 2.0, 0.0]
    assert worker.progress().lanes[0].point is None


def test_the_last_values_of_every_trial_are_kept_also_of_one_that_fails(bench):
    worker = bench.worker("Says", lanes=2, **TARGET)
    ends = [worker.run(bench.batch(f"t{k}", number=float(k), fails=k % 2 == 1)) for k in range(6)]
    assert [record(end)["status"] for end in ends] == ["done", "failed"] * 3
    worker.close()
    found = live_values(bench.folder)
    assert {name: series["loss"].tolist() for name, series in found.items()} == {
        f"t{k}": [float(k), k / 2, k / 3, 0.0] for k in range(6)
    }


def test_trials_of_a_batch_that_is_optimised_have_their_own_values(bench):
    speeds = np.random.default_rng().uniform(2.0, 3.0, 5).tolist()
    section = {"rule": "sgd", "steps": 4, "learning_rate": 0.1, "params": ["speed"]}
    columns = BatchColumns({"speed": speeds[0]}, {"speed": speeds}, [0] * 5, section)
    trials = tuple(f"t{k}" for k in range(5))
    worker = bench.worker("Roll", lanes=1, **TARGET | {"gradients": ["speed"]})
    ran = worker._lanes.together

    def one_was_stopped(lane, batch):
        lane.stop("t1", "before it began")
        return ran(lane, batch)

    worker._lanes.together = one_was_stopped
    end = worker.run(BatchSpec("l", trials, (1,) * 5, columns))
    worker.close()
    histories = {}
    for rows in end.rows:
        columns = decoded(rows.outputs["opt.history"]._asdict()).tolist()
        histories |= dict(zip(rows.trials, columns, strict=True))
    found = live_values(bench.folder)
    assert end.ends["t1"]["status"] == "cancelled" and set(found) == set(histories) == {"t0", "t2", "t3", "t4"}
    for name, series in found.items():
        assert series.step.tolist() == [0, 1, 2, 3, 4]
        assert series["loss"].tolist() == histories[name]
        assert series["grad_norm"][0] == 2.0 * (speeds[int(name[1])] - 1.0)
