"""The worker without Ray: lanes at once, what jobs do wrong, stopping, the device, the owner, wear."""

import gc
import json
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import jobs_for_lanes as jobs
import numpy as np
import pytest
from lane_helpers import at_once, record, wait_for

from qdrun.compiler.program.program import _programs
from qdrun.jobs.base import execute
from qdrun.runner.store import replay
from qdrun.runner.store.attempts import Attempt, arrays_of, ended, started
from qdrun.runner.store.files import LocalFiles, StorageFull
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.owner import OwnerLost, owner_numbers, take
from qdrun.runner.workers import worker as worker_module
from qdrun.runner.workers.device_check import GROWN_TIMES, WARM_LOOKS, DeviceMismatch, Wear, process_bytes


def gate(name, parties):
    jobs.GATES[name] = threading.Barrier(parties)
    return name


def test_a_trial_gives_a_record_that_the_store_takes(bench):
    worker = bench.worker()
    found = record(worker.run(bench.batch("t1", claim=120, number=3, size=4)))
    assert (found["status"], found["loss"], found["gradients"]["g"]) == ("done", 3.0, [3.0, 4.0, 5.0, 6.0])
    assert (found["planned_bytes"], found["used_bytes"], found["claim_bytes"], found["lane"]) == (100, 100, 120, 0)
    assert found["started_t"] <= found["ended_t"]
    assert "over_claim" not in found and "failure" not in found
    assert not (bench.folder.path / "trials").exists()  # a small record is a line of the journal and no file
    with Journal(bench.folder, gone=max(owner_numbers(bench.folder.files), default=0)) as journal:
        ended(journal, [(Attempt("t1", 1, journal.owner.number), found)])
    assert json.loads(json.dumps(found)) == found


def test_lanes_run_at_once_and_wait_for_each_other(bench):
    """Each of two trials goes on only when both are in their run."""
    worker = bench.worker(lanes=2)
    name = gate("both", 2)
    ends = at_once(*(lambda k=k: worker.run(bench.batch(f"t{k}", number=k, gate=name)) for k in (1, 2)))
    assert [record(e)["loss"] for e in ends] == [1.0, 2.0]
    assert {record(e)["lane"] for e in ends} == {0, 1}


def test_more_batches_than_lanes_wait_for_a_free_lane(bench):
    worker = bench.worker(lanes=2)
    ends = at_once(*(lambda k=k: worker.run(bench.batch(f"t{k}", number=k)) for k in range(7)))
    assert [record(e)["loss"] for e in ends] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert {record(e)["lane"] for e in ends} <= {0, 1}
    assert worker.progress().trials == 7


def test_large_gradients_go_to_the_store_and_not_through_the_record(bench):
    worker = bench.worker()
    found = record(worker.run(bench.batch("t1", number=1, size=100_000)))
    assert found["gradients"]["g"]["shape"] == [100_000]
    assert len(json.dumps(found)) < 4000
    assert np.array_equal(arrays_of(bench.folder, found)["g"], np.arange(100_000, dtype=np.float32) + 1)
    assert (bench.folder.path / "trials/t1/a1/result.json").is_file()


# ---- programs side by side


def serial(cases, **options):
    out = []
    for params in cases:
        job = jobs.Spin(jobs.Spin.Params(**params))
        out.append(execute(job, threads=1, memory_limit_bytes=None, **options).outcome)
    return out


CASES = [{"n": 5 + k % 3, "steps": 4 + k % 2, "k": 1.0 + 0.1 * k, "repeat": 1 + k % 4} for k in range(8)]


@pytest.mark.parametrize(("backend", "which"), [("cpu", None), ("cuda", "emulated")])
def test_two_lanes_give_the_gradients_of_serial_runs_to_the_bit(bench, backend, which):
    """Kernels of the module, so both programs launch through the same objects; two shapes and two loop counts."""
    expected = serial(CASES, backend=backend, device=which)
    worker = bench.worker("Spin", lanes=2, backend=backend, which=which)

    def lane(order):
        batches = [bench.batch(f"t{k}-{order[0]}", **CASES[k]) for k in order]
        return [record(end) for news in worker.run_all(batches) for end in news.ends]

    orders = [[0, 1, 2, 3, 4, 5, 6, 7], [3, 6, 1, 4, 7, 2, 5, 0]]
    for order, records in zip(orders, at_once(*(lambda o=o: lane(o) for o in orders))):
        assert len(records) == len(order)
        for k, found in zip(order, records):
            assert found["status"] == "done", found["error"]["traceback"]
            assert float(found["loss"]).hex() == float(expected[k].loss).hex()
            assert float(found["gradients"]["k"]).hex() == float(expected[k].gradients["k"]).hex()
            assert found["gradients"]["x"] == np.asarray(expected[k].gradients["x"]).tolist()


def test_a_program_that_a_trial_leaves_open_is_not_seen_by_the_next(bench):
    worker = bench.worker(lanes=1)
    assert record(worker.run(bench.batch("t1", mood="leak a program")))["status"] == "done"
    found = record(worker.run(bench.batch("t2", mood="look for a program")))
    assert found["error"]["message"].startswith("no program in this thread")


def test_kernels_are_compiled_once_for_all_trials_and_lanes():
    """In a process of its own: what other tests have left in theirs may keep kernels from being recorded."""
    alone = f"{__file__}::test_kernels_are_compiled_once_in_this_process"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib", alone]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"QDRUN_ALONE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


@pytest.mark.skipif("QDRUN_ALONE" not in os.environ, reason="the test before runs it in a process of its own")
def test_kernels_are_compiled_once_in_this_process(bench):
    from qdrun.compiler.compile.cache import CACHE

    worker = bench.worker("Spin", lanes=2)
    worker.run(bench.batch("first", **CASES[0]))
    before = CACHE.lowered
    for k in range(6):
        worker.run(bench.batch(f"t{k}", **CASES[0] | {"k": 2.0 + k}))
    assert CACHE.lowered == before, list(CACHE.refusals)


# ---- what jobs do wrong


@pytest.mark.parametrize(
    ("mood", "failure", "kind", "message"),
    [
        ("raise", "user_error", "RuntimeError", "trial 5 raises"),
        ("exit", "user_error", "SystemExit", "trial 5 exits"),
        ("text", "user_error", "ValueError", "bad \\udc80 text"),
        ("nan", "not_finite", "NotFinite", "the loss is nan"),
    ],
)
def test_errors_of_a_job_are_data_and_the_lane_goes_on(bench, mood, failure, kind, message):
    worker = bench.worker(lanes=1)
    end = worker.run(bench.batch("t5", number=5, mood=mood))
    found = record(end)
    assert (found["status"], found["failure"], found["error"]["type"]) == ("failed", failure, kind)
    assert found["error"]["message"] == message
    assert not end.retire
    assert json.loads((bench.folder.path / "trials/t5/a1/spec.json").read_text())["params"]["number"] == 5
    assert record(worker.run(bench.batch("t6", number=6)))["status"] == "done"


def test_wrong_parameters_are_an_error_of_the_user(bench):
    found = record(bench.worker().run(bench.batch("t1", number="many")))
    assert (found["failure"], found["error"]["type"]) == ("user_error", "ValidationError")


def test_a_lost_device_retires_the_worker_and_leaves_the_rest_of_the_lease(bench):
    worker = bench.worker(lanes=1)
    batches = [bench.batch("t1"), bench.batch("t2", mood="lost"), bench.batch("t3")]
    first, second, third = [end for news in worker.run_all(batches) for end in news.ends]
    assert record(first)["status"] == "done" and not first.retire
    assert (record(second)["failure"], record(second)["restart"]) == ("infrastructure", True)
    assert second.retire.startswith("its device is lost to the process: the device's memory has failed")
    assert third.ends == {} and not third.begun
    assert worker.progress().retire == second.retire


def test_a_lease_waits_for_the_runner_once_as_many_of_its_trials_have_failed_as_may(bench):
    worker = bench.worker(lanes=1)
    wrong = {"number": "many"}
    batches = [bench.batch("t1"), bench.batch("t2", **wrong), bench.batch("t3"), bench.batch("t4", **wrong), bench.batch("t5")]
    ends = [end for news in worker.run_all([batch._replace(may_fail=2) for batch in batches]) for end in news.ends]
    assert [end.begun for end in ends] == [True, True, True, True, False]
    again = [end for news in worker.run_all([batch._replace(may_fail=2) for batch in batches[3:]]) for end in news.ends]
    assert [end.begun for end in again] == [True, True]  # it is counted from the beginning of the call


# ---- claims


def test_use_above_the_claim_is_reported_by_name(bench):
    found = record(bench.worker().run(bench.batch("t1", claim=120, mood="greedy")))
    assert found["over_claim"] == {"bytes": 30, "claim": 120, "by": {"state": 150}}


@pytest.mark.parametrize("strict", [True, False])
def test_a_program_is_refused_more_than_its_claim_unless_it_is_alone(bench, strict):
    worker = bench.worker("Spin")
    found = record(worker.run(bench.batch("t1", claim=2000, strict=strict, memory=10, **CASES[0])))
    if strict:
        assert found["failure"] == "out_of_memory"
        assert "the limit is 2,000" in found["error"]["message"]
        assert found["error"]["message"].endswith("the claim of the trial was 2,000 bytes on dev0, and its program got no more")
    else:
        assert found["status"] == "done"
        assert found["over_claim"]["bytes"] == found["used_bytes"] - 2000
        assert set(found["over_claim"]["by"]) >= {"state", "gradients"}


@pytest.mark.parametrize(("own", "claim"), [(1000, 1 << 30), (1 << 30, 1000)])
def test_the_smaller_of_the_claim_and_the_configs_limit_holds(bench, own, claim):
    batch = bench.batch("t1", claim=claim, memory=10, **CASES[0])
    made = bench.worker("Spin", limits={"memory_limit_bytes": own})
    assert "the limit is 1,000" in record(made.run(batch))["error"]["message"]


def test_the_budget_of_the_batch_reaches_the_program(bench):
    found = record(bench.worker("Spin").run(bench.batch("t1", budget=100, **CASES[0])))
    assert found["failure"] == "out_of_memory"
    assert "memory_budget of 100 bytes is too small" in found["error"]["message"]


# ---- stopping and watching


def test_stop_ends_a_trial_between_steps_and_no_other(bench):
    worker = bench.worker(lanes=2)
    ends = {}

    def run(name):
        ends[name] = worker.run(bench.batch(name, steps=1_000_000 if name == "long" else 30, number=1))

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in ("long", "short")]
    for thread in threads:
        thread.start()
    wait_for(lambda: any(s.trial == "long" and s.steps > 2 for s in worker.progress().lanes))
    assert worker.stop("long", "the user cancelled it")
    for thread in threads:
        thread.join(60)
    assert record(ends["long"])["status"] == "cancelled"
    assert record(ends["long"])["error"] == {"type": "Stopped", "message": "the user cancelled it", "traceback": ""}
    assert record(ends["short"])["status"] == "done"
    assert not worker.stop("long")


def test_stop_gets_through_a_job_that_catches_every_exception(bench):
    worker = bench.worker(lanes=1)
    found = []
    thread = threading.Thread(target=lambda: found.append(worker.run(bench.batch("t1", mood="rude"))), daemon=True)
    thread.start()
    wait_for(lambda: worker.progress().lanes[0].steps > 2)
    worker.stop("t1", "enough")
    thread.join(60)
    assert record(found[0])["status"] == "cancelled"


def test_a_trial_that_waits_in_its_lease_can_be_stopped_before_it_begins(bench):
    worker = bench.worker(lanes=1)
    jobs.GATES["door"] = threading.Event()
    found = []
    batches = [bench.batch("t1", wait="door"), bench.batch("t2", number="wrong"), bench.batch("t3")]
    thread = threading.Thread(
        target=lambda: found.extend(e for news in worker.run_all(batches) for e in news.ends), daemon=True
    )
    thread.start()
    wait_for(lambda: worker.progress().lanes[0].runs == 1)
    assert worker.stop("t2", "not this one")
    jobs.GATES["door"].set()
    thread.join(60)
    assert [record(e)["status"] for e in found] == ["done", "cancelled", "done"]


def test_stop_reaches_a_trial_whose_job_is_being_imported(bench, monkeypatch):
    worker, asked = bench.worker(lanes=1), threading.Event()
    load = worker_module.load
    worker.hello()
    worker._jobs.clear()  # as for another target

    def slow(target, run):
        asked.wait(60)
        return load(target, run)

    monkeypatch.setattr(worker_module, "load", slow)
    found = []
    thread = threading.Thread(target=lambda: found.append(worker.run(bench.batch("t1"))), daemon=True)
    thread.start()
    wait_for(lambda: worker.progress().lanes[0].phase == "open")
    assert [lane.seen() for lane in worker.progress().running().values()] == [{"text": "build"}]
    assert worker.stop("t1")
    asked.set()
    thread.join(60)
    assert record(found[0])["status"] == "cancelled"


def test_progress_says_what_each_lane_does_and_what_it_holds(bench):
    worker = bench.worker("Spin", lanes=2)
    assert [s.phase for s in worker.progress().lanes] == ["idle", "idle"]
    found = []
    params = CASES[0] | {"repeat": 1_000_000}
    thread = threading.Thread(target=lambda: found.append(worker.run(bench.batch("t9", 3, **params))), daemon=True)
    thread.start()
    wait_for(lambda: worker.progress().lanes[0].steps > 20)
    now = worker.progress()
    lane, idle = now.lanes
    assert (lane.trial, lane.attempt, lane.lease, lane.phase, lane.runs) == ("t9", 3, "lease of t9", "run", 1)
    assert now.running() == {"t9": lane} and lane.progress.startswith(("time step ", "backward"))
    assert lane.bytes["fields"] > 0 and lane.bytes["gradients"] > 0
    assert idle.trial is None and idle.bytes == {}
    assert now.total_bytes > now.free_bytes > 0 and now.process_bytes > 0
    worker.stop("t9")
    thread.join(60)
    assert [s.phase for s in worker.progress().lanes] == ["idle", "idle"]
    assert repr(worker) == "Worker(dev0: Spin, 2 lanes)"


def test_a_job_that_hangs_leaves_the_other_lane_alone_and_close_says_so(bench):
    worker = bench.worker(lanes=2)
    jobs.GATES["never"] = threading.Event()
    thread = threading.Thread(target=lambda: worker.run(bench.batch("hung", wait="never")), daemon=True)
    thread.start()
    wait_for(lambda: any(s.trial == "hung" and s.runs for s in worker.progress().lanes))
    assert worker.stop("hung")
    assert record(worker.run(bench.batch("t1")))["status"] == "done"
    assert any(s.trial == "hung" for s in worker.progress().lanes)  # it was asked, and cannot be made to
    assert worker._lanes.close(0.05) is False
    jobs.GATES["never"].set()
    thread.join(60)


def test_ends_of_a_long_lease_come_before_its_end(bench, monkeypatch):
    """The first chunk is there while the third trial has not begun to end."""
    monkeypatch.setattr(worker_module, "CHUNK_S", 0.01)
    worker = bench.worker(lanes=1)
    jobs.GATES["door"] = threading.Event()
    chunks = worker.run_all([bench.batch("t1"), bench.batch("t2"), bench.batch("t3", wait="door"), bench.batch("t4")])
    names = []
    while len(names) < 2:
        names += [name for e in next(chunks).ends for name in e.ends]
    assert names == ["t1", "t2"]
    jobs.GATES["door"].set()
    assert [name for news in chunks for e in news.ends for name in e.ends] == ["t3", "t4"]


# ---- the device


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"uuid": "GPU-99"}, "with the UUID GPU-99, it sees GPU-00000000-0000-0000-0000-000000000001"),
        ({"pci": "0000:01:00.0"}, "with the PCI address 0000:01:00.0, it sees 0000:02:00.0"),
    ],
)
def test_another_device_than_the_lease_is_for_is_refused(bench, expected, message):
    worker = bench.worker(backend="cuda", which="emulated:1", **expected)
    with pytest.raises(DeviceMismatch, match=r"dev0") as error:
        worker.hello()
    assert message in str(error.value) and "do: start the worker again" in str(error.value)
    with pytest.raises(DeviceMismatch):
        worker.run(bench.batch("t1"))
    assert worker.progress().trials == 0


def test_the_right_device_says_who_it_is(bench):
    uuid = "gpu-00000000-0000-0000-0000-000000000001"
    worker = bench.worker(backend="cuda", which="emulated:1", uuid=uuid, pci="00000000:02:00.0", number=3)
    info = worker.hello()
    assert info.name == f"qdrun/{bench.folder.name}/dev0/w3"
    assert (info.device_name, info.uuid, info.pci) == ("emulated device", uuid.replace("gpu", "GPU"), "0000:02:00.0")
    assert info.total_bytes >= info.free_bytes > 0


def test_a_cpu_worker_that_should_hold_a_card_is_refused(bench):
    with pytest.raises(DeviceMismatch, match="with the UUID GPU-1, it sees none"):
        bench.worker(uuid="GPU-1").hello()


# ---- the store


def test_a_worker_of_a_former_owner_is_refused(bench):
    worker = bench.worker()
    take(bench.folder, gone=max(owner_numbers(bench.folder.files), default=0))
    with pytest.raises(OwnerLost, match=r"was started for owner 1 of .*, which belongs to owner 2"):
        worker.hello()
    assert worker.progress().trials == 0


def test_a_result_is_refused_when_the_run_was_taken_over_while_the_trial_ran(bench):
    worker = bench.worker(lanes=1)
    worker.hello()
    jobs.GATES["door"] = threading.Event()
    found = []
    batches = [bench.batch("t1", wait="door", size=100_000), bench.batch("t2")]
    thread = threading.Thread(
        target=lambda: found.extend(e for news in worker.run_all(batches) for e in news.ends), daemon=True
    )
    thread.start()
    wait_for(lambda: worker.progress().lanes[0].runs == 1)
    with Journal(bench.folder, gone=max(owner_numbers(bench.folder.files), default=0)) as journal:
        jobs.GATES["door"].set()
        thread.join(60)
        first, second = found
        assert (record(first)["status"], record(first)["error"]["type"]) == ("failed", "OwnerLost")
        assert "gradients" not in record(first) and "loss" not in record(first)
        assert first.retire.startswith("the run was taken over")
        assert second.ends == {}
        assert not list(bench.folder.path.glob("trials/t1/*/*.safetensors"))
        assert not list(bench.folder.path.glob("trials/t1/*/result.json"))
        started(journal, [(Attempt("t1", 1, journal.owner.number), {})])
    assert replay.replay(bench.folder, trials=["t1", "t2"]).counts()["done"] == 0


def fill_disk(monkeypatch, times):
    """The next files of gradients find no room."""
    put, left = LocalFiles.put, [times]

    def full(self, path, data, *, durable=True):
        if path.endswith(".safetensors") and left[0] > 0:
            left[0] -= 1
            raise StorageFull("no room left")
        put(self, path, data, durable=durable)

    monkeypatch.setattr(LocalFiles, "put", full)


def test_a_result_waits_for_room_on_a_full_disk(bench, monkeypatch):
    monkeypatch.setattr(worker_module, "RETRY_S", 0.01)
    fill_disk(monkeypatch, 3)
    found = record(bench.worker().run(bench.batch("t1", size=100_000, number=2)))
    assert found["status"] == "done"
    assert arrays_of(bench.folder, found)["g"][1] == 3.0


def test_a_result_that_finds_no_room_in_time_is_a_failure_of_the_infrastructure(bench, monkeypatch):
    monkeypatch.setattr(worker_module, "RETRY_S", 0.01)
    fill_disk(monkeypatch, 10_000)
    found = record(bench.worker(storage_wait_s=0.05).run(bench.batch("t1", size=100_000)))
    assert (found["status"], found["failure"], found["error"]["type"]) == ("failed", "infrastructure", "StorageFull")
    assert "gradients" not in found


# ---- wear


def test_after_n_trials_the_process_is_to_be_replaced(bench):
    worker = bench.worker(lanes=1, recycle_after=3, recycle_s=0.0)
    ends = [worker.run(bench.batch(f"t{k}")) for k in range(4)]
    assert [e.retire for e in ends] == ["", "", "it has run 3 trials", "it has run 3 trials"]
    assert all(record(e)["status"] == "done" for e in ends)  # the runner decides when


def test_a_process_that_is_young_is_not_replaced_however_many_trials_it_has_run(bench):
    worker = bench.worker(lanes=1, recycle_after=3, recycle_s=3600.0)
    assert [worker.run(bench.batch(f"t{k}")).retire for k in range(5)] == [""] * 5


def test_what_no_trial_holds_and_grows_retires_the_worker(bench, monkeypatch):
    """Each trial keeps 8 MiB of the process for ever."""
    monkeypatch.setattr(worker_module, "LOOK_S", 0.0)
    worker = bench.worker(lanes=1, grow_bytes=32 << 20)
    ends = [worker.run(bench.batch(f"t{k}", mood="keep")) for k in range(WARM_LOOKS + 4 + GROWN_TIMES + 3)]
    assert not any(e.retire for e in ends[: WARM_LOOKS + 3])
    assert ends[-1].retire.startswith("its process holds ")
    assert ends[-1].retire.endswith("more than after its first trials, and no trial has them")


def test_growth_counts_only_when_several_looks_in_a_row_show_it():
    wear = Wear(1000, 100)
    for k in range(WARM_LOOKS + 40):
        wear.look({"device": 1000 + (150 if k > WARM_LOOKS and k % GROWN_TIMES else 0)})
    assert not wear.retire
    for _ in range(GROWN_TIMES):
        wear.look({"device": 2000})
    assert wear.retire.startswith("its device holds 1,000 bytes more")


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "which"), [("cpu", None), ("cuda", "emulated")])
def test_three_hundred_trials_leave_nothing_behind(bench, backend, which):
    """Bytes of the device, open programs, registered contexts, threads and open files are flat; failures and stops included."""
    import os

    from qdrun.compiler.runtime.cpu import device

    worker = bench.worker("Spin", lanes=2, backend=backend, which=which)
    worker.hello()
    moods = [CASES[k] for k in range(2)] + [{"n": 4, "steps": 3, "memory": -1}, {"n": 4, "steps": 3, "say": which is None}]

    def lane(first, count):
        batches = [bench.batch(f"{first}-{k}", **moods[k % 4]) for k in range(count)]
        return [record(e)["status"] for news in worker.run_all(batches) for e in news.ends]

    def state():
        gc.collect()
        files = len(os.listdir("/proc/self/fd"))
        return worker._held.memory()[0] if which else 0, len(_programs), len(device._contexts), threading.active_count(), files

    at_once(lambda: lane("a", 10), lambda: lane("b", 10))
    before, host = state(), process_bytes()
    first, second = at_once(lambda: lane("c", 150), lambda: lane("d", 150))
    statuses = first + second
    assert all(now <= was for now, was in zip(state(), before, strict=True)), (state(), before)  # what other tests left may end
    assert which or process_bytes() - host < 8 << 20  # the emulated device walks through its addresses
    assert statuses.count("done") == 226 and statuses.count("failed") == 74
    assert not worker.progress().retire


def test_an_attempt_that_looks_into_a_crash_checks_indices_and_keeps_no_descent(bench, monkeypatch):
    from qdrun.runner.workers import worker as module

    seen, body_of = [], module.body_of

    def spied(optimize, kept, trial):
        body = body_of(optimize, kept, trial)

        def run(session):
            seen.append((kept is None, session._options["debug"]))
            return body(session)

        return run

    monkeypatch.setattr(module, "body_of", spied)
    made = bench.worker(lanes=1)
    for checked in (True, False):
        end = made.run(bench.batch("t0")._replace(checked=checked))
        assert record(end)["status"] == "done", end
    assert seen == [(True, {"bounds": True, "asserts": False, "nan": False, "overflow": False}), (False, None)]


def test_a_rounding_mode_that_one_trial_leaves_behind_changes_no_bit_of_the_next(bench, monkeypatch):
    """Also flush-to-zero, which libraries set when they are loaded, for the thread that loads them."""
    import ctypes

    worker, seen = bench.worker(lanes=1), []
    libm, (lane,) = ctypes.CDLL("libm.so.6"), worker._lanes.all
    real = worker._lanes.run

    def changed(*words):
        seen.append((libm.fegetround(), 1.0 + 2.0**-53 * float(len("x"))))
        found = real(*words)
        assert libm.fesetround(0x800 if platform.machine() == "x86_64" else 0x400000) == 0
        return found

    worker._lanes.run = changed
    for number in range(3):
        worker.run(bench.batch(f"t{number}", number=number))
    assert seen == [(0, 1.0)] * 3 and lane.is_alive()
