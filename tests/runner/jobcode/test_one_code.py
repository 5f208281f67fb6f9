"""A run has one code: what the driver read once is imported by every process of the run, whatever lies or changes elsewhere."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from qdrun.runner.engine.resume import config_of
from qdrun.runner.jobcode.imports import IMPORTS
from qdrun.runner.jobcode.modules import ImportKind
from qdrun.runner.provenance.record import record
from qdrun.runner.store.layout import create
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.target import TargetError, code_of, load, notes_of, resolve

JOB = """{first}
from qdrun.jobs.base import Job, JobParams, Outcome


class P(JobParams):
    x: float = 1.0


class J(Job[P]):
    gradients = ()
    needs_compiler = False

    def build(self): ...

    def launches(self): return []

    def run(self):
        {body}
"""
WORKER = """
import json, os, sys
from qdrun.runner.jobcode.imports import IMPORTS
from qdrun.runner.study.target import Target, load
IMPORTS.sole = True
target, run, change = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
job = load(Target.model_validate(target), run)
exec(change)
try:
    print(json.dumps([job(job.Params()).run().loss, IMPORTS.used()]))
except BaseException as error:
    import traceback
    print(json.dumps([f"{type(error).__name__}: {error}", [frame.filename for frame in traceback.extract_tb(error.__traceback__)]]))
"""


def write(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def job(folder, first, body, name="own", **files):
    write(folder, **{name: JOB.format(first=first, body=body)}, **files)


def made(folder, target="own.py:J"):
    """A run of the job, prepared and recorded here, which no worker has seen yet."""
    config = folder / "c.yaml"
    config.write_text(f"version: 1\nname: own\ngradients: []\njob: {{target: '{target}'}}\n")
    prepared, kind = prepare(config)
    run = create(prepared, folder.parent / "runs")
    record(run.files, prepared, kind)
    IMPORTS.release()
    return prepared, run


def ran(made_run, cwd="/", change="", **variables):
    """The loss of a trial in a worker's process of its own, or its error."""
    prepared, run = made_run
    words = [sys.executable, "-P", "-c", WORKER, prepared.target.model_dump_json(), str(run.path.absolute()), change]
    done = subprocess.run(words, cwd=cwd, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    IMPORTS.release()


def edit_all(folder):
    """Every file of the job is another one now."""
    for path in folder.rglob("*.py"):
        path.write_text("raise RuntimeError('edited')\n")


MEMBERS = {
    "a helper": ("from helper import K", "return Outcome(K)", {"helper": "K = 2\n"}),
    "a helper of a helper": (
        "from helper import K",
        "return Outcome(K)",
        {"helper": "from other import K\n", "other": "K = 2\n"},
    ),
    "an import inside of a function": ("", "from late import K; return Outcome(K)", {"late": "K = 2\n"}),
    "a package with relative imports": (
        "from pack.inner.deep import K",
        "return Outcome(K)",
        {
            "pack____init__": "",
            "pack__inner____init__": "",
            "pack__inner__deep": "from ..top import K\n",
            "pack__top": "K = 2\n",
        },
    ),
    "a package without an init": ("import space.inner.deep as d", "return Outcome(d.K)", {"space__inner__deep": "K = 2\n"}),
    "a computed name": (
        "import importlib",
        "return Outcome(importlib.import_module('mod' + str(int(self.params.x))).K)",
        {"mod1": "from behind import K\n", "behind": "K = 2\n"},
    ),
    "a computed name in a package": (
        "import importlib, zoo",
        "return Outcome(importlib.import_module(f'.animal{int(self.params.x)}', 'zoo').K)",
        {"zoo____init__": "", "zoo__animal1": "K = 2\n"},
    ),
    "a folder that the job puts on the path": (
        "import os, sys\nsys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))\nfrom helper import K",
        "return Outcome(K)",
        {"helper": "K = 2\n"},
    ),
    "the job's own file by its name": (
        "import back",
        "return Outcome(back.twice())",
        {"back": "def twice():\n    import own\n    return own.P().x * 2\n"},
    ),
}


@pytest.mark.parametrize("member", MEMBERS)
def test_a_worker_runs_the_code_that_was_submitted_although_all_of_it_was_edited(home, tmp_path, member):
    first, body, files = MEMBERS[member]
    job(home, first, body, **files)
    run = made(home)
    found = {one.found for one in code_of(run[0].target).modules.values()}
    assert ImportKind.imported not in found, "what is found before it is imported is compared by a resume"
    edit_all(home)
    elsewhere = tmp_path / "elsewhere"
    write(
        elsewhere,
        **{name: "K = 1\n" for name in ("helper", "other", "late", "mod1", "behind", "back")},
        numpy="raise SystemExit(3)\n",
    )
    loss, used = ran(run, cwd=elsewhere)
    assert loss == 2, used
    assert ("mod1" in used) == (member == "a computed name"), "what was imported by a computed name is compared by a resume"


def test_neither_the_working_directory_nor_the_folder_of_the_command_gives_a_job_its_modules(home, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere, helper="K = 1\n", stranger="K = 1\n")
    job(
        home,
        "from helper import K\ntry:\n    import stranger\nexcept ModuleNotFoundError as e:\n    raise ValueError(str(e))",
        "return Outcome(helper.K)",
        helper="K = 2\n",
    )
    code = "import sys; from pathlib import Path; from qdrun.runner.study.target import load, resolve"
    code += "\nload(resolve('own.py:J', Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", code, str(home)], cwd=elsewhere, capture_output=True, text=True, check=False)
    assert (
        f"No module named 'stranger': {elsewhere}/stranger.py lies in the working directory, from which jobs import nothing"
        in done.stderr
    )
    assert f"do: put it beside the job, or its folder into PYTHONPATH ({elsewhere}), or install it" in done.stderr


def test_a_package_above_the_folder_of_the_job_is_named_with_the_folder_for_pythonpath(tmp_path):
    """The package that holds the job's file, one beside that package, and a module; the command is given elsewhere."""
    whole, elsewhere = tmp_path / "whole", tmp_path / "elsewhere"
    write(whole, pkg__sub="K = 2\n", other__sub="K = 3\n", third="K = 4\n")
    elsewhere.mkdir()
    code = "import sys; from pathlib import Path; from qdrun.runner.study.target import load, resolve"
    code += "\nload(resolve('own.py:J', Path(sys.argv[1])))\nprint('loaded')"

    def loading(env):
        command = [sys.executable, "-c", code, str(whole / "pkg")]
        return subprocess.run(command, cwd=elsewhere, env=env, capture_output=True, text=True, check=False)

    for name, path in {"pkg": "pkg", "other": "other", "third": "third.py"}.items():
        job(whole / "pkg", f"import {name}", "return Outcome(1.0)")
        done = loading(os.environ)
        said = f"No module named '{name}': {whole}/{path} lies above the job's folder, from which jobs import nothing"
        assert said in done.stderr and f"its folder into PYTHONPATH ({whole})" in done.stderr, done.stderr
        assert loading({**os.environ, "PYTHONPATH": str(whole)}).stdout == "loaded\n", "the remedy works"


def test_a_folder_on_pythonpath_and_an_editable_package_are_kept_too(home, tmp_path, monkeypatch):
    lib, package = tmp_path / "lib", tmp_path / "src"
    write(lib, onpath="K = 2\n")
    write(package, editable____init__="from . import part\n", editable__part="K = 3\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(lib), str(package)])
    job(
        home,
        "import onpath\ndef later():\n    import editable.part\n    return editable.part.K",
        "return Outcome(onpath.K * later())",
    )
    run = made(home)
    edit_all(lib)
    edit_all(package)
    assert ran(run, PYTHONPATH=f"{lib}{os.pathsep}{package}")[0] == 6
    assert ran(run)[0] == 6, "on a machine that has neither"


def test_a_module_that_the_run_does_not_keep_is_refused_by_name(home):
    job(
        home,
        "",
        "import sys; sys.path.insert(0, NEW); return Outcome(__import__('ne' + 'wer').K)".replace("NEW", repr(str(home))),
    )
    run = made(home)
    write(home, newer="K = 2\n")
    said, _ = ran(run)
    assert said.startswith(
        f"ImportError: the run keeps no copy of {home}/newer.py, so `import newer` could find another version"
    )
    assert "do: name it in an import statement of the job (`import newer`" in said


def test_a_linked_helper_keeps_what_the_link_led_to(home, tmp_path):
    write(tmp_path / "shared", helper="K = 2\n")
    job(home, "from helper import K", "return Outcome(K)")
    (home / "helper.py").symlink_to(tmp_path / "shared" / "helper.py")
    run = made(home)
    edit_all(tmp_path / "shared")
    assert ran(run)[0] == 2


def test_errors_name_the_users_own_files_and_show_the_lines_that_ran(home):
    job(home, "import helper", "return helper.fails()", helper="def fails():\n    raise KeyError('the line that ran')\n")
    run = made(home)
    (home / "helper.py").write_text("# edited\n" * 5)
    said, files = ran(run)
    assert said == "KeyError: 'the line that ran'" and files[-2:] == [f"{home}/own.py", f"{home}/helper.py"]


def test_files_beside_a_module_are_found_where_they_are(home):
    job(
        home,
        "from pathlib import Path\nimport helper",
        "return Outcome(float((Path(__file__).parent / 'k.txt').read_text()) * helper.K)",
        helper="from pathlib import Path\nK = float((Path(__file__).with_name('k.txt')).read_text())\n",
    )
    (home / "k.txt").write_text("3")
    assert ran(made(home))[0] == 9


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_processes_that_a_job_starts_import_the_same_code(home, how):
    mapped = "sum(pool.map(twice, [1])) + sum(pool.map(helper.thrice, [1]))"
    body = f"with Pool(1, mp_context=get_context('{how}')) as pool: return Outcome({mapped})"
    first = "from concurrent.futures import ProcessPoolExecutor as Pool\nfrom multiprocessing import get_context\nimport helper"
    first += "\ndef twice(x): return 2 * x"
    job(home, first, body, helper="def thrice(x): return 3 * x\n")
    run = made(home)
    edit_all(home)
    assert ran(run)[0] == 5


def test_a_compiled_module_beside_the_job_is_kept(home, tmp_path):
    include, suffix = sysconfig.get_path("include"), sysconfig.get_config_var("EXT_SUFFIX")
    source = tmp_path / "fast.c"
    source.write_text(
        '#include <Python.h>\nstatic struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "fast", 0, -1, 0};\n'
        'PyMODINIT_FUNC PyInit_fast(void) { PyObject *m = PyModule_Create(&d); PyModule_AddIntConstant(m, "K", 2); return m; }\n'
    )
    built = home / f"fast{suffix}"
    done = subprocess.run(
        ["cc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(built)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("no C compiler, or no headers of Python")
    job(home, "import fast", "return Outcome(fast.K)")
    run = made(home)
    built.unlink()
    assert ran(run)[0] == 2


def test_a_file_beside_the_job_with_the_name_of_an_installed_package_is_named_and_not_imported(home):
    job(
        home,
        "import numpy, json",
        "return Outcome(float(numpy.float64(2)))",
        numpy="raise SystemExit\n",
        json="raise SystemExit\n",
    )
    prepared, run = made(home)
    assert ran((prepared, run))[0] == 2
    notes = "\n".join(notes_of(prepared.target))
    for name in ("numpy", "json"):
        assert f"not {home}/{name}.py beside the job" in notes and f"`import {name}` finds the installed " in notes


def test_two_jobs_of_one_process_have_helpers_of_one_name(home, tmp_path):
    other = tmp_path / "other"
    for folder, k in ((home, 2), (other, 3)):
        job(folder, "import helper", "import helper as again; return Outcome(helper.K * again.K)", helper=f"K = {k}\n")
    targets = [resolve("own.py:J", folder) for folder in (home, other)]
    for target, loss in [*zip(targets, (4, 9), strict=True)] * 2:
        kind = load(target)
        assert kind(kind.Params()).run().loss == loss
    (home / "helper.py").write_text("K = 5\n")
    kind = load(resolve("own.py:J", home))
    assert kind(kind.Params()).run().loss == 25, "edited between two submits of one session"


@pytest.mark.parametrize("member", ["a helper", "a package without an init", "the job's own file by its name"])
def test_a_job_imports_nothing_of_a_kept_one_that_this_process_has_loaded_before(home, tmp_path, member):
    first, body, files = MEMBERS[member]
    other = tmp_path / "other"
    job(other, first, body, **{name: text.replace("2", "3") for name, text in files.items()})
    _, run = made(other)
    before = list(sys.path)
    _, kind = config_of(run, code="kept")  # as `resume` and `rerun` load it
    assert kind(kind.Params()).run().loss == 3 and len(sys.path) == len(before) + 1
    job(home, first, body, **files)
    prepared, run = made(home)
    assert ran((prepared, run))[0] == 2 and sys.path == before
    kind = load(prepared.target)
    assert kind(kind.Params()).run().loss == 2


def test_a_name_that_the_users_program_has_loaded_from_another_file_is_refused(home, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere, clashing_helper="K = 1\n")
    monkeypatch.syspath_prepend(str(elsewhere))
    __import__("clashing_helper")
    sys.path.remove(str(elsewhere))
    job(home, "from clashing_helper import K", "return Outcome(K)", clashing_helper="K = 2\n")
    with pytest.raises(
        TargetError, match=rf"imports `clashing_helper` from {home}/.*has loaded {elsewhere}/clashing_helper.py under"
    ):
        load(resolve("own.py:J", home))
    assert sys.modules.pop("clashing_helper").K == 1


def test_a_module_target_is_that_of_its_folder_and_is_kept(home, tmp_path, monkeypatch):
    job(home, "from .part import K", "return Outcome(K)", name="modpack__job", modpack____init__="", modpack__part="K = 2\n")
    monkeypatch.chdir(home)
    prepared, run = made(home, "modpack.job:J")
    edit_all(home)
    assert ran((prepared, run), cwd=tmp_path)[0] == 2 and prepared.target.import_root == str(home)


def test_the_run_folder_is_checked_before_its_code_is_imported(home):
    job(home, "from helper import K", "return Outcome(K)", helper="K = 2\n")
    prepared, run = made(home)
    Path(run.path, "source", "helper.py").write_text("K = 7\n")
    words = [sys.executable, "-P", "-c", WORKER, prepared.target.model_dump_json(), str(run.path), ""]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, check=False)
    assert "source/helper.py is not as it was written" in done.stderr and not done.stdout
