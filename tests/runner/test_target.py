"""What is wrong with the file of a job is said with the Python line, its text and a caret, beside the line of the YAML."""

import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
from runner_helpers import write_config

from qdrun.runner import submit
from qdrun.runner.config.model import ConfigError
from qdrun.runner.engine import session
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.target import TargetError, importable

JOB = """from qdrun.jobs.base import Job, JobParams


class Params(JobParams):
    x: float = 1.0
"""


def refused(folder, files, target="own.py:Own"):
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        prepare(write_config(folder, target=target))
    message = str(caught.value)
    assert re.match(rf"{re.escape(str(folder))}/fake.yaml:3: `job.target`: importing ", message)
    return message


def test_a_name_error_in_a_class_body(tmp_path):
    said = refused(tmp_path, {"own.py": f"{JOB}\n\nclass Own(Job[Params]):\n    gradients = (first, 'x')\n"})
    where = f"{tmp_path}/own.py:9 in Own\n    gradients = (first, 'x')\n                 ^^^^^\n"
    assert f"NameError: name 'first' is not defined\n  at {where}  called from {tmp_path}/own.py:8\n" in said


@pytest.mark.parametrize("target", ["own.py:Own", "own_module_with_helper:Own"])
def test_a_key_error_in_an_imported_helper(tmp_path, target, monkeypatch):
    monkeypatch.chdir(tmp_path)
    helper = f"helper_{tmp_path.name}"
    own = "own.py" if target.startswith("own.py") else "own_module_with_helper.py"
    files = {f"{helper}.py": "sizes = {'a': 1}\nwidth = 2 * sizes['b']\n", own: f"import {helper}\n{JOB}"}
    said = refused(tmp_path, files, target)
    assert (
        f"KeyError: 'b'\n  at {tmp_path}/{helper}.py:2\n    width = 2 * sizes['b']\n                ^^^^^^^^^^\n  called from "
        in said
    )
    assert f"{tmp_path}/{own}:1\n" in said


def test_a_file_that_is_no_python(tmp_path):
    said = refused(tmp_path, {"own.py": f"{JOB}\n\nclass Own(Job[Params])\n    pass\n"})
    where = f"{tmp_path}/own.py:8\n    class Own(Job[Params])\n                          ^\n"
    assert f"SyntaxError: expected ':'\n  at {where}" in said


def test_a_syntax_error_in_an_imported_helper_names_the_helper(tmp_path):
    helper = f"broken_{tmp_path.name}"
    said = refused(tmp_path, {f"{helper}.py": "a = (1,\nb = 2\n", "own.py": f"import {helper}\n{JOB}"})
    assert f"\n  at {tmp_path}/{helper}.py:1\n    a = (1,\n        ^" in said


SCRIPT = f"""{JOB}

class Mine(Job[Params]):
    gradients = ("x",)
    needs_compiler = False

    def build(self): ...


from qdrun.runner import submit
"""
MINE = ["job.target=__main__:Mine", "gradients=[x]"]


def main_is(monkeypatch, **names):
    module = ModuleType("__main__")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "__main__", module)


def test_a_job_of_the_script_that_runs_is_its_files(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    main_is(monkeypatch, __file__=str(script))
    ran = []

    def run(prepared, job, **how):
        ran.append((prepared.target, job.__name__))
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "submit", run)
    with pytest.raises(KeyboardInterrupt):
        submit(write_config(tmp_path), overrides=MINE)
    ((target, name),) = ran
    assert (target.file, target.source, name) == (str(script), SCRIPT, "Mine")
    main_is(monkeypatch, __file__=str(script), __spec__=SimpleNamespace(name="package.train"))
    assert importable("__main__:Mine") == "package.train:Mine"


def test_a_script_that_submits_while_it_is_imported_is_refused(tmp_path, monkeypatch):
    config, script = write_config(tmp_path), tmp_path / "train.py"
    script.write_text(f"{SCRIPT}\nsubmit({str(config)!r}, overrides={MINE})\n")
    main_is(monkeypatch, __file__=str(script))
    with pytest.raises(ConfigError, match="TargetError: the job's file submits a run while it is imported") as caught:
        submit(config, overrides=MINE)
    assert 'do: put `submit(..)` below `if __name__ == "__main__":`' in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_job_of_an_interactive_session_is_refused_at_once(tmp_path, monkeypatch):
    main_is(monkeypatch)
    with pytest.raises(
        TargetError, match="Mine is defined in an interactive session, which workers cannot import\n  do: in a notebook give"
    ):
        submit(write_config(tmp_path), overrides=MINE)
    with pytest.raises(ConfigError, match=r"`__main__` is another module in every process; name the file of Mine"):
        prepare(write_config(tmp_path, target="__main__:Mine"))
