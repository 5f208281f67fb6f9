"""The pages run: every snippet of README.md and docs/*.md, every link, every table made from the code.

What the word after ``` means:

- ``python``: executed, all blocks of a page in order in one namespace, in a folder of their own. A ``text`` block right after it
  is what it prints.
- ``python torch``: as ``python``, where torch is installed; ``python vulkan``: where llvmpipe is; ``python metal``: where clang is.
- ``python error``: executed, and must raise; the ``text`` block right after it is the message. ``...`` in it stands for anything.
- ``python file=name``, ``yaml file=name``: appended to that file in the page's folder. A YAML file must plan.
- ``sh``: lines that start with ``qdrun`` are run in the page's folder, in this process, which has a Ray open. Those of README.md, and of a
  page with ``--detach``, are processes with a Ray of their own. Those that need a run are slow. So are lines that start with ``python`` and
  name a file that the page writes; they are processes, too.
"""

import contextlib
import functools
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qdrun.compiler.runtime.registry import devices
from qdrun.runner.cli.app import app
from qdrun.runner.ray_adapter.standing import standing
from qdrun.tests.devices.metal.executor import NAMES

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "internals").glob("*.md")),
]
ALL_PAGES = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
STARTS = ("submit", "search")
NEEDS_A_RUN = (*STARTS, "results", "status", "cancel", "watch", "logs", "resume", "report", "python")

# Runs the blocks of a page: reads [[kind, code], ...] and prints [[stdout, message of the error], ...].
DRIVER = r"""
import contextlib, io, json, os, re, sys, traceback
from qdrun.tests import kept_code
kept_code.keep(one_in=4)
sys.path.insert(0, os.getcwd())
names, out = {"__name__": "page"}, []
for number, (kind, code) in enumerate(json.load(open("blocks.json"))):
    path = os.path.join(os.getcwd(), f"snippet{number}.py")
    open(path, "w").write(code)
    stream, message = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(stream):
            exec(compile(code, path, "exec"), names)
    except Exception as error:
        if kind != "error":
            raise
        message = str(error)
    out.append([stream.getvalue(), message])
text = json.dumps(out).replace(os.getcwd() + "/", "")
print("RESULT" + re.sub(r"snippet\d+\.py", "snippet.py", text))
"""


@dataclass
class Block:
    """One fenced block: its language, the words after it, its text, and the ``text`` block right after it."""

    language: str
    words: str
    code: str
    then: str | None = None


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    text = page.read_text(encoding="utf-8")
    end = -1
    for m in re.finditer(r"^```(\w+)[ ]?([^\n]*)\n(.*?)^```\n", text, re.S | re.M):
        block = Block(m[1], m[2], m[3])
        if block.language == "text" and found and not text[end : m.start()].strip():
            found[-1].then = block.code
        found.append(block)
        end = m.end()
    return found


def write_files(page: Path, folder: Path) -> list[Path]:
    """Write the ``file=`` blocks of a page; returns the files."""
    names: dict[str, None] = {}
    for block in blocks(page):
        if block.words.startswith("file="):
            name = block.words.removeprefix("file=")
            with (folder / name).open("a", encoding="utf-8") as stream:
                stream.write(block.code + "\n")
            names.setdefault(name)
    return [folder / name for name in names]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(params=PAGES, ids=named)
def page(request) -> Path:
    return request.param


GRAMMARS = ("cuda", "amdgpu", "vulkan metal", "vulkan", "emulated")  # of docs/device-text.md


def some_slow(*names: str) -> list:
    """All pages; those that take seconds with the slow tests."""
    return [pytest.param(p, marks=pytest.mark.slow) if named(p) in names else p for p in PAGES]


def test_every_block_is_of_a_known_kind(page):
    for block in blocks(page):
        known = block.language in ("text", "python", "yaml", "sh") and re.fullmatch(
            r"|error|torch|vulkan|metal|file=\S+", block.words
        )
        known = known or (block.language == "text" and block.words in GRAMMARS)
        assert known, f"```{block.language} {block.words}"
        assert block.words != "error" or block.then, "an error without its message"


@pytest.mark.parametrize(
    "page", some_slow("docs/cuda.md", "docs/interop.md", "docs/memory.md", "docs/time-steps.md"), ids=named
)
def test_python_blocks_run_and_print_what_the_page_says(page, tmp_path):
    left_out = {"torch"} if importlib.util.find_spec("torch") is None else set()
    left_out |= set() if any("llvmpipe" in row.detail for row in devices()) else {"vulkan"}
    left_out |= set() if any(map(shutil.which, NAMES)) else {"metal"}
    python = [b for b in blocks(page) if b.language == "python" and not b.words.startswith("file=") and b.words not in left_out]
    if not python:
        pytest.skip("no Python on this page")
    write_files(page, tmp_path)
    (tmp_path / "blocks.json").write_text(json.dumps([[b.words, b.code] for b in python]), encoding="utf-8")
    command = [sys.executable, "-c", DRIVER]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.split("RESULT", 1)[1])
    for block, (printed, message) in zip(python, results, strict=True):
        if block.words == "error":
            assert message is not None, f"nothing was raised by\n{block.code}"
            assert same(message, block.then or "")
        elif block.then is not None:
            assert same(printed, block.then)


def same(said: str, shown: str) -> bool:
    """Whether a page shows what was said; ``...`` on the page stands for anything on its line."""
    if re.fullmatch(re.escape(shown.strip()).replace(r"\.\.\.", ".*"), said.strip()) is None:
        print(f"---- said\n{said}\n---- shown\n{shown}")
        return False
    return True


@pytest.mark.parametrize("page", some_slow("docs/cuda.md", "docs/running-sweeps.md"), ids=named)
def test_yaml_files_plan(page, tmp_path):
    for path in write_files(page, tmp_path):
        if path.suffix == ".yaml":
            code, said = run_qdrun(["plan", str(path), "--json"], ROOT)
            assert code == 0, said


def run_qdrun(words: list[str], folder: Path, *, apart: bool = False) -> tuple[int, str]:
    """The exit code of a command, and what it prints. ``apart``: in a process of its own."""
    if words[0] == "python":
        head = [sys.executable]
    elif apart:
        head = [sys.executable, "-c", "from qdrun.runner.cli.app import main; main()"]
    else:
        with contextlib.chdir(folder):
            done = CliRunner().invoke(app, words)
        return done.exit_code, f"{done.output}\n{done.exception!r}"
    command = [*head, *words[words[0] == "python" :]]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=280)
    return ended.returncode, ended.stdout + ended.stderr


def shell_lines(page: Path, *, with_runs: bool) -> list[list[str]]:
    """The ``qdrun`` commands of a page, as words without comments, and ``python FILE`` of the files that it writes."""
    lines = [line.split("#")[0] for b in blocks(page) if b.language == "sh" for line in b.code.splitlines()]
    written = [["python", b.words.removeprefix("file=")] for b in blocks(page) if b.words.startswith("file=")]
    commands = [shlex.split(line) for line in lines if line.split()[:1] == ["qdrun"] or line.split() in written]
    commands = [words[words[0] == "qdrun" :] for words in commands]
    return [words for words in commands if with_runs or words[0] not in NEEDS_A_RUN]


def folder_of(page: Path, tmp_path: Path) -> Path:
    """A folder with the page's files and the repository's configs."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    write_files(page, tmp_path)
    return tmp_path


def installed(words: list[str]) -> bool:
    """Whether the package that an export hands results to is here: they are extras."""
    return importlib.util.find_spec(words[words.index("--to") + 1]) is not None


def check_command(words: list[str], folder: Path, *, apart: bool = False) -> None:
    runs = sorted((folder / "runs").glob("*")) if (folder / "runs").is_dir() else []
    words = [word.replace("runs/<id>", str(runs[-1])) if runs else word for word in words]
    code, said = run_qdrun(words, folder, apart=apart)
    no_dashboard = words == ["dashboard"] and standing() is None  # no run here has one, and `qdrun up` has not been called
    wanted = 4 if no_dashboard else 2 if words[0] == "export" and not installed(words) else 0
    assert code == wanted, f"qdrun {' '.join(words)}\n{said}"


@pytest.mark.parametrize("page", some_slow("docs/cuda.md"), ids=named)
def test_commands_that_start_nothing_work(page, tmp_path):
    commands = shell_lines(page, with_runs=False)
    if any(words[0] in STARTS for words in shell_lines(page, with_runs=True)):
        pytest.skip("the next test runs them, too")
    folder = folder_of(page, tmp_path)
    for words in commands:
        check_command(words, folder)


QUICKSTART = ["submit", "configs/quickstart.yaml"]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory) -> Path:
    """The runs that `QUICKSTART` leaves, once a page has run it: several pages begin with that command."""
    return tmp_path_factory.mktemp("quickstart") / "runs"


@pytest.mark.slow
def test_commands_work_in_their_order(page, tmp_path, request, quickstart):
    commands = shell_lines(page, with_runs=True)
    if not any(words[0] in STARTS for words in commands):
        pytest.skip("no command of this page needs a run")
    folder = folder_of(page, tmp_path)
    apart = page.name == "README.md" or any("--detach" in words or words[0] == "up" for words in commands)
    request.getfixturevalue("ray_folder" if apart else "one_worker")
    for words in commands:
        shared = not apart and words[:2] == QUICKSTART and set(words[2:]) <= {"-q"} and not (folder / "runs").exists()
        if shared and quickstart.exists():
            shutil.copytree(quickstart, folder / "runs")
            continue
        check_command(words, folder, apart=apart)
        if shared:
            shutil.copytree(folder / "runs", quickstart)


@pytest.mark.parametrize("page", ALL_PAGES, ids=named)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http:", "https:", "#")):
            assert (page.parent / target.split("#")[0]).exists(), f"{named(page)} links to {target}"


SOURCES = ("compiler", "library", "runner", "jobs", "configs", "tests", "benchmarks", "docs")
# Folders of a run, and placeholders for a user's own file.
NOT_OURS = {
    *("requests/", "owners/", "inputs/", "dist/", "robots/"),
    *("file.py", "path/to/file.py", "name.py", "pendulum.py", "pendulums.py"),
}


@functools.cache
def paths_of_ours() -> frozenset[str]:
    """The files and folders of the repository by all endings of their paths: ``a/b.py`` and ``b.py``."""
    found = [ROOT / name for name in SOURCES] + [p for name in SOURCES for p in (ROOT / name).rglob("*")]
    paths = [p.relative_to(ROOT).as_posix() + "/" * p.is_dir() for p in found if "__pycache__" not in p.parts]
    return frozenset("/".join(p.split("/")[k:]) for p in paths for k in range(p.rstrip("/").count("/") + 1))


def paths_named_in(text: str, ticks: str) -> list[str]:
    """The Python files and the folders that a text names between ticks."""
    return re.findall(rf"(?<!`){ticks}([\w./-]*\w(?:\.py|/))(?::[\w:*]+)?{ticks}(?!`)", text)


@pytest.mark.parametrize("page", [p for p in ALL_PAGES if p.name != "CHANGELOG.md"], ids=named)
def test_the_files_and_folders_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    written_here = {b.words.removeprefix("file=") for b in blocks(page) if b.words.startswith("file=")}
    gone = set(paths_named_in(text, "`")) - paths_of_ours() - NOT_OURS - written_here
    assert not gone, f"{named(page)} names {sorted(gone)}"


def test_the_files_that_docstrings_and_comments_name_exist():
    sources = [p for name in ("compiler", "library", "runner", "jobs", "benchmarks") for p in (ROOT / name).rglob("*.py")]
    found = {p: {x for x in paths_named_in(p.read_text(encoding="utf-8"), "``") if x.endswith(".py")} for p in sources}
    gone = [f"{named(p)} names {x}" for p, some in found.items() for x in sorted(some - paths_of_ours() - NOT_OURS)]
    assert any(found.values()) and not gone, "\n".join(gone)


def test_a_file_or_folder_that_is_gone_is_noticed():
    assert paths_named_in("of `tape/plan.py` and `runner/run/`, as `tests/a.py::test_b`", "`") == [
        *("tape/plan.py", "runner/run/", "tests/a.py")
    ]
    assert "tape/plan.py" in paths_of_ours() and "compiler/tape/" in paths_of_ours() and "runner/run/" not in paths_of_ours()


def named_tests(text: str) -> list[tuple[str, str]]:
    """The files and names of the tests that a text names as `tests/file.py::test_name`."""
    return re.findall(r"`([\w/]+\.py)::(test_\w+)`", text)


@pytest.mark.parametrize("page", [p for p in ALL_PAGES if p.name != "CHANGELOG.md"], ids=named)
def test_the_tests_that_a_page_names_exist(page):
    found = named_tests(page.read_text(encoding="utf-8"))
    gone = [f"{f}::{name}" for f, name in found if f"def {name}(" not in (ROOT / f).read_text(encoding="utf-8")]
    assert not gone, f"{named(page)} names {gone}"


def test_every_request_about_gpus_has_tests_or_says_what_is_missing():
    page = (ROOT / "docs" / "gpu-requests.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*)$", page, re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 55))
    for number, row in rows:
        assert named_tests(row) or "missing" in row, f"row {number}"


@pytest.mark.parametrize("page", [p for p in ALL_PAGES if p.name not in ("CHANGELOG.md", "cli.md")], ids=named)
def test_a_page_has_no_line_of_prose_longer_than_120_characters(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "    "))]
    assert not long, "\n".join(long)


def test_every_page_of_docs_is_reached_from_the_readme():
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        for target in re.findall(r"\]\(([^)\s#]+\.md)", page.read_text(encoding="utf-8")):
            found = (page.parent / target).resolve()
            if found.exists() and found not in seen:
                seen.add(found)
                waiting.append(found)
    missing = {p.resolve() for p in (ROOT / "docs").rglob("*.md")} - seen
    assert not missing, missing


def tables():
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=named)
def test_tables_are_what_the_code_says(page):
    text = page.read_text(encoding="utf-8")
    assert tables().filled(text) == text, "run: python docs/tables.py"


def test_the_table_of_operations_knows_every_derivative():
    from qdrun.compiler.ir.ops import TABLE
    from qdrun.compiler.passes.reverse.derivatives import FLAT, RULES

    assert set(RULES) | FLAT <= set(TABLE) and not FLAT & set(RULES)
    page = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    for code, info in TABLE.items():
        assert not info.pure or info.arity <= 0 or f"| `{code}` |" in page, code


def test_the_page_of_configs_names_every_key_and_every_column():
    from pydantic import BaseModel

    from qdrun.runner.config.model import AXIS_FORMS, Axis, RunConfig
    from qdrun.runner.query.run_table import ERRORS, FIXED

    page = (ROOT / "docs" / "running-sweeps.md").read_text(encoding="utf-8")

    def keys(model: type[BaseModel], prefix: str) -> list[str]:
        out = []
        for name, field in model.model_fields.items():
            kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
            inner = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
            out += keys(inner, f"{prefix}{name}.") if inner and inner is not Axis else [prefix + (field.alias or name)]
        return out

    assert not [key for key in keys(RunConfig, "") if f"`{key}`" not in page]
    assert not [form for form in AXIS_FORMS if f"`{{{form}: " not in page]
    assert not [name for name in (*FIXED, *ERRORS) if f"`{name}`" not in page]


def test_the_page_of_errors_draws_the_tree_of_the_code():
    from qdrun.compiler import errors

    tree = [line.strip() for line in (errors.__doc__ or "").splitlines() if "──" in line]
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert tree and not [line for line in tree if line not in page]


def commands_of_readme() -> list[str]:
    """The two set-up commands: the first ``sh`` blocks, their continued lines joined."""
    first, second = [b.code for b in blocks(ROOT / "README.md") if b.language == "sh"][:2]
    return [re.sub(r"\s*\\\n\s*", " ", text).strip() for text in (first, second)]


def test_ci_runs_the_commands_of_the_readme():
    script = re.sub(r"\s*\\\n\s*", " ", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    setup, test = commands_of_readme()
    assert "\n" not in setup and "\n" not in test, "each is one command"
    assert f"\n{setup}\n" in script and f"\n{test}\n" in script
    assert "submit configs/quickstart.yaml" in setup and "pytest" in test


def test_the_plan_of_the_tutorial_is_what_the_command_says():
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    shown = re.findall(r"^    (.*)$", text[text.index("    memory of one trial") :].split("\n\n")[0], re.M)
    code, said = run_qdrun(["plan", str(ROOT / "configs" / "quickstart.yaml")], ROOT)
    assert code == 0 and len(shown) >= 6 and "\n".join(shown) in said
