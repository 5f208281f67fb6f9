"""Every option of ``qd.init``: None is not given, a wrong type is refused by name, and what has no effect is said."""

from __future__ import annotations

import warnings
from dataclasses import fields

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.options import FOREIGN_ARCHS, Options
from qdrun.compiler.peer_options import HINTS, PEER_ONLY, WITHOUT_EFFECT

OWN = [f.name for f in fields(Options)]


@pytest.mark.parametrize("name", [*OWN, *sorted(PEER_ONLY)])
def test_none_is_an_option_that_is_not_given(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = qd.init(arch=qd.python, **{name: None})
    if name in OWN:
        assert getattr(program.options, name) == getattr(Options(), name)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("value", ["several", 1.5, [1], {}, object(), -(10**30), np.zeros(2)], ids=lambda v: type(v).__name__)
def test_a_value_of_another_type_is_refused_by_name(name, value):
    if (name == "device" and isinstance(value, (str, int))) or (name == "random_seed" and isinstance(value, int)):
        return
    with pytest.raises(qd.QdrunRuntimeError, match=rf"qd\.init: {name}="):
        qd.init(arch=qd.python, **{name: value})


@pytest.mark.parametrize("name", [n for n in OWN if isinstance(getattr(Options(), n), bool)])
def test_flags_take_numpy_booleans_and_0_and_1(name):
    for value in (True, np.True_, 1):
        assert getattr(qd.init(arch=qd.python, **{name: value}).options, name) is True
    with pytest.raises(qd.QdrunRuntimeError, match=f"{name}=2 is neither True nor False"):
        qd.init(arch=qd.python, **{name: 2})


def test_whole_numbers_and_amounts_take_those_of_numpy():
    program = qd.init(arch=qd.python, cpu_max_num_threads=np.int64(2), memory_limit="1MiB", random_seed=np.uint8(7))
    assert (program.options.cpu_max_num_threads, program.options.memory_limit, program.options.random_seed) == (2, 1 << 20, 7)


def test_every_option_of_the_peer_is_a_hint_or_says_that_it_has_no_effect():
    assert not HINTS & set(WITHOUT_EFFECT) and not PEER_ONLY & set(OWN)
    for name in HINTS:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            qd.init(arch=qd.python, **{name: True})
    for name, advice in WITHOUT_EFFECT.items():
        with pytest.warns(RuntimeWarning) as caught:
            qd.init(arch=qd.python, **{name: True})
        assert [str(w.message) for w in caught] == [f"qd.init({name}=True) has no effect here\n  do: {advice}"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            qd.init(arch=qd.python, **{name: False})


def test_several_options_without_effect_make_one_warning():
    with pytest.warns(RuntimeWarning, match=r"qd\.init\(print_ir=True, timeline='x'\) have no effect here") as caught:
        qd.init(arch=qd.python, print_ir=True, timeline="x")
    assert len(caught) == 1 and caught[0].filename == __file__


@pytest.mark.parametrize("value", [1.5, np.float32(2.0)])
def test_real_template_arguments_are_refused_on_request(value):
    @qd.kernel
    def k(a: qd.template()) -> qd.f32:
        return a * 2

    qd.init(arch=qd.cpu)
    assert k(value) == 2 * value
    qd.init(arch=qd.cpu, raise_on_templated_floats=True)
    with pytest.raises(qd.QdrunTypeError, match=r"kernel `k`, argument `a`: the real number .* is a template argument"):
        k(value)
    assert k(3) == 6


@pytest.mark.parametrize("arch", FOREIGN_ARCHS)
def test_a_backend_of_taichi_is_the_cpu_with_one_warning(arch):
    with pytest.warns(RuntimeWarning, match=f"there is no backend {arch}\n  the program runs on the CPU") as caught:
        program = qd.init(arch=arch)
    assert program.arch == qd.cpu and len(caught) == 1


def test_other_names_of_backends_are_refused():
    for arch in ("opengls", 3, ["cpu"]):
        with pytest.raises(qd.QdrunRuntimeError, match="there is no backend"):
            qd.init(arch=arch)
