"""Ndarrays that are replaced between launches, wherever an object holds them: each launch takes the present one, or is refused."""

from __future__ import annotations

import dataclasses
import gc
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu) as p:
        yield p


def fresh():
    return qd.ndarray(qd.i32, 2)


@qd.data_oriented
class Marked:
    def __init__(self, x):
        self.x = x


@dataclasses.dataclass
class Record:
    x: object
    n: int = 3


Pair = namedtuple("Pair", "first second")
HEADS = [None, 0, 2.5, "name", (1, 2), np.float32(1.0), np.arange(3), [], {}, {"k": 1}, object(), int]


# how a member holds an array behind a part without one: make it, read it in a kernel, replace the array
FORMS = {
    "list": (lambda h, x: [h, x], "self.m[1]", lambda m, x: m.__setitem__(1, x)),
    "negative index": (lambda h, x: [h, h, x], "self.m[-1]", lambda m, x: m.__setitem__(-1, x)),
    "dict": (lambda h, x: {"h": h, "x": x}, "self.m['x']", lambda m, x: m.__setitem__("x", x)),
    "whole numbers as keys": (lambda h, x: {1000: h, 2000: x}, "self.m[2000]", lambda m, x: m.__setitem__(2000, x)),
    "list of lists": (lambda h, x: [[h], [h, x]], "self.m[1][1]", lambda m, x: m[1].__setitem__(1, x)),
    "list in a tuple": (lambda h, x: (h, [h, x]), "self.m[1][1]", lambda m, x: m[1].__setitem__(1, x)),
    "dict in a list": (lambda h, x: [h, {"x": x}], "self.m[1]['x']", lambda m, x: m[1].__setitem__("x", x)),
    "list in a dict": (lambda h, x: {"h": h, "l": [h, x]}, "self.m['l'][1]", lambda m, x: m["l"].__setitem__(1, x)),
    "named tuple": (lambda h, x: Pair(h, [x]), "self.m.second[0]", lambda m, x: m.second.__setitem__(0, x)),
    "marked object in a list": (lambda h, x: [h, Marked(x)], "self.m[1].x", lambda m, x: setattr(m[1], "x", x)),
    "record in a list": (lambda h, x: [h, Record(x)], "self.m[1].x", lambda m, x: setattr(m[1], "x", x)),
    "list in a record": (lambda h, x: Record([h, x]), "self.m.x[1]", lambda m, x: m.x.__setitem__(1, x)),
    "dict in a record": (lambda h, x: Record({"h": h, "x": x}), "self.m.x['x']", lambda m, x: m.x.__setitem__("x", x)),
    "list in a marked object": (lambda h, x: Marked([h, x]), "self.m.x[1]", lambda m, x: m.x.__setitem__(1, x)),
    "ordered dict": (lambda h, x: OrderedDict(h=h, x=x), "self.m['x']", lambda m, x: m.__setitem__("x", x)),
    "unmarked object": (lambda h, x: SimpleNamespace(h=h, x=x), "self.m.x", lambda m, x: setattr(m, "x", x)),
    "list in an unmarked object": (lambda h, x: SimpleNamespace(l=[h, x]), "self.m.l[1]", lambda m, x: m.l.__setitem__(1, x)),
}
REFUSED = {"unmarked object", "list in an unmarked object"}

SOURCE = """
import qdrun as qd

@qd.data_oriented
class Holder:
    def __init__(self, m):
        self.m = m

    @qd.func
    def add(self, i, by):
        {part}[i] += by

    @qd.kernel
    def run(self):
        for i in range(2):
            {part}[i] += 1

    @qd.kernel
    def by_func(self, by: qd.i32):
        for i in range(2):
            self.add(i, by)

@qd.kernel
def template(self: qd.template()):
    for i in range(2):
        {part}[i] += 1
"""


@pytest.fixture(scope="module", params=FORMS)
def form(request, tmp_path_factory):
    import importlib.util

    make, part, replace = FORMS[request.param]
    path = tmp_path_factory.mktemp("members") / f"members_{list(FORMS).index(request.param)}.py"
    path.write_text(SOURCE.format(part=part))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return request.param, module, make, replace


@pytest.mark.parametrize("how", ["run", "by_func", "template"])
def test_a_replaced_member_is_seen_at_the_next_launch(form, how):
    name, module, make, replace = form
    launch = {"run": lambda s: s.run(), "by_func": lambda s: s.by_func(1), "template": module.template}[how]
    for head in HEADS if how == "run" else HEADS[:2]:
        x = fresh()
        s = module.Holder(make(head, x))
        for _ in range(3):  # the last ones are native
            launch(s)
        assert x.to_numpy().tolist() == [3, 3]
        for _ in range(3):
            before, x = x, fresh()
            replace(s.m, x)
            if name in REFUSED:
                with pytest.raises(
                    qd.QdrunRuntimeError, match=r"was compiled for the ndarray `self\.m\.[xl]`, which is another"
                ):
                    launch(s)
                break
            launch(s)
            launch(s)
            assert x.to_numpy().tolist() == [2, 2] and before.to_numpy().tolist() != [0, 0]


def test_an_array_may_take_the_place_of_nothing():
    @qd.data_oriented
    class Optional:
        def __init__(self):
            self.parts, self.named, self.out = [0, None], {"x": None}, qd.field(qd.i32, shape=())

        @qd.kernel
        def run(self):
            for _ in range(1):
                if qd.static(self.parts[1] is not None):
                    self.out[None] += self.parts[1][0]
                if qd.static(self.named["x"] is not None):
                    self.out[None] += 10 * self.named["x"][0]

    s, x = Optional(), fresh()
    x.fill(1)
    for _ in range(3):
        s.run()
    s.parts[1] = x
    for _ in range(3):
        s.run()
    assert s.out[None] == 3
    s.named["x"] = x
    s.run()
    assert s.out[None] == 14


def test_a_long_list_of_numbers_may_grow_while_native_launches_go_on(program):
    @qd.data_oriented
    class History:
        def __init__(self):
            self.values, self.x = [0.0] * 500, fresh()

        @qd.kernel
        def run(self):
            for i in range(2):
                self.x[i] += 1

    s = History()
    for k in range(5):
        s.run()
        s.values.append(float(k))
    assert s.x.to_numpy().tolist() == [5, 5]
    if program.device.native and program.native_launches.get(History.run.token):
        launch = program.native_launches[History.run.token][0]
        assert not any(watch.missed for watch in launch.watches)


def test_cycles_of_containers_end():
    @qd.data_oriented
    class Ring:
        def __init__(self):
            self.ring, self.a = [1], [0, self, fresh()]
            self.ring += [self.ring, {"back": self.ring, "self": self}, self.a]

        @qd.kernel
        def run(self):
            for i in range(2):
                self.a[2][i] += 1

    s = Ring()
    s.run()
    s.a[2] = fresh()
    s.run()
    assert s.a[2].to_numpy().tolist() == [1, 1]


class Space:
    x = None


def test_names_outside_of_a_kernel_are_checked_at_each_launch():
    x, lists, records = fresh(), [0, fresh()], {"r": Record(fresh())}
    Space.x = fresh()

    @qd.kernel
    def by_name():
        for i in range(2):
            x[i] += 1

    @qd.kernel
    def in_list():
        for i in range(2):
            lists[1][i] += 1

    @qd.kernel
    def in_record():
        for i in range(2):
            records["r"].x[i] += 1

    @qd.kernel
    def of_class():
        for i in range(2):
            Space.x[i] += 1

    kernels = (by_name, in_list, in_record, of_class)
    for k in kernels:
        k()
        k()
    assert x.to_numpy().tolist() == lists[1].to_numpy().tolist() == Space.x.to_numpy().tolist() == [2, 2]
    old = x, lists[1], records["r"].x, Space.x
    x, lists[1], records["r"].x, Space.x = (fresh() for _ in range(4))
    for k, name in zip(kernels, ("x", "lists", "records", r"Space\.x")):
        with pytest.raises(
            qd.QdrunRuntimeError, match=rf"kernel `{k.__name__}` was compiled for the ndarray `{name}.*`, which is another"
        ):
            k()
        with pytest.raises(qd.QdrunRuntimeError, match="do: pass the ndarray as an argument, or hold it in `self`"):
            k()
    x, lists[1], records["r"].x, Space.x = old
    for k in kernels:
        k()
    assert x.to_numpy().tolist() == [3, 3]


def test_the_gradient_of_a_replaced_name_is_refused_too():
    x = qd.ndarray(qd.f32, 2, needs_grad=True)
    loss = qd.field(qd.f32, shape=(), needs_grad=True)

    @qd.kernel
    def k():
        for i in range(2):
            loss[None] += x[i] ** 2

    x.fill(3.0)
    k()
    loss.grad[None] = 1.0
    k.grad()
    assert x.grad.to_numpy().tolist() == [6, 6]
    x = qd.ndarray(qd.f32, 2, needs_grad=True)
    with pytest.raises(qd.QdrunRuntimeError, match="kernel `k` was compiled for the ndarray `x`"):
        k.grad()


def test_gradients_follow_the_arrays_of_each_launch():
    @qd.data_oriented
    class Sum:
        def __init__(self):
            self.parts = {"n": 2, "x": [None, qd.ndarray(qd.f32, 2, needs_grad=True)]}
            self.loss = qd.field(qd.f32, shape=(), needs_grad=True)

        @qd.kernel
        def add(self):
            for i in range(2):
                self.loss[None] += self.parts["x"][1][i] ** 2

    s = Sum()
    arrays = []
    for _ in range(2):
        arrays.clear()
        with qd.ad.Tape(loss=s.loss):
            for k in range(3):
                arrays.append(qd.ndarray(qd.f32, 2, needs_grad=True))
                arrays[-1].fill(k + 1.0)
                s.parts["x"][1] = arrays[-1]
                s.add()
        assert [a.grad.to_numpy().tolist() for a in arrays] == [[2, 2], [4, 4], [6, 6]] and s.loss[None] == 28


def test_a_replaced_array_does_not_stay_alive():
    @qd.data_oriented
    class Two:
        def __init__(self):
            self.parts = {"a": [0, fresh()]}

        @qd.kernel
        def run(self):
            for i in range(2):
                self.parts["a"][1][i] += 1

    def alive():
        gc.collect()
        return sum(type(x) is qd.Ndarray for x in gc.get_objects())

    s, counts = Two(), []
    for _ in range(6):
        s.run()
        s.parts["a"][1] = fresh()
        counts.append(alive())
    assert counts[-1] == counts[2]
