"""Reading functions: their lines, their columns, what their free names mean."""

import ast
import functools
import importlib.util
import os
import sys

import pytest

from qdrun.compiler.errors import QdrunNameError, QdrunSyntaxError
from qdrun.compiler.frontend.source.parse import read_function


def decorated(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)

    return wrapper


def here(source, name):
    """The location of the name's first use."""
    node = next(n for n in ast.walk(source.tree) if isinstance(n, ast.Name) and n.id == name)
    return source.loc(node, "k")


def line_of(word):
    with open(__file__) as f:
        return next(k for k, text in enumerate(f, 1) if word in text and "line_of" not in text)


def test_a_location_is_the_users_own_line_and_columns():
    def plain(x):
        y = x  # marker one
        return y

    loc = here(read_function(plain), "x")
    assert (loc.file, loc.line, loc.kernel) == (__file__, line_of("marker one"), "k")
    assert loc.text[loc.col : loc.end] == "x"


def test_decorators_and_methods_do_not_move_it():
    class Holder:
        @decorated
        @decorated
        def method(self, value):
            """A text
            with less indentation than the code."""
            return value + self  # marker two

    loc = here(read_function(Holder.method), "value")
    assert loc.line == line_of("marker two") and loc.text[loc.col : loc.end] == "value"
    assert read_function(Holder().method).name == "method"


def test_a_node_over_several_lines_is_marked_to_the_end_of_its_first():
    def kernel(a, b):
        return (a +  # marker three
                b)  # fmt: skip

    source = read_function(kernel)
    node = next(n for n in ast.walk(source.tree) if isinstance(n, ast.BinOp))
    loc = source.loc(node)
    assert loc.line == line_of("marker three") and loc.end == len(loc.text)


def test_names_are_found_in_closure_module_and_builtins():
    inner = 5

    def kernel():
        return inner

    source = read_function(kernel)
    assert (source.lookup("inner"), source.lookup("functools"), source.lookup("len")) == (5, functools, len)
    with pytest.raises(QdrunNameError, match="nothing_at_all"):
        source.lookup("nothing_at_all")


def test_a_name_of_the_enclosing_function_that_only_annotations_use_is_found():
    kind = int

    def f(x: kind):
        y: kind = x
        return y

    source = read_function(f)
    assert source.annotation("x") is int and source.lookup("kind") is int


def test_an_empty_closure_cell_is_named():
    def kernel():
        return late

    with pytest.raises(QdrunNameError, match="no value yet"):
        read_function(kernel).lookup("late")
    late = 1


def test_annotations_may_be_strings():
    unit = float

    def kernel(a: "unit", b: int, c):
        return unit

    source = read_function(kernel)
    assert [source.annotation(n) for n in "abc"] == [float, int, None]


@pytest.mark.parametrize("thing", [lambda x: x, len, 3, eval("lambda: 0")])
def test_what_is_not_a_def_is_refused(thing):
    with pytest.raises(QdrunSyntaxError):
        read_function(thing)


def test_a_function_without_source_is_refused():
    scope = {}
    exec("def f(): pass", scope)
    with pytest.raises(QdrunSyntaxError, match="source"):
        read_function(scope["f"])


MODULE = """

def outer(by):
    def kernel(x):
        return x + 1.0 * by

    return kernel


def other(x):
    return x
"""


def loaded(path, text, name="edited_module"):
    path.write_text(text)
    return reloaded(path, name)


def reloaded(path, name="edited_module"):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def body(function):
    return ast.unparse(read_function(function).tree.body[-1])


@pytest.mark.parametrize(
    "edited",
    [MODULE.replace("1.0", "9.0"), "import os\n\n" + MODULE, MODULE.replace("kernel(x)", "kernel(y)"), "def broken(", ""],
    ids=["a number", "lines above", "a name", "no Python", "nothing"],
)
def test_a_file_that_is_edited_while_its_kernels_are_made_changes_nothing(tmp_path, edited):
    """A job's kernels are made in each trial: the later ones would run with what somebody has saved meanwhile."""
    path = tmp_path / "edited.py"
    module = loaded(path, MODULE)
    assert body(module.outer(2)) == "return x + 1.0 * by"
    path.write_text(edited)
    source = read_function(module.outer(3))
    assert ast.unparse(source.tree.body[0]) == "return x + 1.0 * by" and source.first == 4
    assert here(source, "x").text == "        return x + 1.0 * by"
    assert body(module.other) == "return x"


def test_a_module_that_is_loaded_again_has_its_new_lines(tmp_path):
    path = tmp_path / "edited.py"
    first = loaded(path, MODULE)
    assert body(first.outer(2)) == "return x + 1.0 * by"
    second = loaded(path, MODULE.replace("1.0", "19.0"))
    assert body(second.outer(2)) == "return x + 19.0 * by"
    assert body(first.outer(2)) == "return x + 1.0 * by"


def test_a_module_that_is_written_and_loaded_again_within_one_tick_of_the_clock_has_its_new_lines(tmp_path, monkeypatch):
    """``linecache`` tells texts of a file apart by their length and time only."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "edited.py"
    path.touch()
    tick = path.stat().st_mtime_ns
    for number in ("1.0", "2.0", "3.0"):
        path.write_text(MODULE.replace("1.0", number))
        os.utime(path, ns=(tick, tick))
        assert body(reloaded(path).outer(2)) == f"return x + {number} * by"


@pytest.mark.parametrize("edited", [MODULE.replace("1.0", "19.0"), MODULE.replace("1.0", "19.0") + "def broken("])
def test_a_file_that_was_edited_before_its_first_kernel_is_refused(tmp_path, edited):
    path = tmp_path / "edited.py"
    module = loaded(path, MODULE)
    path.write_text(edited)
    with pytest.raises(QdrunSyntaxError) as caught:
        read_function(module.outer(1))
    assert f"the source of `kernel` in {path} was edited after it was loaded" in str(caught.value)
    assert "do: start again" in str(caught.value)
    if "broken" not in edited:
        assert body(module.other) == "return x"


def test_code_that_is_not_what_python_makes_of_its_file_is_read_as_it_stands():
    """Here: pytest has rewritten the assertion."""

    def asserts(x):
        assert x > 0
        return x

    assert body(asserts) == "return x"
    assert read_function(asserts).first == line_of("def asserts")
