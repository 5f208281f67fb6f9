"""What processes leave behind, or leave open: unfinished files, orphans, closed streams, stopped owners, two searches in one folder."""

import os
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.ledger.account import Account
from qdrun.runner.ray_adapter import cluster
from qdrun.runner.ray_adapter.cluster import ClusterError, check_environment
from qdrun.runner.rounds import driver
from qdrun.runner.rounds.driver import SearchChanged, SearchRuns
from qdrun.runner.store.files import PARTIAL, SHARED_S, open_files
from qdrun.runner.store.layout import RunFolder, write_run
from qdrun.runner.store.owner import latest_owner

PATIENCE_S = 60.0


def test_unfinished_files_of_processes_that_were_killed_are_removed_by_the_next_owner(tmp_path):
    names = [".results.parquet.0a1b2c3d", ".summary.json.0a1b2c3d", "events/.000001-000001.jsonl.0a", "trials/t/a1/.x.npy.0a"]
    shared = [".heartbeat.json.0a1b2c3d", ".labels.json.0a1b2c3d"]
    for name in (*names, *shared):
        path = tmp_path / (name + PARTIAL)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    files = open_files(tmp_path)
    assert files.sweep("") == len(names), "somebody may be writing the others at this moment"
    assert sorted(path.name for path in tmp_path.rglob("*" + PARTIAL)) == sorted(name + PARTIAL for name in shared)
    for name in shared:
        os.utime(tmp_path / (name + PARTIAL), (time.time() - 2 * SHARED_S,) * 2)
    assert files.sweep("") == len(shared) and not list(tmp_path.rglob("*" + PARTIAL))


ORPHAN = """
import os, sys, time
pid = os.fork()
if pid:
    print(pid, flush=True)
    sys.stdin.read()  # until the test closes it
    os._exit(0)
from qdrun.runner.ray_adapter.worker_actor import end_with_parent
end_with_parent(0.05, 0.05)
open(sys.argv[1], "w").close()
os.closerange(0, 256)  # as a job may do
while True:
    time.sleep(0.01)
"""


def test_a_worker_whose_descriptors_are_closed_ends_with_its_raylet(tmp_path):
    mark = tmp_path / "began"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ORPHAN, str(mark)], stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        pid = int(parent.stdout.readline())
        end = time.monotonic() + PATIENCE_S
        while not mark.exists() and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(pid, 0)  # it lives as long as its parent
        parent.stdin.close()
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as stream:
                if stream.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    raise AssertionError("it goes on without its parent")


@pytest.mark.parametrize("closed", ["0<&- 1>&- 2>&-", "1>&-", "2>&-", "1>&- 2>&-"])
def test_a_command_with_closed_streams_writes_nothing_into_files_of_its_own(tmp_path, closed):
    write_run(tmp_path / "runs", "made", "version: 1\n", {"name": "made"}, [], {})
    code = "from qdrun.runner.cli.app import main; import sys; sys.argv = ['qdrun', 'ls', '--runs', sys.argv[1]]; main()"
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" "$2" {closed}', sys.executable, code, str(tmp_path / "runs")], check=False
    )
    assert done.returncode == 0


def test_without_loopback_nothing_is_started(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)

    def refuse(*_, **__):
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(cluster.socket, "create_server", refuse)
    with pytest.raises(
        ClusterError, match=r"127\.0\.0\.1.*does not answer: Cannot assign requested address\n  do: `ip link set lo up`"
    ):
        check_environment(None)
    monkeypatch.setattr(cluster.socket, "create_connection", lambda *_, **__: open(os.devnull))
    check_environment("head:6379")  # its own machine decides


def test_a_start_that_ray_gives_up_is_tried_again(monkeypatch):
    import ray

    tries = []

    def late(**_):
        tries.append(1)
        if len(tries) < cluster.STARTS:
            raise RuntimeError("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", late)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(cluster, "_local_options", lambda *_: {})
    assert cluster._started(False, 0, None, None, False) == "" and len(tries) == cluster.STARTS
    tries.clear()
    monkeypatch.setattr(ray, "init", lambda **_: (tries.append(1), 1 // 0))
    with pytest.raises(ZeroDivisionError):
        cluster._started(False, 0, None, None, False)
    assert len(tries) == 1


def test_the_former_owner_of_a_run_holds_nothing_against_it(tmp_path):
    """It may be stopped by Ctrl-Z for ever; another run is still counted."""
    stopped, other, mine = (Account(run, tmp_path) for run in ("run", "other", "run"))
    try:
        for account in (stopped, other):
            with account.gate():
                account.write(account.entry({"cores": 2}, {}, {}))
        with mine.gate():
            assert [entry.run for entry in mine.others()] == ["other"]
    finally:
        for account in (stopped, other, mine):
            account.close()


def test_a_second_search_in_a_folder_is_refused_by_name(tmp_path):
    files = open_files(tmp_path / "s")
    with driver._claimed(str(tmp_path / "s"), files):
        with pytest.raises(SearchRuns, match=rf"process {os.getpid()} on .* runs the search in .*\n  do: wait for its end"):
            with driver._claimed(str(tmp_path / "s"), files):
                raise AssertionError("both run all rounds")
    with driver._claimed(str(tmp_path / "s"), files):
        assert latest_owner(RunFolder(tmp_path / "s")).number == 2


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "", '{"config": 1, "rounds": []}'])
def test_a_damaged_record_of_a_search_is_refused(tmp_path, text):
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "000001.json").write_text(text)
    with pytest.raises(SearchChanged, match=r"search/000001\.json is damaged\n  do: "):
        driver._read(open_files(tmp_path))


def test_runs_are_named_and_listed_by_utc(tmp_path, monkeypatch):
    """One submitted after another is above it, whatever the clock of its shell shows."""
    names = []
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        names.append(write_run(tmp_path, "made", "version: 1\n", {"name": "made"}, [], {}).name)
    monkeypatch.undo()
    time.tzset()
    stamps = [time.mktime(time.strptime(name[:15], "%Y%m%d-%H%M%S")) - time.timezone for name in names]
    assert abs(stamps[1] - stamps[0]) < 3600 and names[1][:15] >= names[0][:15]
    shown = CliRunner().invoke(app, ["ls", "--runs", str(tmp_path), "--last", "1"])
    assert shown.exit_code == 0 and RunFolder(tmp_path / names[1]).is_run
