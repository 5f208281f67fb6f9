"""The public names and parameters of quadrants 1.3.3 (``peer_signatures.txt``): each is supported under its name, or refused by name."""

import importlib.util
import inspect
import itertools
from pathlib import Path

import pytest

import qdrun as qd
from qdrun.compiler.frontend.library.functions import Intrinsic
from qdrun.compiler.frontend.library.methods import METHODS
from qdrun.compiler.frontend.lower import lower
from qdrun.compiler.frontend.markers import ATOMIC_CODES
from qdrun.compiler.ir.printer import print_kernel
from qdrun.compiler.options import Options
from qdrun.compiler.peer_options import PEER_ONLY
from qdrun.compiler.refused import REFUSED, Refused


def signatures():
    """Section -> name -> the parameters, or None for what is not called. ``*`` and ``**`` begin the collecting ones, a lone ``*`` stands
    before those that have no position."""
    out = {}
    for word in Path(__file__).with_name("peer_signatures.txt").read_text().split():
        if word.endswith(":"):
            section = out[word[:-1]] = {}
            continue
        name, bracket, rest = word.partition("(")
        section[name] = [p for p in rest[:-1].split(",") if p] if bracket else None
    return out


PEER = signatures()
OTHER_ORDER = {"MatrixField.to_numpy"}
"""``dtype`` before ``keep_dims``, as in the other conversions; a truth value in the first place is ``keep_dims``."""


@pytest.fixture
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False) as program:
        yield program


def owners():
    """What has the names of each section."""
    record = qd.types.struct(a=qd.f32)
    numbers, vectors, matrices = qd.f32, qd.types.vector(2, qd.f32), qd.types.matrix(2, 2, qd.f32)
    out = {name: getattr(qd, name) for name in ("types", "math", "ad", "simt", "Matrix", "Vector", "Struct")}
    out |= {"qd": qd, "Tape": qd.ad.Tape, "SNode": qd.root.dense(qd.i, 2), "StructType": record}
    out |= {"StructField": record.field(shape=2), "MatrixType": qd.math.mat2, "VectorType": qd.math.vec2}
    out |= {"ScalarField": qd.field(numbers, 2), "MatrixField": qd.field(matrices, 2)}
    for kind, make in (("Ndarray", qd.ndarray), ("Tensor", qd.tensor)):
        out |= {f"Vector{kind}": make(vectors, 2), f"Matrix{kind}": make(matrices, 2)}
    out |= {"ScalarNdarray": qd.ndarray(numbers, 2), "Tensor": qd.tensor(numbers, 2)}
    for path in PEER:
        if path.startswith("simt.") or path in ("algorithms", "linalg", "profiler", "tools"):
            out[path] = qd
            for name in path.split("."):
                out[path] = getattr(out[path], name)
    return out


def key_of(section, name):
    """The name in ``REFUSED``."""
    return name if section in ("qd", "types") else f"{section}.{name}"


def refused_as(found, key):
    why, instead = REFUSED[key]
    for use in (lambda: found(1), lambda: found.something, lambda: found[0], lambda: list(found)):
        with pytest.raises(qd.QdrunTypeError) as e:
            use()
        assert e.value.what == f"`{key}` is not available: {why}" and e.value.hint == instead
    assert not isinstance(1, found)


def accepted(found):
    """The parameters that have a position, and all that can be given by name."""
    parameters = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return positional, {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


@pytest.mark.parametrize("section", [s for s in PEER if s != "init"])
def test_every_name_of_the_peer_has_its_parameters_or_is_refused_by_name(program, section):
    owner = owners()[section]
    if isinstance(owner, Refused):
        for name in PEER[section]:
            with pytest.raises(qd.QdrunTypeError, match=f"`{section}` is not available: "):
                getattr(owner, name)
        return
    for name, parameters in PEER[section].items():
        found = getattr(owner, name)
        if key_of(section, name) in REFUSED:
            refused_as(found, key_of(section, name))
            continue
        assert not isinstance(found, Refused), name
        if parameters is None:
            continue
        positional, known = accepted(found)
        wanted = list(itertools.takewhile(lambda p: not p.startswith("*"), parameters))
        named = {p for p in parameters if not p.startswith("*")}
        assert named <= known, f"{section}.{name}{inspect.signature(found)} has no {named - known}"
        if f"{section}.{name}" not in OTHER_ORDER:
            assert positional[: len(wanted)] == wanted, f"{section}.{name}{inspect.signature(found)} has not the order {wanted}"


def test_the_options_of_the_peer_are_known_or_refused_by_name():
    known = {*vars(Options()), *PEER_ONLY, "arch"}
    refused = {name for name in PEER["init"] if f"init({name}=..)" in REFUSED}
    assert set(PEER["init"]) <= known | refused and refused == {"default_up"} and not refused & known
    with pytest.raises(qd.QdrunTypeError, match=r"`init\(default_up=..\)` is not available: .*\n  do: set default_ip"):
        qd.init(default_up=qd.u64)


def test_parameters_that_have_no_meaning_here_are_refused_by_name():
    for options, name in (({"field_dim": 1}, "field_dim"), ({"boundary": "clamp"}, "boundary")):
        for make in (qd.types.ndarray, qd.types.NDArray):
            with pytest.raises(qd.QdrunTypeError, match=rf"`ndarray\({name}=..\)` is not available: "):
                make(**options)
    assert qd.types.ndarray(qd.f32, 1, 1, (3,)) == qd.types.ndarray(qd.types.vector(3, qd.f32), ndim=1)
    assert qd.types.ndarray(qd.f32, 2, 0) == qd.types.NDArray(qd.f32, 2) == qd.types.NDArray[qd.f32, 2]
    with pytest.raises(qd.QdrunTypeError, match=r"element_dim=2 contradicts the element's shape \(3,\)"):
        qd.types.ndarray(qd.f32, 1, 2, (3,))
    with pytest.raises(qd.QdrunTypeError, match="element_dim=3 is not 0, 1 or 2"):
        qd.types.ndarray(qd.f32, 1, 3)
    with pytest.raises(qd.QdrunTypeError, match=r"ndarray\[..\] takes a type and a number of axes, not 3 values"):
        qd.types.ndarray[qd.f32, 1, 2]


def test_a_structs_member_may_have_a_name_that_is_refused(program):
    s = qd.types.struct(layout=qd.i32, b=qd.f64).field(shape=3, needs_grad=True)
    s.layout.fill(7)
    assert s.layout[1] == 7 and s.has_grad() and not s.has_dual()
    with pytest.raises(qd.QdrunTypeError, match=r"`StructField.to_dlpack` is not available(.|\n)*get_member_field"):
        s.to_dlpack()


def test_levels_know_the_levels_above(program):
    level = qd.root.dense(qd.i, 4).dense(qd.j, 2)
    assert level.parent(2) is qd.root.parent(0) and level.parent(3) is None and level.parent().shape == (4,)


def test_cfg_tells_the_options_of_the_current_program():
    for fp in (qd.f32, qd.f64):
        with qd.init(default_fp=fp, debug=True) as program:
            assert qd.cfg.default_fp is fp and qd.cfg.debug and qd.cfg.check_out_of_bound and qd.cfg.arch is program.arch
            with pytest.raises(qd.QdrunRuntimeError, match=r"qd.cfg.debug cannot be set(.|\n)*qd.init\(debug=False\)"):
                qd.cfg.debug = False
            with pytest.raises(qd.QdrunTypeError, match=r"`cfg.opt_level` is not available: the option means nothing here"):
                _ = qd.cfg.opt_level
    with pytest.raises(AttributeError, match="no option `no_such_option`; it has arch, default_fp"), qd.init():
        _ = qd.cfg.no_such_option
    qd.reset()
    assert not qd.cfg and qd.cfg.arch is None and qd.cfg.default_fp is None
    with pytest.raises(AttributeError, match="no option `no_such_option`"):
        _ = qd.cfg.no_such_option


# ---- keywords inside kernels

SAMPLES = {
    **{name: "n[0]" for name in "popcnt clz ffs bit_shr".split()},
    **{name: "v[{k}]" for name in "length normalize dot cross distance reflect refract rot_by_axis".split()},
    **{name: "m[0]" for name in "determinant inverse svd polar_decompose sym_eig make_spd solve".split()},
    **{name: "c[{k}]" for name in "cconj cdiv cexp cinv clog cmul cpow csqrt".split()},
    **{"eig": "m2[0]", "eye": "3", "fns": "u[0]", "atomic_and": "n[{k}]", "atomic_or": "n[{k}]", "atomic_xor": "n[{k}]"},
    "atomic_cas": "n[{k}]",
}
"""Function -> its arguments in a kernel; those of the others are numbers, ``x[{k}]``."""
PARTICULAR = {
    **{(name, "dt"): "qd.f64" for name in "svd polar_decompose sym_eig make_spd solve eig randn".split()},
    **{(name, "dtype"): "qd.i32" for name in "floor ceil round random cast".split()},
    **{("bit_cast", "dtype"): "qd.i64", ("solve", "b"): "v[0]", ("rot_by_axis", "ang"): "x[1]", ("refract", "eta"): "x[1]"},
    **{("cpow", "n"): "x[0]", ("fns", "base"): "n[0]", ("fns", "offset"): "n[1]", ("select", "cond"): "x[0] > 0.5"},
    **{("static_assert", "cond"): "1 < 2", ("static_assert", "msg"): "'said'", ("assume_in_range", "val"): "n[0]"},
}
METHOD_ARGUMENTS = {"other": "v[1]", "eps": "x[0]", "dtype": "qd.f32", "val": "x[1]"}
CONSTRUCTORS = {
    "Matrix.identity": {"n": "3", "dt": "qd.f64"},
    "Matrix.diag": {"val": "x[0]", "dim": "2"},
    "Matrix.zero": {"m": "3", "n": "2", "dt": "qd.f64"},
    "Matrix.one": {"m": "3", "n": "2", "dt": "qd.f64"},
    "Matrix.unit": {"dt": "qd.f64", "i": "1", "n": "3"},
    "Matrix.rows": {"rows": "[v[0], v[1]]"},
    "Matrix.cols": {"cols": "[v[0], v[1]]"},
    "Matrix": {"dt": "qd.f64", "arr": "[[x[0], 1], [2, 3]]"},
    "Vector": {"dt": "qd.f64", "arr": "[x[0], 1]"},
}


def built_ins():
    """(name, arguments by keyword) of every function of the peer that kernels know, of methods and of constructors."""
    for prefix in ("qd", "math"):
        owner = qd if prefix == "qd" else qd.math
        for name, parameters in PEER[prefix].items():
            found = None if key_of(prefix, name) in REFUSED else getattr(owner, name)
            special = found in (*ATOMIC_CODES, qd.atomic_cas, qd.static_assert) if callable(found) else False
            if parameters and not any(p.startswith("*") for p in parameters) and (isinstance(found, Intrinsic) or special):
                general = SAMPLES.get(name, "x[{k}]")
                called = f"qd.{name}" if prefix == "qd" else f"qd.math.{name}"
                yield called, {p: PARTICULAR.get((name, p), general.format(k=k)) for k, p in enumerate(parameters)}
    yield from ((f"qd.{name}", arguments) for name, arguments in CONSTRUCTORS.items())
    for name, parameters in PEER["Vector"].items():
        if name in METHODS and parameters and name != "fill":
            yield f"v[0].{name}", {p: METHOD_ARGUMENTS[p] for p in parameters}


def test_built_ins_take_keywords_in_kernels_in_any_order(program, tmp_path):
    """The call by position and the call by keywords, in the reverse order, are the same IR."""
    cases = list(built_ins())
    assert len(cases) > 90
    lines = ["import qdrun as qd", "x = qd.field(qd.f64, shape=8)"]
    lines += [f"{name} = qd.field({dtype}, shape=8)" for name, dtype in (("n", "qd.i32"), ("u", "qd.u32"))]
    lines += [f"{name} = qd.Vector.field({size}, qd.f64, shape=8)" for name, size in (("v", 3), ("c", 2))]
    lines += [f"{name} = qd.Matrix.field({size}, {size}, qd.f64, shape=8)" for name, size in (("m", 3), ("m2", 2))]
    for number, (called, arguments) in enumerate(cases):
        signature = inspect.signature(eval(called, {"qd": qd})) if called.startswith("qd.") else None
        order = [p for p in signature.parameters if p in arguments] if signature else list(arguments)
        # arguments are evaluated before: in the order of the call they would be different IR
        given = {p: arguments[p] if "atomic" in called and p == "x" else f"given_{p}" for p in order}
        before = [f"    given_{p} = {arguments[p]}" for p in order if given[p] != arguments[p]]
        by_position, by_keyword = ", ".join(given.values()), ", ".join(f"{p}={given[p]}" for p in reversed(order))
        for kind, values in (("position", by_position), ("keyword", by_keyword)):
            call = f"{called}({values})" if "static_assert" in called else f"result = {called}({values})"
            lines += ["@qd.kernel", f"def {kind}_{number}():", *before, f"    {call}", "    x[7] = 1.0"]
    source = tmp_path / "generated_keywords.py"
    source.write_text("\n".join(lines))
    spec = importlib.util.spec_from_file_location("generated_keywords", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for number, (called, _) in enumerate(cases):
        first, second = (
            print_kernel(lower(getattr(module, f"{kind}_{number}").source, {})).replace(f"{kind}_{number}", "k")
            for kind in ("position", "keyword")
        )
        assert first == second, called


def test_a_wrong_keyword_of_a_built_in_names_its_parameters(program):
    @qd.kernel
    def wrong() -> qd.f64:
        return qd.atan2(y=1.0, x=2.0)

    @qd.kernel
    def twice() -> qd.f64:
        return qd.Vector([1.0, 2.0]).norm(0.5, eps=0.5)

    said = r"atan2\(\): .*(.|\n)*do: its parameters are atan2\(x1, x2\)"
    with pytest.raises(qd.QdrunTypeError, match=said):
        wrong()
    with pytest.raises(qd.QdrunTypeError, match=said):
        qd.atan2(y=1.0, x=2.0)
    with pytest.raises(qd.QdrunTypeError, match=r"norm\(\): multiple values for argument 'eps'"):
        twice()
    assert qd.solve(b=qd.Vector([2.0, 4.0]), A=qd.Matrix([[2.0, 0.0], [0.0, 1.0]])).to_list() == [1.0, 4.0]
    assert qd.select(x2=1.0, cond=False, x1=2.0) == 1.0 and qd.math.mix(a=0.25, x=1.0, y=2.0) == 1.25


def test_an_order_of_axes_decides_the_order_of_visits(program):
    out, count = qd.field(qd.i32, shape=12), qd.field(qd.i32, shape=())

    @qd.kernel
    def serial():
        qd.loop_config(serialize=True)
        for i, j, k in qd.ndrange(2, (5, 8), 2, axes=(2, 0, 1)):
            out[count[None]] = 100 * i + 10 * j + k
            count[None] += 1

    @qd.kernel
    def unrolled():
        for I in qd.static(qd.grouped(qd.ndrange(2, (5, 8), 2, axes=(2, 0, 1)))):
            out[count[None]] = 100 * I[0] + 10 * I[1] + I[2]
            count[None] += 1

    want = [100 * i + 10 * j + k for k in range(2) for i in range(2) for j in range(5, 8)]
    for run in (serial, unrolled):
        count[None] = 0
        run()
        assert out.to_numpy().tolist() == want
    assert [100 * i + 10 * j + k for i, j, k in qd.ndrange(2, (5, 8), 2, axes=(2, 0, 1))] == want

    @qd.kernel
    def wrong():
        for i, j in qd.ndrange(2, 3, axes=(0, 2)):
            out[i] = j

    with pytest.raises(qd.QdrunTypeError, match=r"axes=\(0, 2\)\) is not a permutation of range\(2\)"):
        wrong()
