"""Programs that import Quadrants or Taichi by name: ``qdrun.compat``, its import hook and its command; the module ``qdrun._logging``."""

import logging
import subprocess
import sys

import pytest

import qdrun
import qdrun.compat as quadrants
from qdrun.compat.math import vec3

PROGRAM = """
import sys
import taichi as ti
import quadrants as qd
from taichi.math import vec2
from quadrants import *

ti.init(arch=ti.cpu, packed=True)
x = ti.Vector.field(2, ti.f32, 3)

@ti.kernel
def k(a: ti.f32):
    for i in x:
        x[i] = vec2(i, a) + qd.math.sign(a) * ti.sqrt(4.0)

k(float(sys.argv[1]))
print(x.to_numpy().tolist(), math is ti.math is qd.math, __name__)
for attempt in (lambda: ti.Texture("r8", (4, 4)), lambda: ti.no_such_name):
    try:
        attempt()
    except ti.TaichiTypeError as error:
        print(str(error).splitlines()[0])
    except AttributeError as error:
        print(error)
try:
    import quadrants.lang
except ImportError as error:
    print(error)
"""


def test_a_program_of_taichi_and_quadrants_runs_by_the_command(tmp_path):
    (tmp_path / "beside.py").write_text("import taichi\nhere = taichi.f64\n")
    (tmp_path / "program.py").write_text(PROGRAM + "import beside\nprint(beside.here)\n")
    command = [sys.executable, "-m", "qdrun.compat", str(tmp_path / "program.py"), "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[[2.0, 7.0], [3.0, 7.0], [4.0, 7.0]] True __main__",
        "`Texture` is not available: textures are not supported",
        "module 'qdrun' has no attribute 'no_such_name'; see docs/language.md for what there is",
        "`import qdrun.lang` is not available: it is an inner module of Quadrants",
        "  do: the names that programs need are names of `qd`",
        "f64",
    ]
    done = subprocess.run([*command[:3]], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and "usage: python -m qdrun.compat [-h] [--frames N] [--save FOLDER]" in done.stderr


def test_the_names_and_the_modules_are_those_of_qdrun():
    assert quadrants.f32 is qdrun.f32 and quadrants.Vector is qdrun.Vector and quadrants.math is qdrun.math
    assert vec3 is qdrun.math.vec3 and qdrun.math.__spec__.name == qdrun.math.__name__
    assert {"kernel", "field", "install"} <= set(dir(quadrants))
    with pytest.raises(qdrun.QdrunTypeError, match="`Mesh` is not available"):
        quadrants.Mesh()


@pytest.fixture
def no_taichi(monkeypatch):
    monkeypatch.delitem(sys.modules, "taichi", raising=False)
    yield
    quadrants.uninstall()


def test_a_package_is_taken_only_while_it_is_installed(no_taichi, monkeypatch):
    quadrants.install(["taichi"])
    import taichi
    import taichi.types
    from taichi._lib import core
    from taichi.graph import GraphBuilder

    assert (
        core.GGUI_AVAILABLE is True
        and core.with_vulkan() in (True, False)
        and not core.with_opengl()
        and taichi.graph.GraphBuilder is GraphBuilder
    )
    assert taichi.types is qdrun.types and taichi.i32 is qdrun.i32 and taichi.TaichiNameError is qdrun.QdrunNameError
    quadrants.uninstall()
    assert not {"taichi", "taichi.types"} & set(sys.modules)
    monkeypatch.setitem(sys.modules, "taichi", sys)
    with pytest.raises(qdrun.QdrunImportError, match=r"(?s)`taichi` has been imported already\n  do: call install\(\) before"):
        quadrants.install()
    with pytest.raises(qdrun.QdrunImportError, match="'numpy' is not one of 'quadrants', 'taichi'"):
        quadrants.install(["numpy"])


def test_messages_go_to_the_logger_with_the_line_of_the_caller(caplog):
    from qdrun import _logging

    before = _logging.LOGGER.level
    try:
        qdrun.set_logging_level("info")
        with caplog.at_level(5, logger="root"):
            _logging.info("{} of {n} %s", 1, n=2)
            qdrun.debug("not passed on")
            for level in ("warn", "error", "critical"):
                getattr(qdrun, level)(level)
            qdrun.set_logging_level("trace")
            qdrun.trace("passed on")
    finally:
        _logging.LOGGER.setLevel(before)
    assert [r.getMessage() for r in caplog.records] == ["1 of 2 %s", "warn", "error", "critical", "passed on"]
    assert [r.levelno for r in caplog.records] == [20, logging.WARNING, 40, 50, 5]
    assert {r.filename for r in caplog.records} == {"test_compat.py"}


def test_a_graph_of_taichi_launches_its_kernels_in_order():
    from qdrun.compiler.lang.compat.taichi_graphs import Arg, ArgKind, GraphBuilder

    with qdrun.init(offline_cache=False):

        @qdrun.kernel
        def scale(x: qdrun.types.ndarray(ndim=1), by: qdrun.f32):
            for i in x:
                x[i] *= by

        @qdrun.kernel
        def add(x: qdrun.types.ndarray(ndim=1), v: qdrun.types.vector(2, qdrun.f32)):
            for i in x:
                x[i] += v[0] - v[1]

        x, by = Arg(ArgKind.NDARRAY, "x", qdrun.f32, ndim=1), Arg(ArgKind.SCALAR, "by", qdrun.f32)
        v = [Arg(ArgKind.SCALAR, name, qdrun.f32) for name in ("v0", "v1")]
        builder = GraphBuilder()
        step = builder.create_sequential()
        step.dispatch(scale, x, by)
        step.dispatch(add, x, v)
        for _ in range(2):
            builder.append(step)
        builder.dispatch(scale, x, by)
        graph, array = builder.compile(), qdrun.ndarray(qdrun.f32, 3)
        array.fill(1.0)
        graph.run({"x": array, "by": 2.0, "v0": 5.0, "v1": 1.0})
        assert array.to_numpy().tolist() == [((1 * 2 + 4) * 2 + 4) * 2] * 3
        for args, said in (
            ({"x": array, "by": 2.0}, r"a run of a graph misses \['v0', 'v1'\]"),
            ({"x": array, "by": 2.0, "v0": 1.0, "v1": 1.0, "w": 1}, r"a run of a graph has no arguments \['w'\]"),
            (
                {"x": 1.0, "by": 2.0, "v0": 1.0, "v1": 1.0},
                "the argument `x` of a graph has the kind ndarray, and a float is given",
            ),
        ):
            with pytest.raises(qdrun.QdrunRuntimeError, match=said):
                graph.run(args)
        with pytest.raises(qdrun.QdrunTypeError, match=r"a launch of a graph takes ti\.graph\.Arg, not a float"):
            builder.dispatch(scale, x, 2.0)
        with pytest.raises(qdrun.QdrunTypeError, match="`Texture` is not available"):
            Arg(ArgKind.TEXTURE, "t")
