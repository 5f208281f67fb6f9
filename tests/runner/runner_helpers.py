"""Small configs on the fake job."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from qdrun.jobs.base import execute
from qdrun.jobs.core.inputs import InputFiles, located
from qdrun.runner.optimize.descent import body_of
from qdrun.runner.study.target import Target, load
from qdrun.runner.workers import finished_record
from qdrun.runner.workers.program_cache import options_of
from qdrun.runner.workers.records import failed_record

FAKES = Path(__file__).with_name("fakes.py")

CONFIG = """version: 1
name: fake
job: {{target: "{target}", params: {params}}}
gradients: [x, target]
sweep:
  seed: 7
  params: {sweep}
limits: {limits}
output: {output}
"""


def write_config(folder, *, params=None, sweep=None, limits=None, target=None, text=None, optimize=None, more=""):
    """A config file in ``folder``, runs under ``folder/runs``."""
    path = Path(folder) / "fake.yaml"
    if text is None:
        text = CONFIG.format(
            target=target or f"{FAKES}:Quadratic",
            params=json.dumps(params or {}),
            sweep=json.dumps(sweep or {"x": [0, 1, 2]}),
            limits=json.dumps(limits or {}),
            output=json.dumps(str(Path(folder) / "runs")),
        )
    if optimize is not None:
        text += f"optimize: {json.dumps(optimize)}\n"
    path.write_text(text + more, encoding="utf-8")
    return path


def only_run(folder):
    """The folder of the one run under ``folder/runs``."""
    (run,) = (Path(folder) / "runs").iterdir()
    return run


def trial_record(spec):
    """The record of a trial that runs here and now, its arrays as lists."""
    kind = load(Target.model_validate(spec["target"]))
    params = located(kind.Params.model_validate(spec["params"]), InputFiles.of(spec))
    job = kind(params, wanted=spec["gradients"], seed=spec["seed"])
    try:
        record = finished_record(execute(job, **options_of(spec), body=body_of(spec["optimize"])))
    except Exception as error:
        return failed_record(error)
    for part in ("gradients", "outputs"):
        record[part] = {name: np.asarray(value).tolist() for name, value in record[part].items()}
    return record


@contextmanager
def zombie():
    """The id of a process that has ended and is waited for at the end of the block alone."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        os.kill(process.pid, 0)
        yield process.pid
