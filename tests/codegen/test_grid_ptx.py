"""The PTX of device functions: what it must hold for speed and order. All is compiled in a process of its own (``ptx_cases``)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ptx_cases import CASES, TYPES

from qdrun.compiler.ir.types import u1

FILE = Path(__file__).parent / "ptx_cases.py"


@pytest.fixture(scope="module")
def ptx() -> dict[str, str]:
    done = subprocess.run([sys.executable, str(FILE)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_memory_is_reached_by_its_own_space_and_nothing_lies_in_a_stack_frame(ptx, name):
    text = ptx[name]
    assert ".local" not in text and "__local_depot" not in text
    generic = re.findall(
        r"^\s+(?:ld|st|atom|red)\.(?!param|global|shared|relaxed\.gpu\.global|relaxed\.gpu\.shared|(?:relaxed|release|acquire)\.sys\.global|volatile\.global|volatile\.shared).*",
        text,
        re.M,
    )
    assert not generic, generic[:3]
    assert "call" not in text  # math functions and powers are inlined


def test_literal_extents_are_divided_by_in_32_bits_without_a_division(ptx):
    assert not re.search(r"\bdiv\.|\brem\.", ptx["stream"])
    assert re.search(r"mul\.hi\.u32|mul\.wide\.u32", ptx["stream"])
    assert "div.u32" in ptx["arrays"]  # extents that come with the launch: 32 bits where they are small


def test_what_is_only_read_goes_through_the_read_only_cache_where_nobody_can_write_it(ptx):
    assert "ld.global.nc" not in ptx["stream"]  # two fields, one is written: a user may have made both of the same memory
    assert "ld.global.nc" in ptx["sum"] and ".reqntid 128" in ptx["sum"]


@pytest.mark.parametrize("case", [*(d.name for d in TYPES if d is not u1), "of arrays"])
def test_short_bodies_move_16_bytes_at_a_time(ptx, case):
    text = ptx[f"saxpy {case}"]
    wide = "v2.b64" if case.endswith("64") else "v4.b32"
    stores = 2 if case.endswith("64") else 1  # four iterations at a time, or more
    assert len(re.findall(rf"ld\.global\.{wide}", text)) == 2 * stores
    assert len(re.findall(rf"st\.global\.{wide}", text)) == stores
    one = r"(?:ld|st)\.global\.(?:nc\.)?[bu]\d+"
    assert len(re.findall(one, text)) == 3  # what is left over


@pytest.mark.parametrize("dtype", [d.name for d in TYPES])
def test_atomics_are_those_of_the_device(ptx, dtype):
    text = ptx[f"atomics {dtype}"]
    assert ".sys." not in text  # the scope of the device is enough, and fast
    if dtype in ("f32", "f64"):
        assert f"atom.global.add.{dtype}" in text and "atom.relaxed.gpu.global.cas" in text
    elif dtype in ("i32", "u32", "i64", "u64"):
        bits = dtype[1:]
        kind = "s" if dtype[0] == "i" else "u"
        assert all(
            f"atom.global.{x}" in text for x in (f"min.{kind}{bits}", f"max.{kind}{bits}", f"and.b{bits}", f"exch.b{bits}")
        )
    else:
        assert "cas.b32" in text and "cas.b16" not in text  # narrow types by the word around them


@pytest.mark.parametrize("dtype", [d.name for d in TYPES if d.size >= 4])
def test_an_atomic_that_changes_nothing_is_a_load_and_leaves_the_process_alive(ptx, dtype):
    """LLVM's code generator ended it on an atomic load of a pointer that nothing else reads or writes."""
    text = ptx[f"unchanged {dtype}"]
    assert "ld.volatile.global" in text and "atom" not in text


@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "u64"])
def test_a_warp_counts_once_and_in_each_branch_by_itself(ptx, dtype):
    text = ptx[f"counter {dtype}"]
    arms = 2 * (4 + 1)  # two arms, for four iterations side by side and for one
    words = int(dtype[1:]) // 32
    assert len(re.findall(r"activemask\.b32", text)) == len(re.findall(rf"atom\.global\.add\.u{dtype[1:]}", text)) == arms
    assert len(re.findall(r"shfl\.sync\.idx\.b32", text)) == arms * words and "%lanemask_lt" in text
    # From the mask to the shuffle by it there is one way around the atomic, and no other mask: the lanes that were there arrive.
    for mask in re.findall(r"activemask\.b32\s+(%r\d+);", text):
        assert len(re.findall(rf"shfl\.sync\.idx\.b32[^;]* {mask};", text)) == words
    assert "red." not in text and "match" not in text


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "u64"])
@pytest.mark.parametrize("code", ["add", "sub", "max"])
def test_a_warp_folds_what_its_lanes_have_before_one_atomic(ptx, dtype, code):
    text = ptx[f"bins {dtype} {code}"]
    assert len(re.findall(r"activemask\.b32", text)) == 1 and len(re.findall(r"vote\.sync\.ballot\.b32", text)) == 2
    assert len(re.findall(r"shfl\.sync\.idx\.b32", text)) == int(dtype[1:]) // 32
    (mask,) = re.findall(r"activemask\.b32\s+(%r\d+);", text)
    assert all(x == mask for x in re.findall(r"(?:shfl|vote)\.sync[^;]* (%r\d+);", text))
    atomics = re.findall(r"(?:atom|red)\.(?:relaxed\.gpu\.)?global\.(\w+)", text)
    assert atomics == (["cas"] if code == "max" and dtype[0] == "f" else ["max" if code == "max" else "add"])


def test_a_failure_is_written_for_the_host_to_see_and_barriers_are_reached_by_all(ptx):
    first, second = re.split(r"\.visible \.entry qd_k_1\(", ptx["failures"])
    assert "atom.acquire.sys.global.cas.b32" in first and "st.release.sys.global.b32" in first and "bar.sync" not in first
    assert "fence" not in first  # the compiler in the driver crashes on some loops with fences
    for text in (first, second):
        assert len(re.findall(r"^\s+ret;", text, re.M)) == 1  # no thread leaves before the others
    assert "fence.sc.gpu" in second and "bar.sync" in second


def test_many_parameters_need_a_newer_version(ptx):
    assert ".version 8.1" in ptx["many"] and ".version 8.0" in ptx["stream"]
    assert ptx["many"].count(".param .u64") == 1200


@pytest.mark.parametrize(
    "name",
    [
        "stream",
        "arrays",
        "failures",
        "many",
        "saxpy i8",
        "saxpy f16",
        "atomics f16",
        "atomics u1",
        "reductions i64",
        "counter u64",
        "bins f64 max",
    ],
)
def test_the_assembler_takes_it(ptx, name):
    nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink")
    text = ptx[name].encode()
    handle = nvjitlink.create(1, ["-arch=sm_90"])
    nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text + b"\0", len(text) + 1, name)
    nvjitlink.complete(handle)
    assert nvjitlink.get_linked_cubin_size(handle) > 1000
    nvjitlink.destroy(handle)


@pytest.mark.parametrize("dtype", [d.name for d in TYPES])
def test_lanes_exchange_values_by_instructions(ptx, dtype):
    text = ptx[f"lanes {dtype}"]
    assert text.count("shfl.sync.idx.b32") == (2 if dtype.endswith("64") else 1) and ".shared" not in text
    assert text.count("vote.sync.ballot.b32") == text.count("bar.warp.sync") == 1
    load, meet, vote = text.index("ld.global"), text.index("bar.warp.sync"), text.index("vote.sync")
    assert load < meet < vote < text.index("shfl.sync")
    assert re.search(r"fence\S*\.cta|membar\.cta", text) and re.search(r"fence\S*\.gpu|membar\.gl", text)


@pytest.mark.parametrize("dtype", [d.name for d in TYPES if d is not u1])
def test_blocks_meet_where_all_threads_come_by(ptx, dtype):
    text = ptx[f"block {dtype}"]
    assert ".reqntid 64" in text and ".shared .align 16 .b8 qd_array_0_0[" in text
    assert "ld.global.nc" not in text
    store, barrier = text.index("st.shared"), text.index("bar.sync")
    assert text.index("ld.global") < store < barrier < text.rindex("ld.shared")
    assert len(re.findall(r"bar\.sync\s+0;", text)) >= 3  # before the loop, in it, before the next block
