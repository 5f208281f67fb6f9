from hypothesis import given, settings
from irgen import Program, programs
from irtools import axis, f, field, kernel, ndarray

from qdrun.compiler.ir.builder import const_i32
from qdrun.compiler.ir.nodes import Axis, Buffer, Op, Place
from qdrun.compiler.ir.types import f32, i8, i32, i64
from qdrun.compiler.ir.walk import place_of, walk
from qdrun.compiler.passes.clone import clone_kernel
from qdrun.compiler.passes.parallel.injective import race_free
from qdrun.compiler.passes.simplify.simplify import simplify
from qdrun.compiler.runtime.python.interpret import InterpreterError, Memory, run_kernel

x, m = field("x"), field("m", (8, 8))


def free(build, *axes):
    """How many atomics of a kernel are race-free, of how many."""
    task = kernel(build, *(axes or (axis(),))).tasks[0]
    atomics = [s for s in walk(task.body) if isinstance(s, Op) and s.op == "atomic"]
    found = race_free(task)
    assert found <= set(atomics)
    return len(found), len(atomics)


def add(b, place, *index):
    return b.atomic("add", place, index, f(1.0))


def test_the_bare_axis_index_is_one_to_one():
    assert free(lambda b, i: add(b, x, i)) == (1, 1)
    assert free(lambda b, i: (add(b, x, i), b.gload(x, (i,)), b.gstore(x, (i,), f(0.0)))) == (1, 1)


def test_a_computed_index_is_not():
    n = field("n", dtype=i32)
    assert free(lambda b, i: add(b, x, b.gload(n, (i,)))) == (0, 1)
    assert free(lambda b, i: add(b, x, b.op("mod", i, const_i32(4)))) == (0, 1)
    assert free(lambda b, i: add(b, x, const_i32(0))) == (0, 1)


def test_any_other_access_to_the_place_spoils_it():
    assert free(lambda b, i: (add(b, x, i), b.gload(x, (const_i32(0),)))) == (0, 1)
    assert free(lambda b, i: (add(b, x, i), add(b, x, b.op("add", i, const_i32(1))))) == (0, 2)
    assert free(lambda b, i: (add(b, x, i), b.gload(field("y"), (const_i32(0),)))) == (1, 1)


def test_the_same_shift_everywhere_is_one_to_one():
    def shifted(b, i):
        add(b, x, b.op("add", i, const_i32(1)))
        b.gload(x, (b.op("add", i, const_i32(1)),))

    assert free(shifted) == (1, 1)


def test_a_widening_cast_is_one_to_one_and_a_narrowing_one_is_not():
    assert free(lambda b, i: add(b, x, b.cast(i, i64))) == (1, 1)
    assert free(lambda b, i: (add(b, x, b.cast(i, i64)), add(b, x, i))) == (2, 2)
    assert free(lambda b, i: add(b, x, b.cast(i, i8)), axis(300)) == (0, 1)
    assert free(lambda b, i: add(b, x, b.cast(i, i8)), axis(100)) == (1, 1)  # all numbers of the axis


def test_every_axis_must_appear():
    assert free(lambda b, i, j: add(b, m, i, j), axis(), axis()) == (1, 1)
    assert free(lambda b, i, j: add(b, m, j, i), axis(), axis()) == (1, 1)
    assert free(lambda b, i, j: add(b, m, i, i), axis(), axis()) == (0, 1)
    assert free(lambda b, i, j: add(b, x, i), axis(), axis()) == (0, 1)
    assert free(lambda b, i, j: (add(b, m, i, j), add(b, m, j, i)), axis(), axis()) == (0, 2)


def test_the_other_positions_may_be_anything():
    def build(b, i):
        with b.loop(const_i32(0), const_i32(8)) as lp:
            add(b, m, i, lp.index)
        add(b, m, i, const_i32(3))

    assert free(build) == (2, 2)
    assert free(lambda b, i: (add(b, m, i, const_i32(0)), add(b, m, const_i32(0), i))) == (0, 2)


def test_components_of_one_buffer_do_not_collide_but_overlapping_places_do():
    buffer = Buffer("field")
    p, q = (Place(name, f32, buffer, 1, (4,), (8,), offset=o) for name, o in (("p", 0), ("q", 4)))
    flat = Place("flat", f32, buffer, 1, (8,), (4,))
    again = Place("again", f32, buffer, 1, (4,), (8,), offset=0)
    assert free(lambda b, i: (add(b, p, i), b.gload(q, (const_i32(0),)))) == (1, 1)
    assert free(lambda b, i: (add(b, p, i), add(b, flat, i))) == (0, 2)
    assert free(lambda b, i: (add(b, p, i), add(b, again, i))) == (2, 2)


def test_two_arguments_may_be_the_same_array():
    a, c = ndarray("a"), ndarray("c")
    assert free(lambda b, i: (add(b, a, i), add(b, c, i))) == (2, 2)
    assert free(lambda b, i: (add(b, a, i), add(b, c, const_i32(0)))) == (0, 2)
    assert free(lambda b, i: (add(b, a, i), b.gload(c, (const_i32(0),)))) == (1, 1)


def test_in_one_thread_every_atomic_is_free():
    task = kernel(lambda b: add(b, x, const_i32(0))).tasks[0]
    assert len(race_free(task)) == 1
    parallel = kernel(lambda b, i: add(b, x, const_i32(0)), axis()).tasks[0]
    assert race_free(parallel) == set()
    parallel.serialize = True
    assert len(race_free(parallel)) == 1


class Recorder(Memory):
    """Memory that notes which elements are touched."""

    def address(self, place, index):
        self.__dict__.setdefault("touched", set()).add((place, index))
        return super().address(place, index)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_no_two_iterations_touch_an_element_of_a_race_free_place(program: Program):
    k = simplify(program.kernel)
    places = {place_of(s) for s in race_free(k.tasks[0])}
    if not k.tasks[0].axes or not places:
        return
    seen: dict[object, int] = {}
    for i in range(3):
        one = clone_kernel(k)
        one.tasks[0].axes = [Axis(one.tasks[0].axes[0].index, const_i32(i), const_i32(i + 1))]
        memory = program.memory()
        memory.__class__ = Recorder
        try:
            run_kernel(one, memory, {program.scalar: 3})
        except InterpreterError:
            raise
        except Exception:
            continue
        for touched in memory.__dict__.get("touched", ()):
            if touched[0] in places:
                assert seen.setdefault(touched, i) == i
