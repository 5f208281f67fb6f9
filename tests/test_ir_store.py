"""IR as bytes: what comes back is the same, with ids of its own, and damaged or foreign bytes are refused."""

import pickle

import pytest

from qdrun.compiler.ir.builder import Builder
from qdrun.compiler.ir.nodes import ArgDecl, Buffer, Const, If, Kernel, Local, Loop, Op, Place, Task
from qdrun.compiler.ir.printer import print_kernel
from qdrun.compiler.ir.store import StoreError, dump, load
from qdrun.compiler.ir.types import f32, i32
from qdrun.compiler.ir.walk import walk


def example():
    buffer, decl = Buffer("field", "memory"), ArgDecl("n", "scalar", i32)
    grad = Place("x_grad", f32, buffer, 1, (4,), (4,), 16, 4, is_grad=True)
    place = Place("x", f32, buffer, 1, (4,), (4,), 0, 4, grad)
    body = []
    b = Builder(body)
    n = b.op("arg", dtype=i32, attr=decl)
    v = b.local(Const(0.5, f32), "v")
    with b.loop(Const(0, i32), n) as loop:
        old = b.gload(place, (loop.index,))
        with b.if_(b.op("gt", old, Const(0.0, f32))):
            b.store(v, b.op("mul", b.load(v), old))
        b.gstore(place, (loop.index,), b.load(v))
    return Kernel("k", [decl], [Task("k_0", body)]), buffer, decl


def test_a_kernel_comes_back_with_the_readers_own_buffers_and_arguments():
    kernel, buffer, decl = example()
    again_buffer, again_decl = Buffer("field"), ArgDecl("n", "scalar", i32)
    again = load(dump(kernel, [buffer, decl]), [again_buffer, again_decl])
    assert print_kernel(again) == print_kernel(kernel)
    places = {s.attr for s in walk(again.tasks[0].body) if isinstance(s, Op) and s.op == "gload"}
    assert {p.buffer for p in places} == {again_buffer} and all(p.grad.buffer is again_buffer for p in places)
    assert again.args == [again_decl]


def test_ids_are_fresh_and_keep_their_order():
    kernel, buffer, decl = example()
    again = load(dump(kernel, [buffer, decl]), [buffer, decl])
    old, new = ([s.id for s in walk(k.tasks[0].body) if isinstance(s, (Op, Loop))] for k in (kernel, again))
    assert min(new) > max(old)
    assert sorted(range(len(old)), key=old.__getitem__) == sorted(range(len(new)), key=new.__getitem__)


def test_long_chains_and_deep_nests_are_no_recursion():
    body = []
    x = Op("index", (), i32)
    for _ in range(20_000):
        x = Op("add", (x, Const(1, i32)), i32)
        body.append(x)
    nest = body
    for _ in range(3_000):
        nest = [If(Const(True, i32), nest)]
    data = dump(nest)
    again, depth = load(data), 0
    while isinstance(again[0], If):
        again, depth = again[0].then, depth + 1
    assert depth == 3_000 and len(again) == 20_000 and again[1].args[0] is again[0]


def test_what_is_shared_stays_shared():
    local = Local(f32, "v")
    first, second = load(dump((local, [local])))
    assert second[0] is first


@pytest.mark.parametrize("at", [0, 4, 9, 40, -1])
def test_damaged_bytes_are_refused_or_give_something(at):
    kernel, buffer, decl = example()
    data = dump(kernel, [buffer, decl])
    with pytest.raises(StoreError):
        load(data[: len(data) // 2], [buffer, decl])
    changed = bytearray(data)
    changed[at] ^= 0xFF
    try:
        load(bytes(changed), [buffer, decl])
    except StoreError:
        pass  # any other exception fails the test


def test_nothing_foreign_is_loaded_or_stored():
    class Evil:
        def __reduce__(self):
            return print, ("run",)

    data = (0).to_bytes(8, "little") + pickle.dumps(Evil())
    with pytest.raises(StoreError, match="does not belong"):
        load(data)
    with pytest.raises(StoreError):
        dump(lambda: None)
