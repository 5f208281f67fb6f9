"""A worker whose machine goes away: what runs is to go on elsewhere, what waits does not begin, and nobody is charged."""

import signal
import subprocess
import sys
import threading

from lane_helpers import record, wait_for

from qdrun.runner.engine import messages as m
from qdrun.runner.engine.failures import Rules
from qdrun.runner.engine.parts import TrialAt
from qdrun.runner.engine.state import SweepState
from qdrun.runner.ledger.leases import Lease
from qdrun.runner.packing import Claim, ClaimPoint
from qdrun.runner.workers.records import PREEMPTION

ERROR = {"type": "Preempted", "message": PREEMPTION, "traceback": ""}
NOTICED = """
import sys, threading
from qdrun.runner.ray_adapter.worker_actor import on_notice
heard = threading.Event()
assert on_notice(heard.set)
refused = []
other = threading.Thread(target=lambda: refused.append(on_notice(heard.set)))
other.start()
other.join()
print(refused[0], flush=True)
sys.stdout.write("heard\\n" if heard.wait(30) else "nothing\\n")
"""


def test_what_runs_ends_at_its_next_step_and_what_waits_does_not_begin(bench):
    worker, found = bench.worker(lanes=1), []
    batches = [bench.batch("long", steps=1_000_000, number=1), bench.batch("waits")]
    thread = threading.Thread(
        target=lambda: found.extend(e for news in worker.run_all(batches) for e in news.ends), daemon=True
    )
    thread.start()
    wait_for(lambda: worker.progress().lanes[0].steps > 2)
    worker.preempt()
    thread.join(60)
    ran, waited = found
    assert (record(ran)["status"], record(ran)["failure"], record(ran)["error"]) == ("failed", "infrastructure", ERROR)
    assert waited.ends == {} and waited.retire == PREEMPTION, "the runner starts another worker for it"


def test_attempts_that_a_notice_has_ended_are_never_charged_and_say_nothing_against_the_device():
    state = SweepState([TrialAt(0)], Rules(infra=0), lambda batch: {"gpu": Claim.of([(100, 1.0)])})
    (ask,) = state.start(0.0)
    for k in range(3):
        state.handle(Lease(f"l{k}", "d0", ClaimPoint(100), (ask.requests[0].id,)), 0.0)
        (flight,) = state._flights.values()
        end = {"status": "failed", "failure": "infrastructure", "error": ERROR}
        actions = state.handle(m.LaunchEnded(flight.launch.id, {0: end}), 0.0)
        assert [one.charged for one in actions if isinstance(one, m.WriteRetry)] == [False]
        assert not [one for one in actions if isinstance(one, m.Avoid)]
        (ask,) = [one for one in actions if isinstance(one, m.Ask)]
    assert state.trials.open[0] and not state.trials.alone


def test_a_notice_is_heard_in_the_main_thread_alone():
    with subprocess.Popen([sys.executable, "-c", NOTICED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "heard\n"
