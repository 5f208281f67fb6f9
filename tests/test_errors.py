"""One tree of errors, drawn at the head of ``compiler/errors.py``; the peer's names; every error crosses a process as it is."""

import ast
import copy
import importlib
import inspect
import pickle
import re

import pytest

import qdrun as qd
from qdrun.compiler import errors
from qdrun.compiler.ir.nodes import Loc
from qdrun.compiler.passes.dependence.access import LostValueError
from qdrun.runner.config.yaml_lines import ConfigError, ConfigProblem
from qdrun.tests.sources import ROOT, statements

LOC = Loc("file.py", 7, 4, 9, "    x[i] = a\n", "k")
PEER = (
    "QuadrantsCompilationError QuadrantsSyntaxError QuadrantsTypeError QuadrantsNameError QuadrantsIndexError QuadrantsRuntimeError"
    " QuadrantsRuntimeTypeError QuadrantsAssertionError"
).split()


def tree(cls: type) -> list[type]:
    """A class and everything below it."""
    return [cls, *(c for below in cls.__subclasses__() for c in tree(below))]


def every_error() -> list[type]:
    """All classes of errors, those of the runner and of the interpreter included, and the warning."""
    for path in sorted((ROOT / "compiler").rglob("*.py")) + sorted((ROOT / "runner").glob("*.py")):
        if re.search(
            r"^class \w+\(.*(Error|OutOfMemory|Overflow|NothingToDifferentiate)\b.*\):", path.read_text("utf-8"), re.M
        ):
            importlib.import_module("qdrun." + ".".join(path.relative_to(ROOT).with_suffix("").parts))
    return [c for c in dict.fromkeys(tree(errors.QdrunError)) if c.__module__.startswith("qdrun.")] + [errors.GradientWarning]


def example(cls: type) -> BaseException:
    """An error with everything that its constructor takes."""
    if cls is LostValueError:
        return LostValueError("place", "what", LOC, "do this")
    if issubclass(cls, errors.QdrunCompilationError):
        return cls("what", LOC, "do this")
    if cls is ConfigError:
        return ConfigError("run.yaml", "a: 1\n", [ConfigProblem("what", 1, 0, "a", ("x",), "hint")])
    if cls is errors.TrialsFailed:
        return errors.TrialsFailed(3, {1: errors.QdrunRuntimeError("what")})
    parameters = [p for p in inspect.signature(cls.__init__).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    if "__init__" not in vars(cls) or not parameters:
        return cls("what\n  do: this")
    return cls(*("text" for p in parameters if p.default is p.empty))


@pytest.mark.parametrize("cls", every_error(), ids=lambda c: c.__name__)
def test_every_error_pickles(cls):
    try:
        error = example(cls)
    except TypeError:
        pytest.fail(f"{cls.__name__}: extend `example` with what it takes")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls and str(again) == str(error) and again.args == error.args
        assert {k: str(v) for k, v in vars(again).items()} == {k: str(v) for k, v in vars(error).items()}


def test_the_drawing_is_the_tree():
    drawn: dict[str, str] = {}
    parents: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ((?:│   |    )*)(?:├── |└── )(\w+)", line)
        if found:
            depth = len(found[1]) // 4
            parents[depth + 1 :] = [found[2]]
            drawn[found[2]] = parents[depth]
        elif line.strip() == "QdrunError":
            parents = ["QdrunError"]
    own = [c for c in tree(errors.QdrunError) if c.__module__ == errors.__name__ and c is not errors.QdrunError]
    assert drawn == {c.__name__: c.__bases__[0].__name__ for c in own}
    for cls in own:
        python = [b.__name__ for b in cls.__bases__[1:]]
        line = next(x for x in (errors.__doc__ or "").splitlines() if f"── {cls.__name__} " in x)
        assert not python or f"({python[0]})" in line


def test_the_peers_names_are_ours():
    for name in PEER:
        assert getattr(qd, name) is getattr(errors, name) is getattr(errors, name.replace("Quadrants", "Qdrun"))
    assert issubclass(qd.QuadrantsRuntimeTypeError, (RuntimeError, TypeError)) and issubclass(
        qd.QuadrantsAssertionError, RuntimeError
    )


def test_the_package_offers_every_error():
    for cls in tree(errors.QdrunError):
        if cls.__module__ == errors.__name__:
            assert getattr(qd, cls.__name__) is cls
    assert qd.GradientWarning is errors.GradientWarning


def test_errors_are_raised_with_a_class_of_ours():
    """No bare RuntimeError or TypeError leaves the kernel language for something that a user did."""
    allowed = {
        "KeyError",
        "NotImplementedError",
        "AttributeError",
        "StopIteration",
        "AssertionError",
        "BufferError",
        "SystemExit",
    }
    wrong = []
    for path in sorted((ROOT / "compiler" / "lang").glob("*.py")):
        for node in statements(path):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                name = node.exc.func.id
                if name.endswith("Error") and name not in allowed and not hasattr(errors, name):
                    wrong.append(f"{path.name}:{node.lineno} {name}")
    assert not wrong
