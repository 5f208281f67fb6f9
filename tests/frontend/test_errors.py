# ruff: noqa: F841
"""What kernels refuse: the class of the error, the user's line, the caret, what to do."""

import math
import pickle

import numpy as np
import pytest

from qdrun.compiler.errors import QdrunIndexError, QdrunNameError, QdrunSyntaxError, QdrunTypeError
from qdrun.compiler.frontend.library import functions as qd
from qdrun.compiler.frontend.markers import atomic_add, loop_config, static, static_assert, template

from .kernels import Field, build, func

ARRAY = np.zeros(4, np.float32)


def fails(error, fn, **args):
    """The error's text; its location is in this file and its caret has a hint below or a word above."""
    with pytest.raises(error) as caught:
        build(fn, **(args or {"x": ARRAY}))
    message = str(caught.value)
    assert f"{__file__}:" in message and "^" in message, message
    assert pickle.loads(pickle.dumps(caught.value)).what == caught.value.what
    return message


def marked(message):
    """The part of the user's line above the caret."""
    lines = message.splitlines()
    at = next(k for k, line in enumerate(lines) if line.strip() and set(line.strip()) == {"^"})
    begin = lines[at].index("^")
    return lines[at - 1][begin : begin + lines[at].count("^")]


def k_try(x):
    try:
        x[0] = 1
    finally:
        pass


def k_with(x):
    with x:
        pass


def k_lambda(x):
    f = lambda v: v
    x[0] = f(1)


def k_yield(x):
    yield x


def k_import(x):
    import math

    x[0] = math.pi


def k_del(x):
    a = 1
    del a


def k_global(x):
    global ARRAY
    ARRAY = 1


def k_def(x):
    def inner():
        pass


def k_class(x):
    class Inner:
        pass


def k_set(x):
    a = {1, 2}


def k_raise(x):
    raise ValueError


def k_match(x):
    match 1:
        case 1:
            pass


@pytest.mark.parametrize(
    "fn, word",
    [
        (k_try, "try"),
        (k_with, "with"),
        (k_lambda, "lambda"),
        (k_yield, "yield"),
        (k_import, "import"),
        (k_del, "del"),
        (k_global, "global"),
        (k_def, "nested `def`"),
        (k_class, "class"),
        (k_set, "set"),
        (k_raise, "raise"),
        (k_match, "match"),
    ],
)
def test_python_that_kernels_do_not_have_is_refused_by_name(fn, word):
    message = fails(QdrunSyntaxError, fn)
    assert word in message.splitlines()[0] and "do: " in message


def test_is_and_in_are_refused_at_run_time():
    def k_is(x):
        for i in range(4):
            if x is None:
                x[i] = 1

    def k_in(x):
        for i in range(4):
            if i in (1, 2):
                x[i] = 1

    assert "`is`" in fails(QdrunSyntaxError, k_is) and "`in`" in fails(QdrunSyntaxError, k_in)


def test_else_of_a_loop_is_refused():
    def k_for(x):
        for i in range(4):
            x[i] = 1
        else:  # noqa: PLW0120
            x[0] = 2

    def k_while(x):
        while x[0] > 1:
            x[0] -= 1
        else:  # noqa: PLW0120
            x[0] = 2

    assert "else" in fails(QdrunSyntaxError, k_for) and "else" in fails(QdrunSyntaxError, k_while)


def test_star_arguments_of_functions_that_read_their_arguments_trees_are_refused():
    def kernel(x):
        static_assert(*(True, "said"))
        x[0] = 1

    assert "`*`" in fails(QdrunSyntaxError, kernel)


def test_break_of_a_parallel_loop_is_refused():
    def kernel(x):
        for i in range(4):
            if x[i] > 0:
                break

    message = fails(QdrunSyntaxError, kernel)
    assert "parallel" in message and "serialize" in message and marked(message) == "break"


def test_break_of_an_unrolled_loop_of_parallel_loops_under_a_run_time_condition_is_refused():
    def kernel(x):
        for k in static(range(3)):
            for i in range(4):
                x[i] += 1
            if x[0] > k:
                break

    assert "unrolled" in fails(QdrunSyntaxError, kernel)


def test_a_variable_ends_with_its_block():
    def kernel(x):
        for i in range(4):
            if x[i] > 0:
                a = 1.0
            x[i] = a

    message = fails(QdrunNameError, kernel)
    assert marked(message) == "a" and "if" in message


def test_an_unknown_name_is_named():
    def kernel(x):
        x[0] = unknown_thing  # noqa: F821

    assert marked(fails(QdrunNameError, kernel)) == "unknown_thing"


def test_an_annotation_of_a_variable_that_names_nothing():
    def kernel(x):
        a: unknown_kind = x[0]  # noqa: F821
        x[1] = a

    message = fails(QdrunNameError, kernel)
    assert marked(message) == "unknown_kind"
    assert (
        "do: import or define it in the module: Python 3.14 keeps no name of an enclosing function for annotations of var"
        in message
    )


def test_arguments_and_indices_of_unrolled_loops_are_read_only():
    def k_scalar(x, n):
        n = 3
        x[0] = n

    def k_augment(x, n):
        n += 1

    def k_index(x):
        for i in static(range(4)):
            i = 2
            x[i] = 1

    assert "argument" in fails(QdrunTypeError, k_scalar, x=ARRAY, n=2)
    assert "argument" in fails(QdrunTypeError, k_augment, x=ARRAY, n=2)
    assert "index of a loop" in fails(QdrunTypeError, k_index)


def test_the_number_of_indices_is_checked_at_the_subscript():
    def kernel(x):
        for i in range(4):
            x[i] = x[i, 0] + 1

    assert marked(fails(QdrunIndexError, kernel)) == "x[i, 0]"


def test_a_constant_index_out_of_range_is_an_error_of_the_kernel():
    def kernel(f):
        f[7] = 1.0

    assert "7" in fails(QdrunIndexError, kernel, f=Field(np.zeros(4, np.float32)))


def test_a_real_index_and_an_infinite_bound_are_refused():
    def k_index(x):
        x[1.5] = 1.0

    def k_bound(x):
        for i in range(math.inf):
            x[i] = 1.0

    assert "integer" in fails(QdrunTypeError, k_index)
    assert marked(fails(QdrunTypeError, k_bound, x=ARRAY))


def test_a_field_is_not_a_number():
    def kernel(x):
        for i in range(4):
            x[i] = x + 1

    message = fails(QdrunTypeError, kernel)
    assert "x[i]" in message and marked(message) == "x + 1"


def test_recursion_is_refused():
    @func
    def loop(v):
        return loop(v) + 1

    def kernel(x):
        x[0] = loop(1.0)

    assert "calls itself" in fails(QdrunSyntaxError, kernel)


def test_an_undecorated_function_cannot_decide_on_run_time_values():
    def helper(v):
        return v if v > 0 else -v

    def kernel(x):
        x[0] = helper(x[1])

    message = fails(QdrunTypeError, kernel)
    assert "@func" in message and "runs while the kernel is compiled" in message and marked(message) == "helper(x[1])"


def test_an_error_in_an_undecorated_function_is_shown_at_the_call():
    def helper(v):
        return v.missing_member + int(v)

    def kernel(x):
        x[0] = helper(x[1])

    assert marked(fails(QdrunTypeError, kernel)) == "helper(x[1])"


def test_a_path_without_a_return_is_refused():
    @func
    def sometimes(v):
        if v > 0:
            return 1.0

    def kernel(x):
        x[0] = sometimes(x[1])

    assert "without returning" in fails(QdrunSyntaxError, kernel)


def test_wrong_arguments_of_a_function_are_named():
    @func
    def two(a, b):
        return a + b

    def k_missing(x):
        x[0] = two(1)

    def k_extra(x):
        x[0] = two(1, 2, 3)

    def k_keyword(x):
        x[0] = two(1, c=2)

    assert "`b`" in fails(QdrunTypeError, k_missing)
    assert "2 arguments" in fails(QdrunTypeError, k_extra)
    assert "`c`" in fails(QdrunTypeError, k_keyword)


def test_return_inside_a_parallel_loop_of_the_kernel_is_refused():
    def k_loop(x):
        for i in range(4):
            return x[i]

    message = fails(QdrunSyntaxError, k_loop)
    assert "`return` of a kernel cannot stand inside a parallel loop" in message
    assert "run the loop in order: qd.loop_config(serialize=True)" in message


def test_returns_of_a_kernel_that_do_not_fit_each_other_are_refused():
    def k_types(x, n):
        if n > 0:
            return 1
        return x[0]

    def k_numbers(x, n):
        if n > 0:
            return 1, 2
        return 1

    assert "returns i32 here and f32 there" in fails(QdrunTypeError, k_types, x=ARRAY, n=2)
    assert "returns 1 numbers here and 2 there" in fails(QdrunTypeError, k_numbers, x=ARRAY, n=2)


def test_static_needs_a_compile_time_value():
    def kernel(x, n):
        for i in static(range(n)):
            x[i] = 1

    assert "compile time" in fails(QdrunTypeError, kernel, x=ARRAY, n=3)


def test_static_assert_stops_the_compilation():
    def kernel(x, n):
        static_assert(n == 2, "n must be 2")

    from qdrun.compiler.frontend.signature import TemplateArg

    assert "n must be 2" in fails(QdrunTypeError, kernel, x=ARRAY, n=TemplateArg(3))


def test_atomics_need_a_place():
    def kernel(x):
        atomic_add(1.0, 2.0)

    assert "atomic_add" in fails(QdrunTypeError, kernel)


def test_a_reference_to_a_value_cannot_be_written():
    @func
    def bump(a: template()):
        a += 1

    def kernel(x):
        for i in range(4):
            bump(i)

    fails(QdrunTypeError, kernel)


def test_unpacking_counts():
    def kernel(x):
        a, b = 1, 2, 3

    assert "cannot unpack 3 values into 2 names" in fails(QdrunTypeError, kernel)


def test_a_python_tuple_has_no_run_time_index():
    def kernel(x):
        for i in range(3):
            x[i] = (1, 2, 3)[i]

    assert "static" in fails(QdrunTypeError, kernel)


def test_errors_of_operators_mark_the_expression():
    def kernel(x):
        for i in range(3):
            x[i] = 1 + (x[i] & 3)

    assert marked(fails(QdrunTypeError, kernel)) == "x[i] & 3"


def test_wrong_settings_of_a_loop_are_named():
    def kernel(x):
        loop_config(fast=True)
        for i in range(3):
            x[i] = 1

    assert "unexpected keyword argument 'fast'" in fails(QdrunTypeError, kernel)


def test_an_error_in_an_inlined_function_shows_the_functions_line():
    @func
    def bad(v):
        return v & 1.5

    def kernel(x):
        x[0] = bad(x[1])

    assert marked(fails(QdrunTypeError, kernel)) == "v & 1.5"


def test_what_python_raises_at_compile_time_is_an_error_of_the_line():
    def kernel(x):
        x[0] = 1 // 0

    assert "ZeroDivisionError" in fails(QdrunTypeError, kernel)


def test_wrong_arguments_of_an_intrinsic_are_errors_of_the_line():
    def kernel(x):
        x[0] = qd.sin(1.0, 2.0)

    assert "sin" in fails(QdrunTypeError, kernel)


def test_a_comment_or_a_text_with_wide_letters_does_not_move_the_caret():
    def kernel(x):
        äöü = 1.0; x[0] = äöü & 3.0  # fmt: skip  # noqa: E702

    assert marked(fails(QdrunTypeError, kernel)) == "äöü & 3.0"


def test_a_value_and_a_vector_do_not_share_a_variable():
    def kernel(x, f):
        for i in range(3):
            a = x[i]
            a = f[i]

    assert "`a`" in fails(QdrunTypeError, kernel, x=ARRAY, f=Field(np.zeros((4, 2), np.float32), (2,)))
