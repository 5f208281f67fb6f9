"""The JSON documents of ``--json``, one model for each command. docs/cli.md is made from them.

A document says what it is in ``schema``: ``qdrun.<command>/<version>``. The version rises when a field goes away or changes its meaning;
new fields may come at any time.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

VERSION = 1
Data = dict[str, Any]


def about(text: str) -> Any:
    """A field that must be there, and what it means."""
    return Field(description=text)


def may(text: str) -> Any:
    """A field that may be missing or null."""
    return Field(None, description=text)


class Part(BaseModel):
    """A part of a document; nothing in it is unknown."""

    model_config = ConfigDict(extra="forbid")


class Problem(Part):
    """One problem of a config."""

    what: str = about("what is wrong")
    file: str = about("the file, or `--set`")
    line: int | None = about("its line")
    key: str = about("the key, dotted")
    allowed: list[Any] = about("what may stand there")
    hint: str = about("what to do")


class ErrorPart(Part):
    """What went wrong."""

    type: str = about("`ConfigError`, `UsageError`, or the name of the exception")
    message: str = about("what happened, where, what to do")
    problems: list[Problem] | None = may("of a `ConfigError`: each problem")
    traceback: str | None = may("of an exception of the job")


class Error(Part):
    """Printed instead of the command's own document when the command fails."""

    error: ErrorPart = about("what went wrong")
    exit_code: int = about("the exit code of the command")


class PlannedTrial(Part):
    """A trial of a plan."""

    id: str = about("follows from parameters and replicate")
    label: str = about("what was swept")
    replicate: int = about("which repetition")
    seed: int = about("the trial's own seed")
    params: Data = about("all parameters")


class ShapePart(Part):
    """Trials that need equal memory."""

    trials: list[str] = about("their ids")
    example: str = about("the label of one")
    error: str | None = about("why it cannot be planned")
    arch: str | None = about("the backend that it is planned for")
    bytes: int | None = about("of one trial, without code and what the process takes")
    footprint: int | None = about("with what the process takes of a GPU")
    by_kind: dict[str, int] = about("bytes by kind")
    entries: list[Data] = about("each sum: kind, bytes, source, formula, plane, where")
    notes: list[str] = about("what would make a trial faster, with the kernel's line")
    fits: bool | None = about("within limits.memory and memory_budget; null: not planned")


class BatchesPart(Part):
    """Trials that run at once in one program, so many at a time, or each in its own."""

    trials: int = about("how many")
    example: str = about("the label of one")
    size: int = about("trials of a batch, at most; 1: one by one")
    why: str | None = about("why they run one by one")
    batches: int = about("how many batches")
    bytes: dict[str, int] = about("of a batch of that size, by class of devices")


class PlacedDevice(Part):
    """A device of a placement."""

    device: str = about("its name")
    kind: str = about("its class: one claim holds for all devices of it")
    pool: str = about("the memory that it uses")
    memory_bytes: int = about("of the pool in all")
    for_trials_bytes: int = about("less the reserve: a twentieth, at least 512 MiB")
    process_bytes: int = about("what a process on it takes once")
    lanes: int = about("programs that may run at once")
    at_once: int = about("trials that do, at the most")
    trials: int = about("trials that it runs in all")
    peak_bytes: int = about("most bytes of the pool in use")
    busy: float = about("mean share of the pool in use")


class MisfitPart(Part):
    """Trials that cannot run."""

    trials: int = about("how many")
    example: str = about("the label of one")
    bytes: int | None = about("what one needs")
    why: str = about("the arithmetic")


class PlacementPart(Part):
    """Where the packer would run the trials, all taken as equally long."""

    where: str = about("`this machine`, or the text of --device-memory")
    devices: list[PlacedDevice] = about("the devices")
    placed: int = about("trials that have a place")
    at_once: int = about("most trials at the same time")
    waves: int = about("rounds of trials on the device that has the most")
    finish: float = about("until the last one ends, in units of the longest trial")
    bound: float = about("no packing ends before it")
    bound_by: str = about("what the bound follows from: bytes, lanes, longest")
    misfits: list[MisfitPart] = about("what does not fit")


class Plan(Part):
    """What would run, the memory it needs, and where."""

    name: str = about("of the config")
    target: str = about("the job")
    backend: str = about("what the trials run on")
    choice: Data | None = may(
        "with device.backend: auto and several backends: backend, reason, and the candidates with what is known of each"
    )
    threads: int = about("of one trial")
    gradients: list[str] = about("their names")
    trials: list[PlannedTrial] = about("all trials")
    memory: list[ShapePart] = about("the memory of each shape of trials")
    batch: int | str = about("of the config")
    batches: list[BatchesPart] = about("which trials run together; empty when nobody says what is there")
    memory_budget: int | str | None = about("of the config")
    overrides: list[str] = about("what --set changed")
    at_once: int | None = about("as in placement; null when nobody says what is there")
    placement: PlacementPart | None = about("null when planned for another backend without --device-memory")


class Explain(Part):
    """Where every byte of a trial goes."""

    name: str = about("of the config")
    target: str = about("the job")
    memory_budget: int | str | None = about("of the config")
    memory: list[Data] = about(
        "for each shape: trials, example, error, explanation with fields, loops, kernels, remedies, plan"
    )


class Check(Part):
    """Gradients beside finite differences."""

    model_config = ConfigDict(extra="allow")

    name: str = about("of the config")
    target: str = about("the job")
    trial: str = about("its first trial")
    backend: str = about("what it ran on")
    precision: str = about("of the fields")
    tolerance: float = about("largest relative error")
    rebuilt: str = about("why a job with live parameters is built for each trial all the same; empty where it is not")
    not_compared: list[str] = about("gradients that no parameter belongs to")
    horizon: dict[str, int] | None = about("the parameter that was shortened, and to what")
    cut: list[str] = about("lists of parameters with an item for each time step, cut to the horizon")
    unshortened: str = about("why the whole horizon was run; empty where it was shortened, or need not be")
    agrees: bool = about("whether all do")
    rows: list[Data] = about("each element that was looked at")


class Submit(Part):
    """How a run ended."""

    run: str = about("its id")
    folder: str = about("its folder")
    results: str = about("its table, a Parquet file")
    state: str = about("done, failed, cancelled, interrupted, lost; running after --detach")
    exit_code: int = about("of the command")
    trials: int = about("how many")
    counts: dict[str, int] = about("by status")
    best: Data | None = about("the row with the smallest loss")
    failures: list[Data] = about("trial, error_type, error of those that failed")
    seconds: float | None = about("from the command to the end")
    timing: Data = about("where the seconds went; empty after --detach")
    process: int | None = may("after --detach: the id of the process that runs it")
    job: str | None = may("after --detach: the Ray Job that runs it")
    address: str | None = may("of the cluster of that job")
    log: str | None = may("after --detach: the file of what the process prints, or the command that shows what the job does")


class Resume(Part):
    """What became of the trials of a run that goes on."""

    run: str = about("its id")
    state: str = about("of the run before")
    kept: list[str] = about("trials that had succeeded")
    retried: dict[str, str] = about("trials that run, or run again, each with the reason")
    skipped: dict[str, str] = about("trials that failed by their own fault, each with the reason; --failed runs them")
    ended: Submit | None = about("how it ended, as of submit; null with --dry-run")


class Waits(Part):
    """Why trials wait."""

    count: int = about("how many")
    why: str = about("the arithmetic")


class RunningTrialPart(Part):
    """A trial that runs."""

    trial: str = about("its id")
    label: str = about("what was swept")
    device: str = about("where")
    seconds: float = about("since it started")
    bytes: int | None = about("that it claimed")
    step: str = about("how far it is: its phase, time step, step of an optimisation, latest loss; empty: not heard yet")


class RunState(Part):
    """How one run is doing."""

    id: str = about("of the run")
    folder: str = about("its folder or URI")
    state: str = about("running, done, failed, cancelled, interrupted, lost, damaged")
    cancel_requested: bool = about("whether it was asked to stop")
    trials: int = about("how many")
    counts: dict[str, int] = about("by status")
    best: Data | None = about("trial and loss of the smallest loss so far")
    seconds: float = about("since it was submitted, or until it ended")
    damaged_lines: int = about("lines of the journal that cannot be read")
    refused_lines: int = about("lines that a former owner wrote too late")
    timing: Data | None = about("where the seconds went, at the end")
    lanes: list[RunningTrialPart] = Field([], description="what runs now; of one run alone")
    waiting: list[Waits] = Field([], description="why trials wait, as the runner last said; of one run alone")
    error: str | None = may("what is wrong with a damaged run")


class Status(Part):
    """How runs are doing."""

    runs: list[RunState] = about("the run, or all of them, oldest first")


class DeviceNow(Part):
    """A device of a run."""

    id: str = about("its name")
    pool: str = about("the memory that it uses")
    kind: str = about("its class")
    capacity: int | None = about("bytes of the pool for trials")
    claimed: int = about("bytes claimed now")
    used: int | None = about("bytes used now, by the driver")
    lanes: int | None = about("trials that may run at once")
    running: int = about("trials that do")


class Failed(Part):
    """A trial that failed."""

    trial: str = about("its id")
    label: str = about("what was swept")
    kind: str = about("the type of its error")
    message: str = about("its first line")


class Reason(Part):
    """Why trials wait."""

    count: int = about("how many")
    text: str = about("the arithmetic")


class Watch(Part):
    """A run at one moment."""

    run: str = about("its id")
    state: str = about("as in status")
    total: int = about("trials of the sweep")
    counts: dict[str, int] = about("by status")
    seconds: float = about("since the run began")
    rate: float | None = about("trials that end per second, lately")
    eta_s: float | None = about("seconds to the end at this rate")
    best: Data | None = about("smallest loss, and where")
    devices: list[DeviceNow] = about("what the trials run on")
    lanes: list[RunningTrialPart] = about("what runs now")
    failures: list[Failed] = about("the last ones, the latest last")
    reasons: list[Reason] = about("why trials wait")
    retries: dict[str, int] = about("attempts that ended without a row, by class of failure")


class Listed(Part):
    """A run of a list."""

    id: str = about("of the run")
    folder: str = about("its folder or URI")
    name: str = about("of the config")
    created: float | None = about("seconds since 1970")
    state: str = about("as in status")
    trials: int = about("how many")
    finished: int = about("of them with a row: done, failed, cancelled, poisoned")
    failed: int = about("of them failed or poisoned")
    best: float | None = about("the smallest loss")


class Ls(Part):
    """The runs that there are."""

    where: str = about("where they lie")
    runs: list[Listed] = about("latest first")


class LogPart(Part):
    """What one attempt printed on one stream, or a worker's process."""

    trial: str | None = about("its id; null: a worker's")
    attempt: int | None = about("which try")
    owner: int | None = about("by which owner of the run")
    worker: str | None = may("with --workers: its device and number")
    stream: str = about("stdout, stderr, or error: the traceback of its row")
    path: str | None = about("the file; null for `error`")
    text: str = about("what was printed")


class Logs(Part):
    """What trials printed."""

    run: str = about("its id")
    logs: list[LogPart] = about("those that are not empty")


class Cancel(Part):
    """What became of a request to stop."""

    run: str = about("its id")
    trial: str | None = about("the trial; null: the whole run")
    state: str = about("of the run before")
    cancel_requested: bool = about("whether there was anything to stop")


class Results(Part):
    """The table of a run. With `--format parquet`: its path alone."""

    run: str = about("its id")
    state: str = about("as in status")
    complete: bool = about("whether every trial has its row")
    columns: list[str] = about("of the rows, in order")
    problems: list[str] = about("what is damaged in the run folder: the file and the line, what is lost, what to do")
    rows: list[Data] = about("one for each trial; see running-sweeps.md for the columns")
    path: str | None = may("the Parquet file that was written")
    report: str | None = may("the HTML file that --plot wrote")


class Report(Part):
    """A report that was written."""

    run: str = about("id of the run")
    path: str = about("of the HTML file")


class DeviceRow(Part):
    """A device, or a backend that has none."""

    node: str = about("the machine")
    backend: str = about("the word of a config")
    usable: bool = about("whether programs can run on it")
    id: str = about("its name in plans, journals and `started` events")
    index: int = about("its number in this process")
    uuid: str = about("the name that it keeps everywhere")
    pci: str = about("its PCI address")
    model: str = about("as its driver calls it")
    kind: str = about("its class: backend, model, threads in flight; one claim holds for all of it")
    driver: str = about("version of the driver")
    pool: str = about("the memory that it uses; devices with one pool share it")
    threads: int = about("in flight while a trial runs")
    lanes: int = about("trials at once")
    memory_bytes: int = about("of the pool in all")
    free_bytes: int | None = about("of it free now; null: not known")
    for_trials_bytes: int = about("what trials of ours may have now: the reserve and what others hold taken off")
    process_bytes: int = about("what a worker holds beside its trials")
    why: str = about("why it cannot be used")


class Devices(Part):
    """What this machine has."""

    devices: list[DeviceRow] = about("the CPU first; one row for each GPU")


class Dashboard(Part):
    """Where Ray's dashboard is."""

    url: str = about("its address; empty when there is none")
    answers: bool = about("whether something answers there now")
    needs_token: bool | None = about("whether it asks for the token; null: it does not answer")
    token_file: str = about("where the token lies; it is not printed")
    token_file_mode: str | None = about("its permissions; null: there is no such file")
    run: str | None = about("the run that was asked about")


MODELS: dict[str, type[Part]] = {
    "submit": Submit,
    "resume": Resume,
    "plan": Plan,
    "explain": Explain,
    "check": Check,
    "status": Status,
    "watch": Watch,
    "ls": Ls,
    "results": Results,
    "report": Report,
    "logs": Logs,
    "cancel": Cancel,
    "devices": Devices,
    "dashboard": Dashboard,
    "error": Error,
}


def document(command: str, data: Data) -> Data:
    """The document of a command, checked against its model.

    Raises:
        pydantic.ValidationError: ``data`` is not what the model says: a mistake of ours.
    """
    return {"schema": f"qdrun.{command}/{VERSION}"} | MODELS[command].model_validate(data).model_dump(mode="json")
