"""Plays a scenario: starts the commands, makes the faults happen, resumes until the run is over, and judges what is left."""

import errno
import fcntl
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from qdrun.runner.exit_codes import exit_code
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.replay import replay

from . import foreign, jobs
from .cluster import environment
from .processes import SmallDisk, below, kill, processes, reap, stacks, until
from .verdict import judge

LONGEST_S, LONGEST_OF_BATCHES_S = 150.0, 400.0
"""Of one command: a run takes a few seconds; where a trial ends its process, each half of its batch needs a worker of its own."""
NOBODY_S = 15.0
STOP_S = 45.0
"""A command that was told twice to end has so long for it, on a busy machine."""
"""A process that a fault is for may be missing for so long; then the next fault happens."""
COMMANDS = 6
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""When Ray's head dies without a word, they look for it for a minute, and then end."""
SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
ROWS = re.compile(rb'"event":"rows"[^\n]*?"at":\[([\d,]*)\]')
"""The line of a batch: the places of the trials that have ended well, as ranges."""
WARM = multiprocessing.get_context("forkserver")
WARM.set_forkserver_preload(
    ["ray", "qdrun.runner.engine.session", "qdrun.runner.cli.app", "qdrun.runner.observe.show", "pyarrow.parquet"]
)


def qdrun(words, folder, log, variables):
    """The command ``qdrun``, in a process that has its imports behind it."""
    from qdrun.runner.cli.app import main

    os.chdir(folder)
    os.environ.update(variables)
    fail_while(Path(folder, "refuses"), Path(folder, "runs"))
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["qdrun", *words]
    main()


def fail_while(flag, below):
    """While there is a file ``flag``, this process gets that error for each file that it opens, writes or syncs below a folder.

    ``stall``: it waits until the file is gone; ``erofs``: reading works.
    """
    sync, write, below = os.fsync, os.write, str(below)

    def refuse(path, writes):
        try:
            what = flag.read_text() if path.startswith(below) else ""
        except FileNotFoundError:
            return
        while what == "stall" and _there(flag):
            time.sleep(0.02)
        if what == "eio" or (what == "erofs" and writes):
            number = getattr(errno, what.upper())
            raise OSError(number, os.strerror(number), path)

    def opens(event, words):
        if event == "open" and isinstance(words[0], str):
            path, mode, flags = words
            refuse(path, flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) != 0 if mode is None else mode not in ("r", "rb"))

    def on_open(call):
        def made(file, *words):
            if _there(flag):
                refuse(os.readlink(f"/proc/self/fd/{file}"), True)
            return call(file, *words)

        return made

    sys.addaudithook(opens)
    os.fsync, os.write = on_open(sync), on_open(write)


def _there(flag):
    try:
        os.stat(flag)
    except FileNotFoundError:
        return False
    return True


def rows_in(journal):
    """How many rows are in these lines: one in a line of a trial, one for each trial in that of a batch."""
    ranges = [list(map(int, found.split(b","))) for found in ROWS.findall(journal)]
    return journal.count(b'"event":"ended"') + sum(sum(found[1::2]) - sum(found[::2]) for found in ranges)


@dataclass
class Verdict:
    """How a scenario ended. ``problems``: what is wrong; ``facts``: what happened; ``agents``: processes of Ray that are to end by
    themselves within a minute.
    """

    kind: str
    seed: int
    problems: list = field(default_factory=list)
    facts: dict = field(default_factory=dict)
    agents: list = field(default_factory=list)

    @property
    def ok(self):
        """Whether everything is as it must be."""
        return not self.problems


def play(scenario, base, cluster=None):
    """One run with its faults; its verdict. The folder of the run, with the output of all commands, is kept when something is wrong.

    Args:
        scenario: of ``scenario.scenario``.
        base: a short folder for folders of runs.
        cluster: which scenarios of the place ``cluster`` join.
    """
    began = time.monotonic()
    folder = Path(base, scenario.label)
    if os.path.ismount(folder / "disk"):  # of an earlier one that was killed itself
        SmallDisk.unmount(folder / "disk")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    verdict = Verdict(scenario.name, scenario.seed)
    disk = SmallDisk(folder / "disk") if scenario.kind == "disk" else None
    try:
        one = Play(scenario, folder, cluster if scenario.place == "cluster" else None, disk, verdict)
        one.run()
        verdict.facts["seconds"] = round(time.monotonic() - began, 1)
        if verdict.problems:
            one.keep()
    finally:
        if disk is not None:
            disk.close()
    if verdict.ok:
        shutil.rmtree(folder)
    return verdict


class Play:
    """One scenario while it is played."""

    def __init__(self, scenario, folder, cluster, disk, verdict):
        self.scenario, self.folder, self.cluster, self.disk, self.verdict = scenario, folder, cluster, disk, verdict
        self.longest_s = LONGEST_OF_BATCHES_S if scenario.batch else LONGEST_S
        self.runs = (disk.where if disk else folder) / "runs"
        self.notes = folder / "notes"
        self.environment = cluster.environment if cluster else environment(folder / "r")
        self.commands = self.fired = 0
        self.began = False
        self.asked_t = None
        self.codes = []
        self.second = None
        self.proxy = foreign.Proxy() if scenario.kind == "proxy" else None
        self.where = foreign.elsewhere(folder) if scenario.kind == "elsewhere" else folder
        self._write_config()

    def _write_config(self):
        one = self.scenario
        device = {"backend": "cuda", "id": "emulated"} if one.place == "emulated" else {"backend": "cpu"}
        params = {"salt": one.salt, "mean_s": one.mean_s, "notes": str(self.notes)}
        job, numbers, batched = "Indexed" if one.kind == "rerun" else "Shaken", list(range(one.trials)), one.batch
        own = foreign.own_job(self.folder) if one.kind in ("edited", "elsewhere") else jobs.__file__
        config = {
            "version": 1,
            "name": one.label,
            "job": {"target": f"{own}:{'Batched' if batched else job}", "params": params},
            "gradients": ["number", "pulls"] if batched else ["x"],
            "device": device | {"slots": one.lanes},
            "sweep": {"params": {"number": numbers}},
            "output": str(self.runs),
        }
        if batched:
            traps = {number: jobs.TRAPS[name] for number, name in batched.traps}
            params["size"] = batched.array
            swept = {"number": [float(k) for k in numbers], "trap": [traps.get(k, jobs.GOOD) for k in numbers]}
            config |= {"batch": batched.size, "sweep": {"params": swept, "zip": [["number", "trap"]]}}
            config |= {"debug": {"asserts": True, "nan": False}} if batched.asserts else {}
            rule = {"rule": "sgd", "steps": jobs.STEPS, "learning_rate": jobs.RATE, "params": ["pulls"], "keep": "last"}
            config |= {"optimize": rule} if batched.descends else {}
        if one.timeout_s:
            config["limits"] = {"trial_timeout": f"{one.timeout_s:g}s"}
        (self.folder / "chaos.yaml").write_text(json.dumps(config, indent=1))
        (self.folder / "scenario.txt").write_text(repr(one))

    # the run

    def run(self):
        """All commands, and the verdict."""
        os.environ.update(self.environment)  # Ray reads its token once, in the process that the others are made from
        self._before()
        for number in range(COMMANDS):
            faults = self.scenario.faults[number] if number < len(self.scenario.faults) else ()
            self._command(faults)
            if number == 0:
                self.began = any(b'"event":"started"' in text or b'"event":"begun"' in text for text in self._journal())
            if self.disk:
                self.disk.free()
            if self.scenario.kind != "stall" or not self.scenario.needs_resume:
                until(lambda: not _there(self.folder / "refuses"), 10, every=0.05)
            (self.folder / "refuses").unlink(missing_ok=True)
            if self.cluster:
                if not self.cluster.whole:
                    self.cluster.close(remove=False)
                    self.cluster.open()
                self.cluster.mend()
            if number + 1 >= len(self.scenario.faults) and (self._over() or self.scenario.kind == "gone"):
                break
        else:
            self.verdict.problems.append(f"not over after {COMMANDS} commands: exit codes {self.codes}")
        self.verdict.facts |= {
            "place": self.scenario.place,
            "fired": self.fired,
            "commands": self.commands,
            "codes": self.codes,
        }
        if self.commands > 1 and not self.scenario.needs_resume and not self._refused():
            self.verdict.problems.append(f"it needed `resume`: exit codes {self.codes}")
        if self.second is not None:
            self.verdict.problems += [f"beside it: {text}" for text in self.second.result()]
        if self.scenario.kind == "hostile":
            self._lists()
        if self.scenario.kind == "gone" and self.fired:
            self._judge_gone()
        else:
            judge(self)
        self.verdict.problems += self.proxy.close() if self.proxy else []
        self._nothing_is_left()

    def _judge_gone(self):
        """The folder was removed under the run: it has ended, has said so, and made no new one."""
        if self.codes[-1] in (0, None) or self.codes[-1] < 0:
            self.verdict.problems.append(f"its folder was removed, and it ended with {self.codes[-1]}")
        if self.runs.exists() and any(self.runs.iterdir()):
            self.verdict.problems.append(f"a ghost of the folder: {[str(path) for path in self.runs.rglob('*')][:5]}")

    def _refused(self):
        """Whether the disk was full, or gave errors, before the first trial was started: then `submit` says so and ends."""
        return self.scenario.kind in ("disk", "eio", "erofs", "stall") and not self.began

    def _over(self):
        """Whether the last command has brought the run to its end. Code 1: some trials have failed, or the command has.

        Where the store stalled after the last line, the table is left to the next `resume`.
        """
        found = self.find()
        if found is not None and self.scenario.kind == "stall" and not Path(RunFolder(found).table).exists():
            return False
        if found is None or not self.codes or self.codes[-1] != exit_code(self.scenario.outcome):
            return False
        finished = replay(RunFolder(found)).finished
        return finished is not None and finished.get("state") == self.scenario.outcome

    def find(self):
        """The folder of the run; None while there is none."""
        with suppress(FileNotFoundError):
            for path in sorted(self.runs.iterdir()):
                if (path / "run.json").exists() and "junk" not in path.name.split("-"):
                    return path
        return None

    def rows(self):
        """How many rows are written."""
        return sum(rows_in(text) for text in self._journal())

    def _journal(self):
        """The segments of the journal."""
        found = self.find()
        for path in (found / "events").glob("*.jsonl") if found else ():
            with suppress(FileNotFoundError):
                yield path.read_bytes()

    def _command(self, faults):
        found = self.find()
        words = ["resume", str(found)] if found else ["submit", str(self.folder / "chaos.yaml")]
        words += ["--code", "kept"] if found and self.scenario.kind == "edited" else []
        words += ["--quiet", *(["--address", self.cluster.address] if self.cluster else [])]
        self.commands += 1
        log = self.folder / f"command{self.commands}.log"
        variables = self.environment | (self.proxy.environment if self.proxy else {})
        process = WARM.Process(target=qdrun, args=(words, str(self.where), str(log), variables))
        process.start()
        self._attend(process, list(faults))
        process.join()
        self.codes.append(process.exitcode)
        self._judge_end(log)

    def _judge_end(self, log):
        """Whether the command has ended soon after it was told to, in our words, and with the exit code of its run."""
        asked, self.asked_t = self.asked_t, None
        if asked is None:
            return
        took, said = time.monotonic() - asked, log.read_text(errors="replace")
        if self.scenario.kind == "stall" and took > STOP_S:
            self.verdict.problems.append(f"it ended {took:.0f} s after the second Ctrl-C")
        if "*** SIG" in said:
            self.verdict.problems.append("it printed a stack of Ray")
        if self.scenario.kind == "end" and self.codes != [0]:
            self.verdict.problems.append(f"SIGTERM after the last row: exit codes {self.codes}")

    def _resume_beside(self, process):
        """Resume the run of a stopped process elsewhere, wake that process up when it is over, and see that it says what has happened."""
        log, found = self.folder / "beside.log", self.find()
        words = ["resume", str(found), "--quiet"]
        other = WARM.Process(target=qdrun, args=(words, str(self.folder), str(log), self.environment))
        end, code = time.monotonic() + self.longest_s, None
        while code != 0 and time.monotonic() < end:  # refused while the last sign of life is young
            other = WARM.Process(target=qdrun, args=(words, str(self.folder), str(log), self.environment))
            other.start()
            other.join(self.longest_s)
            code = other.exitcode
            time.sleep(2)
        if code != 0:
            self.verdict.problems.append(f"the run of a stopped process is not taken over: {code}: {log.read_text()[-300:]}")
        os.kill(process.pid, signal.SIGCONT)
        process.join(60)
        said = (self.folder / f"command{self.commands}.log").read_text()
        if process.exitcode != 5 or "Traceback" in said:
            self.verdict.problems.append(f"the process that was stopped ends with {process.exitcode}: {said[-300:]}")

    def _before(self):
        """What happens before the run: ``qdrun up`` that is interrupted, a folder of runs with pipes and halves of files in it, or the
        end of the head's raylet, which the cluster may not have noticed yet.
        """
        pick = random.Random(f"before/{self.scenario.seed}")
        if self.scenario.kind == "early":
            kill(self.cluster.head)
            time.sleep(pick.uniform(0, 2))
            self.fired += 1
        if self.scenario.kind == "up":
            log = self.folder / "up.log"
            process = WARM.Process(target=qdrun, args=(["up", "--no-dashboard"], str(self.folder), str(log), self.environment))
            process.start()
            time.sleep(pick.uniform(0.5, 9))
            with suppress(ProcessLookupError):  # `up` may have ended before
                os.kill(process.pid, signal.SIGINT)
            process.join(60)
            if process.exitcode not in (0, 130):
                self.verdict.problems.append(f"`up` ended with {process.exitcode}")
            down = WARM.Process(target=qdrun, args=(["down"], str(self.folder), str(log), self.environment))
            down.start()
            down.join(60)
            self.fired += 1
        if self.scenario.kind == "hostile":
            for k in range(3):
                place = self.runs / f"20200101-00000{k}-junk"
                (place / "events").mkdir(parents=True)
                names = ["run.json", "trials.jsonl", "heartbeat.json", "summary.json", "events/000001-000001.jsonl"]
                for name in pick.sample(names, 3):
                    what = pick.choice(("pipe", "deep", "zero"))
                    if what == "pipe":
                        os.mkfifo(place / name)
                    elif what == "zero":
                        os.symlink("/dev/zero", place / name)
                    else:
                        (place / name).write_text("[" * 100_000)
            self.fired += 1

    def _lists(self):
        """The folder with hostile runs is listed."""
        for words in (["ls", "--runs", str(self.runs), "--json"], ["status", "--runs", str(self.runs)]):
            log = self.folder / f"{words[0]}.log"
            process = WARM.Process(target=qdrun, args=(words, str(self.folder), str(log), self.environment))
            process.start()
            process.join(40)
            if process.exitcode != 0:
                process.kill()
                self.verdict.problems.append(f"`qdrun {words[0]}` ends with {process.exitcode}")

    def _attend(self, process, faults):
        began = since = time.monotonic()
        while process.is_alive():
            now = time.monotonic()
            if now - began > self.longest_s:
                (self.folder / "stacks.txt").write_text(stacks(process.pid))
                self.verdict.problems.append(f"command {self.commands} hangs: {self.longest_s:g} s, {self.rows()} rows")
                process.kill()
                return
            if not faults:
                time.sleep(0.05)
                continue
            if faults[0].rows is not None and self.rows() < faults[0].rows:
                since = now
            elif now - since >= faults[0].delay_s:
                if self._fire(faults[0], process):
                    self.note(f"{now - began:.3f} {faults.pop(0)}")
                    since = now
                    continue
                if now - since > faults[0].delay_s + NOBODY_S and len(faults) > 1:  # perhaps it waits for that
                    self.note(f"{now - began:.3f} no target for {faults.pop(0)}")
                    since = now
                    continue
                time.sleep(0.1)  # there is no such process yet; to look for one costs something
            time.sleep(0.01)
        for fault in faults:
            self.note(f"the command was over before {fault}")

    def note(self, text):
        """One more line about what was done."""
        with open(self.folder / "faults.txt", "a", encoding="utf-8") as file:
            file.write(f"{time.time():.3f} command {self.commands}: {text}\n")

    def _fire(self, fault, process):
        """Make a fault happen; False while there is nothing that it could happen to."""
        if fault.what == "full":
            self.disk.fill(fault.pick)
        elif fault.what == "room":
            self.disk.free()
        elif fault.what == "mend":
            self.cluster.mend()
        elif fault.what in ("lane", "rerun"):
            Path(f"{self.notes}.{fault.what}").touch()
        elif fault.what in ("eio", "erofs", "stall"):
            flag = self.folder / "refuses"
            flag.write_text(fault.what)
            timer = threading.Timer(fault.pick / 1000, flag.unlink, kwargs={"missing_ok": True})
            timer.daemon = True
            timer.start()
        elif fault.what == "edit":
            if self.find() is None:  # until then the edited files are those that are submitted
                return False
            foreign.edit(self.folder)
        elif fault.what in SIGNALS:
            os.kill(process.pid, SIGNALS[fault.what])
            self.asked_t = time.monotonic()
        elif fault.what == "pause":
            if not any(self._journal()):  # another process can take over what somebody has begun
                return False
            os.kill(process.pid, signal.SIGSTOP)
            self._resume_beside(process)
        elif fault.what == "gone":
            found = self.find()
            if found is None or Path(RunFolder(found).table).exists():  # its table is the last that it writes
                return False
            until(lambda: shutil.rmtree(self.runs, ignore_errors=True) or not self.runs.exists(), 10, every=0.001)
        elif fault.what == "second":
            self.second = Beside(self)
        elif fault.what == "nodes":
            for pid in self.cluster.raylets():
                kill(pid)
        else:
            victims = self._victims(fault.what, process)
            if not victims or not kill(victims[fault.pick % len(victims)]):
                return False
            if fault.what == "runner":
                process.join()
        self.fired += 1
        return True

    def _victims(self, what, process):
        if what == "runner":
            return [process.pid]
        if self.cluster:
            by_name = {"worker": self.cluster.workers, "raylet": self.cluster.raylets}
            return [self.cluster.head] if what == "head" else sorted(by_name[what]())
        starts = {"worker": "ray::Worker", "raylet": "raylet "}[what]
        name = lambda one: os.path.basename(one.title.split(" ")[0]) + " " if what == "raylet" else one.title  # noqa: E731
        return sorted(one.pid for one in below(process.pid) if name(one).startswith(starts))

    # what is left

    def _nothing_is_left(self):
        if self.cluster:
            left = self.cluster.settled(15)
            self.verdict.problems += [f"left behind: {text}" for text in left]
            known = self.cluster.daemons()
        else:
            known = set()
        until(lambda: all(one.title in AGENTS for one in self._strangers(known)), 15)
        left = self._strangers(known)
        self.verdict.agents = [one for one in left if one.title in AGENTS]
        self.verdict.problems += [
            f"left behind: process {one.pid} {one.title[:120]}" for one in left if one.title not in AGENTS
        ]

    def _strangers(self, known):
        """Processes that this scenario has left: orphans that came to us."""
        reap(known)
        me, helpers = os.getpid(), {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
        mine = [one for one in processes().values() if one.parent == me and one.pid not in known | helpers]
        return [one for one in mine if str(self.folder) in self._where(one.pid) or one.title.startswith("ray::")]

    @staticmethod
    def _where(pid):
        with suppress(OSError):
            return Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace") + os.readlink(f"/proc/{pid}/cwd")
        return ""

    def keep(self):
        """Keep what explains a failure beside the folder of the run."""
        (self.folder / "verdict.json").write_text(json.dumps([self.verdict.problems, self.verdict.facts], indent=1))
        (self.folder / "processes.txt").write_text(
            "\n".join(f"{p.pid} {p.parent} {p.title[:200]}" for p in processes().values())
        )
        if self.disk and self.runs.exists():
            shutil.copytree(self.runs, self.folder / "runs", dirs_exist_ok=True)
        if self.cluster:
            (self.folder / "held.json").write_text(json.dumps(self.cluster.ask(), indent=1))
            self.cluster.logs(self.folder / "ray")


class Beside:
    """Another run of the same user, beside one that is played: in a thread, with no faults of its own, and a look at their account."""

    def __init__(self, first):
        one = first.scenario
        calm = replace(one, kind="calm", seed=one.seed, salt=one.salt + 1, faults=())
        self.folder = first.folder / "second"
        self.folder.mkdir()
        self.play = Play(calm, self.folder, None, None, Verdict("calm", one.seed))
        self.play.environment = first.environment
        self.most, self.over = {}, threading.Event()
        self._run = threading.Thread(target=self._play, daemon=True)
        self._watch = threading.Thread(
            target=self._look, args=(Path(first.environment["QDRUN_MACHINE_DIR"]) / "account",), daemon=True
        )
        self._run.start()
        self._watch.start()

    def _play(self):
        self.play._command(())

    def _look(self, account):
        """The most that all runs have promised at once."""
        while not self.over.wait(0.02):
            with suppress(OSError, ValueError), open(account / "gate", "rb") as gate:
                fcntl.flock(gate, fcntl.LOCK_EX)
                entries = [json.loads(path.read_bytes() or b"{}") for path in account.glob("*.json") if _locked(path)]
                fcntl.flock(gate, fcntl.LOCK_UN)
                for pool in {pool for entry in entries for pool in entry.get("held", {})}:
                    held = sum(entry.get("held", {}).get(pool, 0) for entry in entries)
                    self.most[pool] = max(self.most.get(pool, 0), held)

    def result(self):
        """What is wrong."""
        from qdrun.runner.ledger.inventory import local

        self._run.join(self.play.longest_s + 30)
        self.over.set()
        self._watch.join(5)
        judge(self.play)
        problems = self.play.verdict.problems
        problems += [] if self.play.codes == [exit_code(self.play.scenario.outcome)] else [f"it ended with {self.play.codes}"]
        (host,) = [row for row in local() if row.backend == "cpu"]
        for pool, most in {"cores": host.lanes * host.threads, host.pool: host.capacity}.items():
            if self.most.get(pool, 0) > most:
                problems.append(f"both hold {self.most[pool]} of {pool}, of which there are {most}")
        return problems


def _locked(path):
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
