"""A run of a config with all that belongs to it."""

import queue
import threading
import time
from dataclasses import replace

from qdrun.runner.engine import messages as m
from qdrun.runner.engine import start
from qdrun.runner.engine.event_writer import Outside
from qdrun.runner.ledger import Machine, RunLedger
from qdrun.runner.observe.board import Board
from qdrun.runner.observe.live import display
from qdrun.runner.observe.timing import Timing
from qdrun.runner.provenance.record import record
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import create
from qdrun.runner.study.placement import devices_of
from qdrun.runner.study.plan import plan_all
from qdrun.runner.study.prepare import prepare
from qdrun.runner.workers import Worker


class Stops:
    count = 0


class ThreadWorkers:
    """Instead of ``RayWorkers``: the same workers in threads of this process. None of them may die, or be killed."""

    def __init__(self, run, specs, options):
        self.specs, self._workers, self._threads = specs, {}, []
        self._news = queue.SimpleQueue()

    def launch(self, launches, batches):
        place = launches[0].worker
        if place not in self._workers:
            self._workers[place] = Worker(replace(self.specs(place), own_process=False))
        worker = self._workers[place]

        def work():
            worker.hello()
            if not launches[0].behind:
                self._news.put(m.Started(launches[0].id))
            for news in worker.run_all(tuple(batches)):
                for end in news.ends:
                    self._news.put(end)
                if news.running:
                    self._news.put(m.Started(news.running, news.seconds))

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def poll(self, timeout_s):
        try:
            news = [self._news.get(timeout=timeout_s)]
        except queue.Empty:
            return []
        while not self._news.empty():
            news.append(self._news.get())
        return news

    def look(self):
        return {place: worker.progress() for place, worker in self._workers.items()}

    def alive(self, device):
        return any(place.device == device for place in self._workers)

    def close(self):
        for thread in self._threads:
            thread.join()
        for worker in self._workers.values():
            worker.close()

    def kill(self, worker):
        raise AssertionError(f"{worker} is killed")

    def drop(self, worker, launches):
        raise AssertionError(f"{launches} are not to begin")

    def ask_to_stop(self, worker, trials):
        raise AssertionError(f"{trials} are to stop")


def run_config(path, *, stops=None, folder=None, found=None):
    """Run the trials of a config on the open Ray; the state, the folder, the board."""
    prepared, job = prepare(path)
    folder = folder or create(prepared, prepared.loaded.config.uri)
    record(folder.files, prepared, job)  # workers import the job from there
    planned = plan_all(prepared, job, prepared.loaded.config.limits.timeout_s)
    folder.save_plan([group for group, _ in planned])
    board = Board(run=folder.name, total=len(prepared.trials))
    timing = Timing(time.time(), time.time())
    ledger = RunLedger(folder.name, Machine(found or devices_of(prepared)))
    with Journal(folder) as journal, display(board, quiet=True) as screen:
        state = start.run_trials(
            prepared,
            planned,
            lambda workers: Outside(folder, journal, board, screen, timing, ledger, workers, stops or Stops()),
            ledger,
            folder=folder,
            owner=journal.owner,
        )
        journal.write("finished", sync=True, state=state)
    return state, folder, board
