"""What travels between runner and worker: the same batches and ends come out as went in, and nothing but builtin types is on its way."""

import pickle

import numpy as np

from qdrun.runner.ray_adapter.worker_actor import WorkerActor as Shell
from qdrun.runner.workers import BatchSpec, TrialSpec, Worker
from qdrun.runner.workers.spec import BatchEnd, LeaseNews, TrialEnd
from qdrun.runner.workers.wire import packed, packed_news, unpacked, unpacked_news


def batches():
    trials = [TrialSpec(f"t{k}", k + 1, {"params": {"x": k / 7, "name": "é"}, "seed": k, "optimize": None}) for k in range(4)]
    return (
        BatchSpec("l", (trials[0], trials[1]), 10, False, 20, 5, behind=True, may_fail=3),
        BatchSpec("l", (trials[2],), None, launch=6),
        BatchSpec("", (trials[3],)),
    )


def news():
    record = {"status": "done", "loss": 0.1, "gradients": {"x": [1.0, 2.0]}, "parts": {"run": 1e-5}, "error": None}
    done = BatchEnd("l", (TrialEnd("t0", 1, record), TrialEnd("t1", 2, {**record, "loss": float("inf")})), "old", 5)
    return LeaseNews((done, BatchEnd("l", (), launch=6)), 7, 0.25)


def builtin(value):
    """Whether a value is of builtin types all through, whose instances cloudpickle does not look at one by one."""
    if type(value) in (list, tuple):
        return all(map(builtin, value))
    if type(value) is dict:
        return all(builtin(item) for pair in value.items() for item in pair)
    return value is None or type(value) in (bool, int, float, str, bytes)


def test_batches_come_out_as_they_went_in():
    sent = packed(batches())
    assert builtin(sent)
    got = unpacked(pickle.loads(pickle.dumps(sent)))
    assert got == batches()
    assert [type(trial) for batch in got for trial in batch.trials] == [TrialSpec] * 4 and type(got[0]) is BatchSpec


def test_news_come_out_as_they_went_in():
    sent = packed_news(news())
    assert builtin(sent)
    got = unpacked_news(pickle.loads(pickle.dumps(sent)))
    assert got == news() and [end.begun for end in got] == [True, False]
    assert type(got.ends[0].ends[0]) is TrialEnd and got.ends[0].ends[0].done


def test_an_array_of_a_record_goes_along():
    end = BatchEnd("l", (TrialEnd("t", 1, {"status": "done", "outputs": {"y": np.arange(3.0)}}),))
    (got,) = unpacked_news(pickle.loads(pickle.dumps(packed_news(LeaseNews((end,))))))
    assert got.ends[0].record["outputs"]["y"].tolist() == [0.0, 1.0, 2.0]


def test_what_ray_sees_of_a_worker_has_its_methods_and_none_that_a_trial_goes_through():
    """Ray wraps every method of an actor's class, those that it inherits, too."""
    public = {name for name, value in vars(Worker).items() if callable(value) and not name.startswith("_")}
    assert {name for name in dir(Shell) if not name.startswith("_")} == public - {
        "close",
        "preempt",
    }  # killed, or told by a signal
    assert Worker not in Shell.__mro__ and not [name for name in vars(Shell) if name.startswith("_") and name[1] != "_"]
