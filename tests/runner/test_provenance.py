"""What a run folder says about where its results come from."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys

import pytest

from qdrun.runner.jobcode import closure
from qdrun.runner.provenance import record as provenance
from qdrun.runner.provenance.record import Provenance, files_of
from qdrun.runner.study.target import TargetError, load, resolve

JOB = """
from provenance_helper import GAIN
from qdrun.jobs.base import Job, JobParams


class Mine(Job[JobParams]):
    gain = GAIN
"""


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture
def job(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(JOB)
    (tmp_path / "provenance_helper.py").write_text("GAIN = 3\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    target = resolve("mine.py:Mine", tmp_path)
    load(target)
    yield tmp_path, target
    sys.modules.pop("provenance_helper", None)


def described(target):
    files = files_of(target)
    return files, Provenance.model_validate(json.loads(files[provenance.FILE]))


def test_the_sources_of_a_job_are_kept_as_they_ran(job, monkeypatch):
    folder, target = job
    monkeypatch.setattr(sys, "argv", ["qdrun", "submit", "sweep.yaml", "--set", "job.params.steps=3"])
    (folder / "mine.py").write_text("edited since")
    files, told = described(target)
    assert files["source/mine.py"].decode() == JOB
    assert files["source/provenance_helper.py"] == b"GAIN = 3\n"
    assert {s.path: s.sha256 for s in told.sources} == {
        name.removeprefix("source/"): hashlib.sha256(data).hexdigest() for name, data in files.items() if "source/" in name
    }
    assert told.command == ("qdrun", "submit", "sweep.yaml", "--set", "job.params.steps=3")
    assert told.packages["numpy"] and told.packages["llvmlite"] and told.python == sys.version.split()[0]
    assert told.git is None and "no git state" in told.notes[0]


def test_modules_that_are_named_and_not_yet_loaded_are_kept_too(tmp_path):
    text = "def later():\n    import provenance_pack.inner\n    from provenance_pack import other, Name\n    import numpy\n"
    (tmp_path / "lazy.py").write_text(f"{text}\n{JOB.replace('from provenance_helper import GAIN', 'GAIN = 1')}")
    package = tmp_path / "provenance_pack"
    package.mkdir()
    (package / "__init__.py").write_text("from .deep import x\n")
    (package / "inner.py").write_text("from . import gone\nfrom .. import above\n")
    for name in ("deep", "other", "unused"):
        (package / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "numpy.py").write_text("an import finds the installed one")
    target = resolve("lazy.py:Mine", tmp_path)
    load(target)
    told = described(target)[1]
    assert {one.path for one in told.sources} == {
        "lazy.py",
        *(f"provenance_pack/{name}.py" for name in ("__init__", "inner", "deep", "other")),
    }
    assert "provenance_pack" not in sys.modules and told.root == str(tmp_path) and len(told.qdrun) == 64
    (note,) = (text for text in told.notes if "numpy" in text)
    assert re.match(
        r"`import numpy` finds the installed /.*/numpy/__init__\.py, not /.*/numpy\.py beside the job\n  do: ", note
    )


def test_the_commit_and_what_is_not_committed_are_kept(job):
    folder, target = job
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    files, told = described(target)
    assert told.git is not None and not told.git.dirty and told.git.branch == "main" and len(told.git.commit) == 40
    assert provenance.DIFF not in files
    (folder / "provenance_helper.py").write_text("GAIN = 4\n")
    files, told = described(target)
    assert told.git.dirty and b"-GAIN = 3\n+GAIN = 4\n" in files[provenance.DIFF]


def test_variables_that_change_what_runs_are_kept_and_secrets_are_not(job, monkeypatch):
    for name in ("QD_FAST_MATH", "QDRUN_API_TOKEN", "RAY_AUTH_TOKEN", "QD_SECRET_X", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, f"value of {name}")
    files, told = described(job[1])
    assert told.variables["QD_FAST_MATH"] == "value of QD_FAST_MATH"
    text = b"".join(files.values())
    assert not any(f"value of {name}".encode() in text for name in ("QDRUN_API_TOKEN", "RAY_AUTH_TOKEN", "QD_SECRET_X"))
    assert b"AWS_SECRET" not in text


def test_more_source_than_the_limit_is_refused_by_name(job, monkeypatch):
    monkeypatch.setattr(closure, "CODE_BYTES", len(JOB))
    with pytest.raises(TargetError, match=r"more than 0 MiB .*provenance_helper\.py is beyond that"):
        resolve("mine.py:Mine", job[0])


def test_a_repository_cannot_run_a_command(job, tmp_path):
    """The settings of somebody else's repository name programs for git to run."""
    folder, target = job
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    ran = tmp_path / "ran"
    for name in ("core.fsmonitor", "diff.external"):
        git(folder, "config", name, f"touch {ran}")
    (folder / "provenance_helper.py").write_text("GAIN = 4\n")
    ran.unlink(missing_ok=True)
    files, _ = described(target)
    assert b"+GAIN = 4" in files[provenance.DIFF] and not ran.exists()
