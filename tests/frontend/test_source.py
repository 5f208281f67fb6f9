"""Reading functions: their lines, their columns, what their free names mean."""

import ast
import functools

import pytest

from qdrun.compiler.errors import QdrunNameError, QdrunSyntaxError
from qdrun.compiler.frontend.source import read_function


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
