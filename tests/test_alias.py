"""Which places may share memory: found by layout and offset, the same as by comparing every pair."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdrun.compiler.ir import alias
from qdrun.compiler.ir.alias import Aliases, array_of, may_alias, same_array
from qdrun.compiler.ir.nodes import ArgDecl, Buffer, Place
from qdrun.compiler.ir.types import f32, f64, i8

DECLS = [ArgDecl(f"a{k}", "ndarray", f32, 1, index=k) for k in range(2)]
BUFFERS = [Buffer("field"), Buffer("field"), Buffer("tmp"), Buffer("tmp"), Buffer("block"), Buffer("ret")]
ARRAYS = [Buffer(kind, decl) for kind in ("arg", "arg_grad") for decl in DECLS]


@st.composite
def places(draw):
    dtype = draw(st.sampled_from([f32, f64, i8]))
    offset = draw(st.integers(0, 12)) * draw(st.sampled_from([1, 4, 8]))
    if draw(st.booleans()):
        return Place("a", dtype, draw(st.sampled_from(ARRAYS)), 1, None, None, offset, draw(st.sampled_from([4, 8, 12, 16])))
    ndim = draw(st.integers(0, 2))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    strides = tuple(draw(st.sampled_from([0, 1, 4, 8, 12, 24, 48])) for _ in range(ndim))
    return Place("f", dtype, draw(st.sampled_from(BUFFERS)), ndim, shape, strides, offset, dtype.size)


@settings(max_examples=40, deadline=None)
@given(st.lists(places(), max_size=10), places())
def test_what_may_share_memory_is_what_a_comparison_of_all_pairs_finds(found, other):
    aliases = Aliases(found)
    for p in (*found, other):
        assert aliases.of(p) == [q for q in aliases.all if may_alias(p, q)]
        assert [same_array(p, q) for q in found] == [array_of(p) == array_of(q) for q in found]


@pytest.mark.parametrize("layout", ["components of elements", "arrays one after another", "components of an argument"])
def test_a_thousand_components_are_not_compared_in_pairs(monkeypatch, layout):
    compared = []
    monkeypatch.setattr(alias, "may_alias", lambda p, q: compared.append(1) or may_alias(p, q))
    buffer, n = Buffer("field"), 1024
    made = {
        "components of elements": lambda k: Place("f", f32, buffer, 1, (8,), (4 * n,), 4 * k, 4),
        "arrays one after another": lambda k: Place("f", f32, buffer, 1, (8,), (4,), 32 * k, 4),
        "components of an argument": lambda k: Place("a", f32, ARRAYS[0], 1, None, None, 4 * k, 4 * n),
    }[layout]
    all_of_them = [made(k) for k in range(n)]
    aliases = Aliases(all_of_them)
    assert all(aliases.of(p) == [p] for p in all_of_them)
    assert len(compared) <= 3 * n
