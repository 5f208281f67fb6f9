"""What Ray sees of a worker, and what travels: pickles, of which Ray looks at no part."""

import pickle

from qdrun.runner.ray_adapter.worker_actor import ActorLog
from qdrun.runner.ray_adapter.worker_actor import WorkerActor as Shell
from qdrun.runner.workers import Worker


def shell(worker):
    made = object.__new__(Shell)
    made._worker, made._failed, made._log = worker, None, ActorLog()
    return made


def test_batches_and_news_travel_as_bytes(bench):
    made = shell(bench.worker(lanes=1))
    batches = tuple(bench.batch(f"t{k}", launch=k + 1, number=k) for k in range(3))
    (only,) = pickle.loads(made.run(pickle.dumps(batches[:1]))).ends
    assert (only.launch, only.begun, only.ends["t0"]["loss"]) == (1, True, 0.0)
    ends = [end for news in made.run_all(pickle.dumps(batches[1:])) for end in pickle.loads(news).ends]
    assert [(end.launch, end.ends[f"t{end.launch - 1}"]["loss"]) for end in ends] == [(2, 1.0), (3, 2.0)]


def test_a_trial_of_a_batch_is_a_batch_with_its_own_parameters_and_seed():
    from qdrun.runner.workers import BatchColumns, BatchSpec

    columns = BatchColumns({"x": 1.0, "n": 3}, {"x": [1.0, 2.0]}, [7, 8], {"rule": "sgd"})
    batch = BatchSpec("l", ("a", "b"), (1, 4), columns, 10, launch=5)
    part = batch.part(1)
    assert part == BatchSpec("l", ("b",), (4,), BatchColumns({"x": 2.0, "n": 3}, {}, [8], {"rule": "sgd"}), 10, launch=5)
    assert part.columns.own_spec("b", 0) == columns.own_spec("b", 1)
    assert columns.own_spec("b", 1) == {"trial": "b", "params": {"x": 2.0, "n": 3}, "seed": 8, "optimize": {"rule": "sgd"}}


def test_what_ray_sees_of_a_worker_has_its_methods_and_none_that_a_trial_goes_through():
    """Ray wraps every method of an actor's class, those that it inherits, too."""
    public = {name for name, value in vars(Worker).items() if callable(value) and not name.startswith("_")}
    assert {name for name in dir(Shell) if not name.startswith("_")} == public - {
        "close",
        "preempt",
    }  # killed, or told by a signal
    assert Worker not in Shell.__mro__ and not [name for name in vars(Shell) if name.startswith("_") and name[1] != "_"]
