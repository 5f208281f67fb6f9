"""IR as bytes: what comes back is the same, with ids of its own, and damaged or foreign bytes are refused."""

import functools
import json
import struct
from dataclasses import dataclass
from typing import Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdrun.compiler.ir.builder import StatementBuilder
from qdrun.compiler.ir.nodes import ArgDecl, Block, Buffer, Const, If, Kernel, Local, Loop, Op, Place, Task
from qdrun.compiler.ir.printer import print_kernel
from qdrun.compiler.ir.store import NODES, Codec, StoreError
from qdrun.compiler.ir.types import f32, f64, i32
from qdrun.compiler.ir.walk import walk

CODEC = Codec()
dump, load = CODEC.dump, CODEC.load


def example():
    buffer, decl = Buffer("field", "memory"), ArgDecl("n", "scalar", i32)
    grad = Place("x_grad", f32, buffer, 1, (4,), (4,), 16, 4, is_grad=True)
    place = Place("x", f32, buffer, 1, (4,), (4,), 0, 4, grad)
    body = []
    b = StatementBuilder(body)
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
    again = load(dump(kernel, Kernel, [buffer, decl]), Kernel, [again_buffer, again_decl])
    assert print_kernel(again) == print_kernel(kernel)
    places = {s.attr for s in walk(again.tasks[0].body) if isinstance(s, Op) and s.op == "gload"}
    assert {p.buffer for p in places} == {again_buffer} and all(p.grad.buffer is again_buffer for p in places)
    assert again.args == [again_decl]


def test_ids_are_fresh_and_keep_their_order():
    kernel, buffer, decl = example()
    again = load(dump(kernel, Kernel, [buffer, decl]), Kernel, [buffer, decl])
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
    again, depth = load(dump(nest, Block), Block), 0
    while isinstance(again[0], If):
        again, depth = again[0].then, depth + 1
    assert depth == 3_000 and len(again) == 20_000 and again[1].args[0] is again[0]


def test_what_is_shared_stays_shared():
    local = Local(f32, "v")
    hint = tuple[Local, list[Local]]
    first, second = load(dump((local, [local]), hint), hint)
    assert second[0] is first


NUMBERS = st.one_of(st.integers(-(2**64), 2**64), st.floats(), st.booleans())


@settings(max_examples=40, deadline=None)
@given(st.lists(NUMBERS), st.text())
def test_numbers_and_texts_keep_their_type_and_their_bits(numbers, text):
    hint = tuple[list[Const], str]
    consts, again = load(dump(([Const(x, f64) for x in numbers], text), hint), hint)
    assert again == text
    assert [type(c.value) for c in consts] == list(map(type, numbers))
    assert [struct.pack(">d", c.value) if type(c.value) is float else c.value for c in consts] == [
        struct.pack(">d", x) if type(x) is float else x for x in numbers
    ]


@functools.cache  # numbers of locals go on from call to call, and with them the length of the text that examples are drawn from
def document():
    kernel, buffer, decl = example()
    return dump(kernel, Kernel, [buffer, decl]), [buffer, decl]


def loads_or_refuses(data, known):
    try:
        load(data, Kernel, known)
    except StoreError:
        pass  # any other exception fails the test


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_give_a_kernel(data):
    good, known = document()
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    loads_or_refuses(bytes(bad), known)
    with pytest.raises(StoreError):
        load(good[: data.draw(st.integers(0, len(good) - 1))], Kernel, known)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 99), st.floats(), st.text(max_size=3)),
    lambda x: st.lists(x, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(st.data(), JSON)
def test_a_document_with_something_else_in_one_place_is_refused_or_gives_a_kernel(data, other):
    good, known = document()
    tree = json.loads(good)
    at = tree
    while True:
        k = data.draw(st.integers(0, len(at) - 1))
        if not isinstance(at[k], list) or not at[k] or data.draw(st.integers(0, 4)) == 0:
            break
        at = at[k]
    at[k] = other
    loads_or_refuses(json.dumps(tree).encode(), known)


@pytest.mark.parametrize(
    "root",
    [
        "os.getpid",
        {"module": "os", "name": "getpid"},
        ["qdrun.compiler.errors", "os.getpid"],
        b"\x80\x04\x8c\x02os\x8c\x06getpid\x93)R.".decode("latin-1"),
        2**70,
        [0] * 7,
    ],
)
def test_names_of_functions_are_data(root, monkeypatch):
    for name in ("getpid", "system"):
        monkeypatch.setattr(f"os.{name}", lambda *args: pytest.fail("code was run"))
    for text in ([2, [], [], root], [2, [root], [], 0], [2, [], [root], 0], [2, [], [[root]], 0], root):
        with pytest.raises(StoreError):
            load(json.dumps(text).encode(), Kernel)


def test_pickles_and_documents_of_another_format_are_refused():
    good, known = document()
    for data in (b"\x80\x05N.", b"", b"[3" + good[2:], b"[1" + good[2:], b"[" * 100_000, good + b"[]"):
        with pytest.raises(StoreError):
            load(data, Kernel, known)


def test_what_is_not_of_its_annotation_is_not_written():
    class Number(int):
        pass

    for value, hint in (
        (lambda: None, str),
        (Const(Number(3), i32), Const),
        ((1, 2), tuple[int]),
        (3, Kernel),
        ({1}, list[int]),
    ):
        with pytest.raises(StoreError):
            dump(value, hint)
    with pytest.raises(StoreError, match=r"Buffer\.owner: a str does not belong"):
        dump(Buffer("field", "memory"), Buffer)


@dataclass(frozen=True)
class Either:
    x: Union[tuple[int, ...], list[int]]


def test_annotations_that_cannot_be_told_apart_and_classes_outside_of_the_table_are_refused():
    with pytest.raises(TypeError, match="told apart"):
        Codec((*NODES, Either)).check()
    with pytest.raises(TypeError, match="Either not in the table"):
        Codec().form(Either)
