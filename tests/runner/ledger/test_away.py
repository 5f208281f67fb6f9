"""The ledger of a cluster is away: a run waits for it once, and not with each of its calls. Without Ray."""

import pytest
import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from qdrun.runner.ledger import LeaseEnd, Ledger
from qdrun.runner.ledger.inventory import pretended
from qdrun.runner.packing import Claim, Request
from qdrun.runner.ray_adapter import ledger_client
from qdrun.runner.ray_adapter.ledger_client import ActorLedger

GIB = 1 << 30
(CARD,) = pretended(1, 24 * GIB, "n1", 4)


class Handle:
    """The actor of a ledger, in this process. While it ``hangs``, calls wait in their order, and are served when it goes on."""

    def __init__(self):
        self.ledger, self.now, self.hangs, self.queue, self.waited_s = Ledger("e-"), 0.0, False, [], 0.0
        self.ledger.add_device(CARD)

    def __getattr__(self, name):
        handle = self

        class Method:
            @staticmethod
            def remote(*args):
                ref = []
                handle.queue.append((ref, name, args))
                if not handle.hangs:
                    handle.go_on()
                return ref

        return Method

    def go_on(self):
        self.hangs, queue, self.queue = False, self.queue, []
        for ref, name, args in queue:
            ref.append(self.serve(name, *args))

    def serve(self, name, *args):
        key = args[0] if args else ""
        match name:
            case "join":
                key, user, held, waiting, done, seen, workers, _, terms = args
                return self.ledger.join(key, user, self.now, held, waiting, done, seen, workers, terms)
            case "ask":
                return self.ledger.ask(key, args[1], self.now)
            case "exchange":
                return self.ledger.exchange(key, args[1], self.now, args[2])
            case "observe":
                return self.ledger.observe(*args)
            case "avoid":
                return self.ledger.avoid(*args, self.now)
            case "devices" | "snapshot" | "groups":
                return getattr(self.ledger, name)() if name != "groups" else {}
        return getattr(self.ledger, name)(*args)

    def get(self, ref, timeout=None):
        if not ref:
            self.waited_s += timeout
            raise GetTimeoutError
        if isinstance(ref[0], Exception):
            raise ref[0]
        return ref[0]


@pytest.fixture
def handle(monkeypatch):
    made = Handle()
    monkeypatch.setattr(ledger_client, "start", lambda settings: made)
    monkeypatch.setattr(ledger_client, "check_version", lambda handle: None)
    monkeypatch.setattr(ray, "get", made.get)
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: ([ref for ref in refs if ref], [ref for ref in refs if not ref]))
    return made


def requests(*names):
    return [Request(name, "", "", {CARD.kind: Claim.of([(GIB, 1.0)])}, 0.0) for name in names]


def test_a_ledger_that_hangs_is_waited_for_once_and_joined_again_when_it_goes_on(handle):
    run = ActorLedger("r", "ann")
    run.ask(requests(*[f"t{k}" for k in range(5)]))
    leases = run.exchange().leases
    assert len(leases) == 4 and handle.waited_s == 0.0
    handle.hangs = True
    for _ in range(20):
        run.observe(CARD.pool, 20 * GIB, GIB)
        run.closed("nowhere")
        assert run.devices() == [] and run.why() == {} and run.snapshot() == {} and not run.avoid(CARD.id, 1.0)
        assert run.withdraw(["t4"]) == [] and not run.exchange([]).reached
    assert handle.waited_s == ledger_client.CALL_S
    run.ask(requests("t5"))
    assert not run.exchange([LeaseEnd(leases[0].id)]).reached  # both happen while the call to join is open
    handle.go_on()
    found = [run.exchange() for _ in range(4)]
    assert all(answer.reached for answer in found) and run.devices() == [CARD]
    assert [lease.requests for answer in found for lease in answer.leases] == [("t4",)]
    assert [run.exchange([LeaseEnd(leases[1].id)]).leases[0].requests] == [("t5",)] and handle.waited_s == ledger_client.CALL_S
    run.close()
    assert handle.ledger.counts() == (0, 0) and not handle.ledger.runs()


def test_a_call_that_is_lost_is_made_good_by_joining_again(handle):
    run = ActorLedger("r", "ann")
    handle.ledger = Ledger("f-")  # it has started again, and knows nobody
    handle.ledger.add_device(CARD)
    run.ask(requests("t0"))
    assert [lease.requests for lease in (*run.exchange().leases, *run.exchange().leases)] == [("t0",)]
    real = handle.serve
    handle.serve = lambda name, *args: ActorUnavailableError("for a moment", b"0" * 16)
    assert not run.exchange([LeaseEnd(run.held()[0].id)]).reached and run.snapshot() == {}
    handle.serve = real
    assert run.exchange().reached and not run.held() and handle.ledger.counts() == (0, 0)


def test_a_run_that_ends_while_its_ledger_hangs_does_not_wait_for_it(handle):
    run = ActorLedger("r", "ann")
    handle.hangs = True
    assert run.snapshot() == {}
    run.close()
    assert handle.waited_s == ledger_client.CALL_S + ledger_client.LEAVE_S
