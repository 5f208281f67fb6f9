"""What is read from a disk or a network is data: nothing of ours unpickles, evaluates or runs it."""

import ast
import functools
from pathlib import Path

from qdrun.tests.sources import PACKAGE, ROOT, files, tree

FILES = [ROOT / "__init__.py", *files(*PACKAGE)]

MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
CALLS = {
    *("Unpickler", "read_pickle", "unsafe_load", "full_load", "unsafe_load_all", "full_load_all", "UnsafeLoader", "FullLoader"),
    *("eval", "exec", "__reduce_ex__", "__setstate__"),
}
LOADERS = {"load", "loads", "load_all"}  # of modules that have another function for data alone
LOADING = {"np", "numpy", "yaml", "torch"}

REASONS = {
    "compiler/runtime/python/device.py: exec": "runs the Python that the interpreter generates from a kernel of this process",
    "compiler/program/memory/quick_checks.py: exec": "runs the Python that a tape writes for a kernel's stores",
    "runner/ray_adapter/worker_actor.py: pickle": "the specification of this run's driver, through Ray, which pickles all arguments",
    "runner/ray_adapter/worker_pool.py: pickle": "writes that specification, and reads nothing",
    "compiler/frontend/source/parse.py: eval": "an annotation of the user's own kernel, in its module",
    "compiler/lang/data/member_annotations.py: eval": "an annotation of the user's own dataclass or function, in its module",
    "compiler/lang/launches/scopes.py: eval": "a condition in qd.static(..) of the user's own kernel",
}
"""What may run code, and why that is no code of a file of ours."""


def uses(path: Path):
    """Names that load or run code, as ``file: name``."""
    where = path.relative_to(ROOT).as_posix()
    for node in ast.walk(tree(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [part for a in node.names for part in a.name.split(".") if part in MODULES]
        elif isinstance(node, ast.ImportFrom):
            parts = {*(node.module or "").split("."), *(a.name for a in node.names)}
            names = [*(parts & MODULES), *(parts & (CALLS - {"eval", "exec"}))]
        elif isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in MODULES or (node.attr in CALLS and node.attr not in ("eval", "exec")):
                names = [node.attr]
            elif node.attr in LOADERS and of in LOADING:
                names = [f"{of}.{node.attr}"]
        elif isinstance(node, ast.Name) and node.id in CALLS:
            names = [node.id]
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            names = [] if isinstance(node.value, ast.Constant) and node.value.value is False else ["allow_pickle"]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "__import__":
            names = ["__import__"]
        yield from (f"{where}: {name}" for name in names)


@functools.cache
def found():
    return frozenset(use for path in FILES for use in uses(path))


def test_nothing_of_ours_unpickles_or_runs_what_it_reads():
    assert found() - set(REASONS) == frozenset()


def test_every_exception_is_still_one():
    assert set(REASONS) - found() == set()


def test_the_search_finds_what_it_looks_for(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "x.py"
    for line in (
        "import pickle",
        "from pickle import loads",
        "import ray.cloudpickle",
        "from ray import cloudpickle",
        "x = ray.cloudpickle.loads(b'')",
        "np.load(f)",
        "numpy.loads(f)",
        "load(f, allow_pickle=True)",
        "yaml.load(f, Loader=yaml.FullLoader)",
        "pandas.read_pickle(f)",
        "eval(text)",
        "exec(text)",
        "__import__('pickle')",
    ):
        path.write_text(line)
        assert list(uses(path)), line
    path.write_text("import json\njson.loads(text)\nnp.load(f, allow_pickle=False).eval()".replace("np.load", "load"))
    assert not list(uses(path))
