"""A run of a config with all that belongs to it."""

import time

from qdrun.runner.ledger.client import LocalLedger
from qdrun.runner.placement import devices_of
from qdrun.runner.plan import prepare
from qdrun.runner.run import start
from qdrun.runner.run.book import Outside
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import create
from qdrun.runner.timing import Timing
from qdrun.runner.watch.board import Board
from qdrun.runner.watch.live import display


class Stops:
    count = 0


def run_config(path, *, stops=None, folder=None, found=None):
    """Run the trials of a config on the open Ray; the state, the folder, the board."""
    prepared, job = prepare(path)
    folder = folder or create(prepared, prepared.loaded.config.uri)
    planned = start.plan_all(prepared, job, prepared.loaded.config.limits.timeout_s)
    folder.save_plan([group for group, _ in planned])
    board = Board(run=folder.name, total=len(prepared.trials))
    timing = Timing(time.time(), time.time())
    ledger = LocalLedger(folder.name, "me", devices=found or devices_of(prepared))
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
