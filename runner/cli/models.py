"""The JSON documents of ``--json``, one model for each command; ``documents.py`` names them. docs/cli.md is generated from them.

The first field of a document, ``schema``, names it: ``qdrun.<command>/<version>``. The version is raised when a field is removed or changes
its meaning; fields may be added at any time.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Data = dict[str, Any]


def about(text: str) -> Any:
    """A required field with its description."""
    return Field(description=text)


def may(text: str) -> Any:
    """An optional field with its description; the default is null."""
    return Field(None, description=text)


class Part(BaseModel):
    """A part of a document. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Problem(Part):
    """One problem of a config."""

    what: str = about("what is wrong")
    file: str = about("the file, or `--set`")
    line: int | None = about("the line number")
    key: str = about("the dotted name of the key")
    allowed: list[Any] = about("the allowed values")
    hint: str = about("what to do")


class ErrorPart(Part):
    """What went wrong."""

    type: str = about("`ConfigError`, `UsageError`, or the name of the exception")
    message: str = about("what happened, where, what to do")
    problems: list[Problem] | None = may("the problems of a `ConfigError`")
    traceback: str | None = may("the traceback of an exception of the job")


class Error(Part):
    """The document of every command that fails."""

    error: ErrorPart = about("what went wrong")
    exit_code: int = about("the exit code of the command")


class PlannedTrial(Part):
    """A trial of a plan."""

    id: str = about("computed from parameters and replicate")
    label: str = about("the swept values")
    replicate: int = about("number of the repetition")
    seed: int = about("the trial's own seed")
    params: Data = about("all parameters")


class ShapePart(Part):
    """Trials that need equal memory."""

    trials: list[str] = about("their ids")
    example: str = about("the label of one of them")
    error: str | None = about("why no plan could be made")
    arch: str | None = about("the backend of the plan")
    bytes: int | None = about("of one trial, without code and the overhead of the process")
    footprint: int | None = about("bytes plus the overhead of the process on a GPU")
    by_kind: dict[str, int] = about("bytes by kind")
    entries: list[Data] = about("the terms of the sum: kind, bytes, source, formula, plane, where")
    notes: list[str] = about("ways to make a trial faster, with the line of the kernel")
    gradients: list[Data] = about("gradients with a path that is cut: name, connected, warning, why")
    fits: bool | None = about("whether it is within limits.memory and memory_budget; null: no plan")


class BatchesPart(Part):
    """Trials that run in batches of a given size, or one by one."""

    trials: int = about("number of trials")
    example: str = about("the label of one of them")
    size: int = about("largest number of trials in a batch; 1: no batches")
    why: str | None = about("the reason why they are not batched")
    width: int = about("trials of a group, which lie side by side in memory")
    batches: int = about("number of batches")
    bytes: dict[str, int] = about("of a batch of that size, by device class")


class PlacedDevice(Part):
    """A device of a placement."""

    device: str = about("name of the device")
    kind: str = about("device class; the devices of a class share one claim")
    pool: str = about("its memory pool")
    memory_bytes: int = about("size of the pool")
    for_trials_bytes: int = about("size of the pool less the reserve (a twentieth, at least 512 MiB)")
    process_bytes: int = about("overhead of a process on the device")
    lanes: int = about("number of trials that may run at once")
    at_once: int = about("largest number of trials that run at once")
    trials: int = about("number of trials that it runs in total")
    peak_bytes: int = about("largest number of bytes of the pool in use")
    busy: float = about("mean fraction of the pool in use")


class MisfitPart(Part):
    """Trials that fit on no device."""

    trials: int = about("number of trials")
    example: str = about("the label of one of them")
    bytes: int | None = about("bytes that one needs")
    why: str = about("the comparison of bytes, in words")


class PlacementPart(Part):
    """Simulated placement of the trials, all with the same duration."""

    where: str = about("`this machine`, or the text of --device-memory")
    devices: list[PlacedDevice] = about("the devices")
    placed: int = about("number of trials that fit")
    at_once: int = about("largest number of trials that run at once")
    waves: int = about("rounds of trials on the device with the most rounds")
    finish: float = about("time until the last one ends, in units of the longest trial")
    bound: float = about("lower bound of the finish of any placement")
    bound_by: str = about("what limits the bound: bytes, lanes, longest")
    misfits: list[MisfitPart] = about("trials that do not fit")


class Plan(Part):
    """Trials, their memory and their placement."""

    name: str = about("name of the config")
    target: str = about("the job")
    backend: str = about("backend of the trials")
    choice: Data | None = may(
        "with device.backend: auto and several backends: backend, reason, and the candidates with their predictions"
    )
    threads: int = about("threads of one trial")
    gradients: list[str] = about("names of the gradients")
    warnings: list[str] = about("gradients that are 0 or incomplete whatever the parameters, with the line that cuts the path")
    trials: list[PlannedTrial] = about("all trials")
    memory: list[ShapePart] = about("the memory of each shape of trials")
    batch: int | str = about("`batch` of the config")
    batches: list[BatchesPart] = about("groups of trials that may be batched; empty if the devices are unknown")
    memory_budget: int | str | None = about("`memory_budget` of the config")
    overrides: list[str] = about("the changes by --set")
    at_once: int | None = about("as in placement; null if the devices are unknown")
    placement: PlacementPart | None = about("null for a plan of another backend without --device-memory")


class Explain(Part):
    """Memory of a trial, to the line of code."""

    name: str = about("name of the config")
    target: str = about("the job")
    memory_budget: int | str | None = about("`memory_budget` of the config")
    memory: list[Data] = about(
        "for each shape: trials, example, error, explanation with fields, loops, kernels, remedies, plan, built_again"
    )


class Check(Part):
    """Gradients compared with finite differences."""

    model_config = ConfigDict(extra="allow")

    name: str = about("name of the config")
    target: str = about("the job")
    trial: str = about("the first trial of the config")
    backend: str = about("backend of the check")
    precision: str = about("float type of the fields")
    tolerance: float = about("largest allowed relative error")
    rebuilt: str = about("why a job with inputs is built for each trial; empty if it is not")
    not_compared: list[str] = about("gradients without a parameter of that name")
    horizon: dict[str, int] | None = about("the parameter that was shortened, and its value")
    cut: list[str] = about("lists of parameters with an item per time step, shortened to the horizon")
    unshortened: str = about("why the horizon was not shortened; empty if it was, or is short")
    warnings: list[str] = about("gradients that are 0 or incomplete whatever the parameters, with the line that cuts the path")
    agrees: bool = about("whether all gradients agree")
    rows: list[Data] = about("the compared elements")


class Submit(Part):
    """The end of a run."""

    run: str = about("its id")
    folder: str = about("its folder")
    results: str = about("its table, a Parquet file")
    state: str = about("done, failed, cancelled, interrupted, lost; running after --detach")
    exit_code: int = about("exit code of the command")
    trials: int = about("number of trials")
    counts: dict[str, int] = about("number of trials by status")
    best: Data | None = about("the row with the smallest loss")
    failures: list[Data] = about("trial, error_type and error of each failed trial")
    warnings: list[str] = about("gradients that are 0 in every trial, and optimisation runs that lowered no loss")
    seconds: float | None = about("from the start of the command to the end")
    timing: Data = about("seconds by phase; empty after --detach")
    process: int | None = may("after --detach: id of the process of the run")
    job: str | None = may("after --detach: the Ray Job of the run")
    address: str | None = may("address of the cluster of that job")
    log: str | None = may("after --detach: log file of the process, or the command that prints the log of the job")


class Resume(Part):
    """The trials of a resumed run."""

    run: str = about("its id")
    state: str = about("state of the run before")
    kept: list[str] = about("trials that have succeeded")
    retried: dict[str, str] = about("trials that run, or run again, each with the reason")
    skipped: dict[str, str] = about(
        "trials that failed by an error of their own, each with the reason; --failed runs them again"
    )
    code_changes: list[str] = about(
        "how the job's files differ from the code that the run keeps; not compared with --code or --force"
    )
    config_changes: list[str] = about(
        "keys of the config that were edited since; then `resume` needs --force or --config. Compared with --dry-run alone"
    )
    ended: Submit | None = about("end of the run, as for submit; null with --dry-run")


class WaitingTrials(Part):
    """Why trials wait."""

    count: int = about("number of trials")
    why: str = about("the reason, with the numbers")


class RunningTrialPart(Part):
    """A running trial."""

    trial: str = about("its id")
    label: str = about("the swept values")
    device: str = about("name of the device")
    seconds: float = about("since it started")
    bytes: int | None = about("claimed bytes")
    step: str = about("progress: phase, time step, step of an optimisation, latest values; empty if not reported yet")
    values: dict[str, Any] = about(
        "the values that it has logged last, by name; of a batch those of the trial with the smallest loss"
    )
    at: int | None = about("the step at which they were logged; null: nothing was logged")


class RunState(Part):
    """The state of one run."""

    id: str = about("id of the run")
    folder: str = about("its folder or URI")
    state: str = about("running, done, failed, cancelled, interrupted, lost, damaged")
    cancel_requested: bool = about("whether a stop was requested")
    trials: int = about("number of trials")
    counts: dict[str, int] = about("number of trials by status")
    best: Data | None = about("trial and loss of the smallest loss so far")
    seconds: float = about("from the submission to now, or to the end")
    damaged_lines: int = about("unreadable lines of the journal")
    refused_lines: int = about("lines that a former owner wrote after it had lost the run")
    timing: Data | None = about("seconds by phase, after the end")
    lanes: list[RunningTrialPart] = Field([], description="running trials; for a single run only")
    waiting: list[WaitingTrials] = Field(
        [], description="why trials wait, by the latest report of the runner; for a single run only"
    )
    warnings: list[str] = Field([], description="warnings about gradients and optimisation runs; for a single run only")
    error: str | None = may("the damage of a damaged run")


class Status(Part):
    """The state of runs."""

    runs: list[RunState] = about("the requested run, or all runs, oldest first")


class DeviceNow(Part):
    """A device of a run."""

    id: str = about("name of the device")
    pool: str = about("its memory pool")
    kind: str = about("device class")
    capacity: int | None = about("bytes of the pool for trials")
    claimed: int = about("claimed bytes")
    used: int | None = about("bytes in use, reported by the driver")
    lanes: int | None = about("number of trials that may run at once")
    running: int = about("number of running trials")


class Failed(Part):
    """A failed trial."""

    trial: str = about("its id")
    label: str = about("the swept values")
    kind: str = about("type of its error")
    message: str = about("first line of its error")


class Reason(Part):
    """Why trials wait."""

    count: int = about("number of trials")
    text: str = about("the reason, with the numbers")


class WatchedRun(Part):
    """The state of a run at one moment."""

    run: str = about("its id")
    state: str = about("as in status")
    total: int = about("number of trials in the sweep")
    counts: dict[str, int] = about("number of trials by status")
    seconds: float = about("since the start of the run")
    rate: float | None = about("recent rate, in trials per second")
    eta_s: float | None = about("estimated seconds to the end")
    best: Data | None = about("trial and loss of the smallest loss so far")
    devices: list[DeviceNow] = about("devices of the run")
    lanes: list[RunningTrialPart] = about("running trials")
    failures: list[Failed] = about("latest failures, the newest last")
    reasons: list[Reason] = about("why trials wait")
    retries: dict[str, int] = about("attempts that ended without a row, by failure class; `repeated`: lost with their worker")


class Listed(Part):
    """A run in a list."""

    id: str = about("id of the run")
    folder: str = about("its folder or URI")
    name: str = about("name of the config")
    created: float | None = about("creation time in seconds since 1970")
    state: str = about("as in status")
    trials: int = about("number of trials")
    finished: int = about("trials with a row: done, failed, cancelled, poisoned")
    failed: int = about("trials that are failed or poisoned")
    best: float | None = about("smallest loss")
    tags: list[str] = about("its tags, sorted")
    note: str = about("its last note; empty without")


class Ls(Part):
    """A list of runs."""

    where: str = about("the folder of the runs")
    runs: list[Listed] = about("newest first")


class LogPart(Part):
    """The output of one attempt, or of a worker process, on one stream."""

    trial: str | None = about("its id; null for a worker")
    attempt: int | None = about("number of the attempt")
    owner: int | None = about("number of the owner of the run")
    worker: str | None = may("with --workers: device and number of the worker")
    stream: str = about("stdout, stderr, or error: the traceback of its row")
    path: str | None = about("the file; null for `error`")
    text: str = about("what was printed")


class Logs(Part):
    """The output of trials."""

    run: str = about("its id")
    logs: list[LogPart] = about("logs that are not empty")


class Cancel(Part):
    """The effect of a cancel request."""

    run: str = about("its id")
    trial: str | None = about("the trial; null for the whole run")
    state: str = about("state of the run before")
    cancel_requested: bool = about("whether there was anything to stop")


class ResultsTable(Part):
    """The table of a run; with `--format parquet` only its path."""

    run: str = about("its id")
    state: str = about("as in status")
    complete: bool = about("whether every trial has its row")
    columns: list[str] = about("names of the columns, in order")
    problems: list[str] = about("damage of the run folder: file and line, what is lost, what to do")
    rows: list[Data] = about("one row per trial; running-sweeps.md lists the columns")
    path: str | None = may("the Parquet file that was written")
    report: str | None = may("the HTML file that --plot wrote")


class Report(Part):
    """The report that was written."""

    run: str = about("id of the run")
    path: str = about("path of the HTML file")


class DeviceRow(Part):
    """A device, or a backend without one."""

    node: str = about("name of the machine")
    backend: str = about("name of the backend in a config")
    usable: bool = about("whether programs can run on it")
    id: str = about("name of the device in plans, journals and `started` events")
    index: int = about("number of the device in this process")
    uuid: str = about("permanent id of the device")
    pci: str = about("its PCI address")
    model: str = about("model name from the driver")
    kind: str = about("device class: backend, model, threads in flight; the devices of a class share one claim")
    driver: str = about("version of the driver")
    pool: str = about("its memory pool; devices may share one")
    threads: int = about("threads of a running trial")
    lanes: int = about("number of trials that may run at once")
    memory_bytes: int = about("size of the pool")
    free_bytes: int | None = about("free bytes of the pool; null if unknown")
    for_trials_bytes: int = about("bytes for trials: free bytes less the reserve and what other processes hold")
    process_bytes: int = about("overhead of a worker process")
    why: str = about("why the device cannot be used")


class Devices(Part):
    """The devices of this machine."""

    devices: list[DeviceRow] = about("the CPU first; one row for each GPU")


class Dashboard(Part):
    """The address of Ray's dashboard."""

    url: str = about("its address; empty if there is none")
    answers: bool = about("whether it answers now")
    needs_token: bool | None = about("whether it requires the token; null if it does not answer")
    token_file: str = about("file of the token; the token is not printed")
    token_file_mode: str | None = about("permissions of that file; null if there is none")
    run: str | None = about("the run of the request")


class Up(Part):
    """The Ray that is kept on this machine."""

    pid: int = about("the process that holds it")
    address: str = about("host:port of its control plane")
    dashboard: str = about("address of its dashboard; empty without one")
    begun: bool = about("whether it was started now; otherwise it was up already")
    cores: int = about("number of cores that it hands out")
    gpus: int = about("number of GPUs that it hands out")


class Down(Part):
    """The Ray that was kept on this machine."""

    pid: int | None = about("the process that held it; null where there was none")


class New(Part):
    """The files that were written."""

    written: list[str] = about("their paths")
    next: str = about("the command that runs the first config")


class ExampleRow(Part):
    """A config that comes with the package."""

    name: str = about("name of its job")
    config: str = about("file name of the config")
    seconds: int | None = about("seconds on two cores, with the start of Ray; null if unknown")
    shows: str = about("what it shows")


class Examples(Part):
    """All examples; with `copy`, the files that were written."""

    examples: list[ExampleRow] | None = may("each config that comes with the package")
    written: list[str] | None = may("paths of the copies")
    next: str | None = may("the command that runs the first config")
