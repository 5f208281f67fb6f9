"""The source cache: a fresh process reuses what another has compiled, and never when anything that lowering looked up has changed."""

import contextlib
import importlib
import importlib.util
import json
import linecache
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.compile import keys, pipeline, serialized_kernel
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.runtime.cache import DiskCache

MODEL = """
import enum
import math
import types
import qdrun as qd

GAIN = 2.0
SIZES = (3, 4)
LIMITS = types.SimpleNamespace(low=0.25, inner=types.SimpleNamespace(high=8.0))


class Mode(enum.Enum):
    A = 1
    B = 2


MODE = Mode.A


def scale(k):
    return k * 10.0


def make(shape=6, dtype=qd.f64, needs_grad=True, offset=1.0):
    x = qd.field(dtype, shape=shape, needs_grad=needs_grad)
    y = qd.field(dtype, shape=shape, needs_grad=needs_grad)
    z = qd.field(dtype, shape=shape, needs_grad=needs_grad)
    fields = [x, z]

    @qd.func
    def twist(v, k=3.0):
        return v * GAIN + k

    @qd.kernel
    def run(n: qd.template()):
        for i in x:
            v = twist(x[i]) + offset + LIMITS.low * LIMITS.inner.high + n
            for f in qd.static(fields):
                v += f[i] * f[i]
            if qd.static(SIZES[1] > 3):
                v += math.pi
            for _ in range(2):
                v = v * 0.5 + scale(2)
            y[i] = v

    return x, y, z, run


@qd.data_oriented
class Body:
    def __init__(self, mass=2.0, shape=6):
        self.mass = mass
        self.x = qd.field(qd.f64, shape=shape, needs_grad=True)
        self.parts = {"a": 1.5}

    @qd.func
    def push(self, v):
        return v * self.mass + self.parts["a"]

    @qd.kernel
    def step(self):
        for i in self.x:
            self.x[i] = self.push(1.0 * i)
"""


class Session:
    """A process of its own, as far as the caches can tell: the source module is read again, nothing is known but what lies on disk."""

    def __init__(self, tmp_path, monkeypatch):
        self.file = tmp_path / "model.py"
        self.monkeypatch = monkeypatch
        self.counts = {}
        monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.delenv("QDRUN_PRINT", raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else Python takes that of a text of the same length and second
        monkeypatch.setattr(keys, "compiler_digest", lambda: "these sources")
        for name in ("lower", "simplify", "reverse_kernel"):
            self._count(name)

    def _count(self, name):
        f = getattr(pipeline, name)

        def counted(*args, **kw):
            self.counts[name] = self.counts.get(name, 0) + 1
            return f(*args, **kw)

        self.monkeypatch.setattr(pipeline, name, counted)

    def module(self, text=MODEL):
        CACHE.clear()
        self.counts.clear()
        self.file.write_text(text)
        linecache.clearcache()
        spec = importlib.util.spec_from_file_location("model", self.file)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found

    def run(self, text=MODEL, n=5, options=None, **kw):
        """Forward and gradient of the model; returns the gradient and the number of lowerings."""
        with qd.init(arch=qd.cpu, **(options or {})):
            x, y, z, run = self.module(text).make(**kw)
            x.from_numpy(np.linspace(0.1, 1.0, x.shape[0]))
            z.from_numpy(np.linspace(-1.0, 0.3, x.shape[0]))
            run(n)
            value = y.to_numpy()
            if kw.get("needs_grad", True):
                y.grad.fill(1.0)
                run.grad(n)
                return (value, x.grad.to_numpy(), z.grad.to_numpy()), self.counts.get("lower", 0)
            return (value,), self.counts.get("lower", 0)


@pytest.fixture
def session(tmp_path, monkeypatch):
    return Session(tmp_path, monkeypatch)


def expected(gain=2.0, offset=1.0, n=5, k=3.0):
    x, z = np.linspace(0.1, 1.0, 6), np.linspace(-1.0, 0.3, 6)
    v = x * gain + k + offset + 2.0 + n + x * x + z * z + np.pi
    v = (v * 0.5 + 20.0) * 0.5 + 20.0
    return v, (gain + 2 * x) / 4, z / 2


def test_the_same_source_is_not_lowered_simplified_or_reversed_again(session):
    first, lowered = session.run()
    assert lowered == 1
    again, lowered = session.run()
    assert lowered == 0 and session.counts == {}
    for a, b, c in zip(first, again, expected()):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-12)


CHANGES = {
    "a global constant": (MODEL.replace("GAIN = 2.0", "GAIN = 3.0"), {}, {"gain": 3.0}),
    "a number's type": (MODEL.replace("GAIN = 2.0", "GAIN = 2"), {}, {}),
    "the body of a function": (MODEL.replace("v * GAIN + k", "v * GAIN - k"), {}, {"k": -3.0}),
    "a default": (MODEL.replace("k=3.0", "k=4.0"), {}, {"k": 4.0}),
    "a closure value": (MODEL, {"offset": 1.5}, {"offset": 1.5}),
    "an attribute of an object": (MODEL.replace("high=8.0", "high=12.0"), {}, {"offset": 2.0}),
    "an item of a tuple": (MODEL.replace("SIZES = (3, 4)", "SIZES = (3, 3)"), {}, {"offset": 1.0 - np.pi}),
    "what a Python function gives": (MODEL.replace("k * 10.0", "k * 11.0"), {}, None),
    "a template argument": (MODEL, {"n": 6}, {"n": 6}),
    "a template argument's type": (MODEL, {"n": 5.0}, {}),
    "the kernel": (MODEL.replace("v * 0.5 + scale", "0.5 * v + scale"), {}, {}),
    "where the kernel stands": ("\n" + MODEL, {}, {}),
    "a field's shape": (MODEL, {"shape": 7}, None),
    "a field's type": (MODEL, {"dtype": qd.f32}, None),
    "a field's gradient": (MODEL, {"needs_grad": False}, None),
    "which field": (MODEL.replace("fields = [x, z]", "fields = [z, x]"), {}, {}),
    "fields that are one": (MODEL.replace("fields = [x, z]", "fields = [x, x]"), {}, None),
    "the number of fields": (MODEL.replace("fields = [x, z]", "fields = [x]"), {}, None),
    "the default type": (MODEL, {"options": {"default_fp": qd.f64}}, {}),
    "bounds checks": (MODEL, {"options": {"check_out_of_bound": True}}, {}),
    "debug": (MODEL, {"options": {"debug": True}}, {}),
    "lanes": (MODEL, {"options": {"cpu_lanes": 4}}, {}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_a_miss(session, what):
    text, keywords, values = CHANGES[what]
    session.run()
    result, lowered = session.run(text, **keywords)
    assert lowered == 1, f"{what} changed, and the kernel was reused"
    if values is not None:
        wanted = expected(**values)
        for a, b in zip(result, wanted):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    assert session.run(text, **keywords)[1] == 0, "the second of two equal processes lowered again"
    first, lowered = session.run()
    assert lowered == 0, "what was compiled before the change is forgotten"
    np.testing.assert_allclose(first[1], expected()[1], rtol=1e-12)


def test_static_methods_of_ours_are_known_by_name(session):
    """`qd.Matrix.identity` and its like are the same in every process."""
    text = MODEL.replace("            y[i] = v", "            v += qd.Matrix.identity(qd.f64, 2)[0, 0]\n            y[i] = v")
    first, lowered = session.run(text)
    again, afterwards = session.run(text)
    assert (lowered, afterwards) == (1, 0)
    np.testing.assert_array_equal(first[0], again[0])


def test_a_python_function_counts_by_what_it_gives(session):
    session.run()
    assert session.run(MODEL.replace("k * 10.0", "k * 9.0 + 2.0"))[1] == 0


TYPES = """
import dataclasses
import qdrun as qd

VEC = qd.types.vector(2, qd.f64)
PAIR = qd.types.struct(a=qd.f64, b=VEC)
HOST = qd.Vector([1.0, 2.0])


@dataclasses.dataclass
class State:
    x: qd.types.ndarray(dtype=qd.f64, ndim=1)
    k: qd.template()
    GAIN = 1.0


@qd.data_oriented
class Holder:
    def __init__(self, n=4):
        self.data = qd.ndarray(qd.f64, (n,))
        self.scale = 3.0

    @qd.kernel
    def double(self):
        for i in self.data:
            self.data[i] = self.data[i] * self.scale + 1.0


def make():
    out = qd.field(qd.f64, shape=3)

    @qd.kernel
    def types():
        for i in out:
            p = PAIR(a=1.0 * i, b=VEC(2.0))
            out[i] = p.a + p.b[0] + HOST[1]

    @qd.kernel
    def state(s: State):
        for i in s.x:
            s.x[i] += s.k * s.GAIN

    return out, types, state
"""


def use_types(session, text=TYPES, k=2.0, n=4):
    with qd.init(arch=qd.cpu):
        module = session.module(text)
        out, types, state = module.make()
        types()
        array = qd.ndarray(qd.f64, (3,))
        state(module.State(array, k))
        holder = module.Holder(n)
        holder.double()
        holder.data = qd.ndarray(qd.f64, (n,))
        holder.double()
        result = out.to_numpy().tolist(), array.to_numpy().tolist(), holder.data.to_numpy().tolist()
        return result, session.counts.get("lower", 0)


def test_types_structs_dataclasses_and_arrays_of_objects(session):
    first, lowered = use_types(session)
    assert first == ([4.0, 5.0, 6.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0])
    assert lowered == 3
    assert use_types(session) == (first, 0)
    assert use_types(session, n=9)[1] == 0, "the array comes with the launch: its extent is no part of the kernel"
    assert use_types(session, k=5.0)[0][1] == [5.0, 5.0, 5.0]
    for old, new in (
        ("vector(2, qd.f64)", "vector(2, qd.f32)"),
        ("vector(2, qd.f64)", "vector(3, qd.f64)"),
        ("struct(a=qd.f64,", "struct(a=qd.f32,"),
        ("HOST = qd.Vector([1.0, 2.0])", "HOST = qd.Vector([1.0, 4.0])"),
        ("GAIN = 1.0", "GAIN = 3.0"),
    ):
        _, lowered = use_types(session, TYPES.replace(old, new))
        assert lowered == 1, (old, new)
    changed, _ = use_types(
        session, TYPES.replace("self.scale = 3.0", "self.scale = 4.0").replace("+ 1.0", "+ 1.0 + self.scale")
    )
    assert changed[2] == [5.0, 5.0, 5.0, 5.0]


def body(session, text=MODEL, **kw):
    with qd.init(arch=qd.cpu):
        made = session.module(text).Body(**kw)
        made.step()
        return made.x.to_numpy(), session.counts.get("lower", 0)


def test_attributes_of_a_data_oriented_object(session):
    values, lowered = body(session)
    assert lowered == 1
    np.testing.assert_array_equal(values, np.arange(6) * 2.0 + 1.5)
    assert body(session)[1] == 0
    values, lowered = body(session, mass=3.0)
    assert lowered == 1
    np.testing.assert_array_equal(values, np.arange(6) * 3.0 + 1.5)
    values, lowered = body(session, MODEL.replace('"a": 1.5', '"a": 2.5'))
    assert lowered == 1
    np.testing.assert_array_equal(values, np.arange(6) * 2.0 + 2.5)
    assert body(session, shape=7)[1] == 1
    assert body(session)[1] == 0
    values, lowered = body(session, MODEL.replace("v * self.mass +", "v * self.mass -"))
    assert lowered == 1
    np.testing.assert_array_equal(values, np.arange(6) * 2.0 - 1.5)


UNSAFE = {
    "a comparison with an object": "v += 1.0 if qd.static(MODE_BOX == OTHER) else 2.0",
    "a call with an object": "v += read(MODE_BOX)",
    "a class with a length": "v += len(MODE_BOX)",
    "an item of an object": "v += MODE_BOX[1]",
    "printing": "qd.static_print(v)",
    "random numbers of Python": "v += qd.static(random.random()) * 0.0",
}
EXTRA = """
import random

class Box:
    def __len__(self):
        return 4
    def __getitem__(self, k):
        return 2.0 * k

MODE_BOX, OTHER = Box(), Box()

def read(box):
    return 1.0
"""


@pytest.mark.parametrize("what", UNSAFE)
def test_what_cannot_be_followed_is_lowered_again(session, what):
    """Objects may be asked for attributes only; anything else makes the record worthless, and the kernel is lowered each time."""
    text = MODEL.replace("import enum", EXTRA + "import enum").replace(
        "            y[i] = v", f"            {UNSAFE[what]}\n            y[i] = v"
    )
    first, lowered = session.run(text)
    assert lowered == 1
    again, lowered = session.run(text)
    assert lowered == 1
    np.testing.assert_array_equal(first[0], again[0])


EFFECTS = MODEL.replace(
    "def scale(k):",
    """CALLS = []


class Logged:
    @property
    def gain(self):
        CALLS.append("gain")
        return 4.0


LOGGED = Logged()


def scale(k):
    CALLS.append("scale")""",
).replace("v = v * 0.5 + scale(2)", "v = v * 0.5 + scale(2) + LOGGED.gain - 4.0")


def test_functions_and_properties_with_effects_run_once_for_each_lowering(session):
    wanted = expected()
    for text in (EFFECTS, EFFECTS, EFFECTS.replace("GAIN = 2.0", "GAIN = 3.0"), EFFECTS):  # a miss is lowered, and nothing else
        with qd.init(arch=qd.cpu):
            module = session.module(text)
            x, y, z, run = module.make()
            x.from_numpy(np.linspace(0.1, 1.0, 6))
            z.from_numpy(np.linspace(-1.0, 0.3, 6))
            run(5)
            assert (module.CALLS, session.counts["lower"]) == (["scale", "gain"], 1)
            values = y.to_numpy()
        np.testing.assert_allclose(values, (wanted if "GAIN = 2.0" in text else expected(gain=3.0))[0], rtol=1e-12)


def test_enums_and_calls_are_followed(session):
    text = MODEL.replace(
        "            y[i] = v",
        "            if qd.static(MODE == Mode.A):\n                v += scale(0.5)\n            y[i] = v",
    )
    first, _ = session.run(text)
    again, lowered = session.run(text)
    assert lowered == 0
    np.testing.assert_array_equal(first[0], again[0])
    other, lowered = session.run(text.replace("MODE = Mode.A", "MODE = Mode.B"))
    assert lowered == 1
    np.testing.assert_allclose(other[0], first[0] - 5.0, rtol=1e-12)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "noise"])
def test_damaged_entries_are_compiled_again(session, tmp_path, damage):
    first, _ = session.run()
    for path in (tmp_path / "cache").rglob("*.qdo"):
        data = path.read_bytes()
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"cut": data[:middle], "flip": flipped, "empty": b"", "noise": os.urandom(len(data))}[damage])
    again, lowered = session.run()
    assert lowered == 1
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
    assert session.run()[1] == 0


CALL = b"\x80\x04\x8c\x1aqdrun.compiler.runtime.cpu\x8c\x0aos.getppid\x93)R."  # pickle: os.getppid()
FORGED = {
    "a list": b"[[3]]",
    "nothing": b"",
    "a length": b"\xff" * 8,
    "a call": (8 + len(CALL)).to_bytes(8, "little") + bytes(8) + CALL,
    "a path that calls": b'[[["name", 0, "os"], ["name", 0, "os", ["attr", "getppid"], ["call", [[], []]]]]]',
    "another format": (9).to_bytes(8, "little") + b"[9,[],[]]",
}


@pytest.mark.parametrize("content", FORGED)
def test_entries_with_a_right_checksum_that_make_no_sense_are_lowered_again_and_run_nothing(
    session, tmp_path, monkeypatch, content
):
    text = MODEL.replace("import enum", "import os\nimport enum")
    first, _ = session.run(text)
    disk = DiskCache(tmp_path / "cache")
    for path in (tmp_path / "cache").rglob("*.qdo"):
        disk.put(path.stem, FORGED[content], {"numbers": [0, 1]})
    monkeypatch.setattr(os, "getppid", lambda: pytest.fail("code of the cache was run"))
    again, lowered = session.run(text)
    assert lowered == 1
    np.testing.assert_array_equal(first[1], again[1])


def test_any_entry_may_be_missing(session, tmp_path):
    first, _ = session.run()
    for path in sorted((tmp_path / "cache").rglob("*.qdo")):
        data = path.read_bytes()
        path.unlink()
        again, _ = session.run()
        for a, b in zip(first, again):
            np.testing.assert_array_equal(a, b)
        path.write_bytes(data)


def test_a_disk_that_is_full_or_read_only_changes_nothing(session, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qdrun.compiler.runtime.cache.os.replace", full)
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        first, lowered = session.run()
    assert lowered == 1
    np.testing.assert_allclose(first[1], expected()[1], rtol=1e-12)
    assert session.run()[1] == 1
    monkeypatch.undo()


def test_no_disk_when_the_cache_is_off(session, tmp_path):
    session.run(options={"offline_cache": False})
    assert not list((tmp_path / "cache").rglob("*.qdo")) or session.run(options={"offline_cache": False})[1] == 1


def test_programs_of_one_process_share_a_kernel_without_lowering(session):
    module = session.module()
    for _ in range(3):
        with qd.init(arch=qd.cpu):
            x, _, _, run = module.make()
            run(5)
            assert x.shape == (6,)
    assert session.counts["lower"] == 1


def test_messages_of_a_cached_kernel_name_the_same_lines(session):
    text = MODEL.replace("            y[i] = v", "            assert v < 0.0, 'too large: {}'\n            y[i + 100] = v")
    seen = []
    for _ in range(2):
        with qd.init(arch=qd.cpu, debug=True):
            _, _, _, run = session.module(text).make()
            with pytest.raises(qd.QdrunAssertionError) as error:
                run(5)
            seen.append((str(error.value), session.counts.get("lower", 0)))
    assert seen[0][0] == seen[1][0] and "model.py" in seen[0][0]
    assert [lowered for _, lowered in seen] == [1, 0]


def test_the_tape_of_a_cached_kernel_keeps_the_same_elements(session):
    seen = []
    for _ in range(2):
        with qd.init(arch=qd.cpu):
            x, y, _, run = session.module().make()
            loss = qd.field(qd.f64, shape=(), needs_grad=True)
            with qd.ad.Tape(loss=loss):
                run(5)
                x.fill(2.0)
                seen.append(qd.current_program().usage()["tape"])
            assert y.shape == (6,)
    assert seen[0] == seen[1] > 0
    assert session.counts.get("lower", 0) == 0


def test_threads_may_compile_the_same_kernel_at_once(session):
    module = session.module()
    found, errors = [], []

    def work():
        try:
            with qd.init(arch=qd.cpu):
                x, _, _, run = module.make()
                run(5)
                found.append(x.shape)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and len(found) == 4
    assert session.run()[1] == 0


SCRIPT = """
import json, sys
sys.path.insert(0, {folder!r})
import qdrun as qd
from qdrun.compiler.compile import keys, pipeline
keys.compiler_digest = lambda: "these sources"
counts = {{}}
for name in ("lower", "simplify", "reverse_kernel"):
    def counted(*args, f=getattr(pipeline, name), name=name, **kw):
        counts[name] = counts.get(name, 0) + 1
        return f(*args, **kw)
    setattr(pipeline, name, counted)
import model
qd.init(arch=qd.cpu)
x, y, z, run = model.make()
x.fill(0.5)
run(5)
y.grad.fill(1.0)
run.grad(5)
print(json.dumps([counts, y.to_numpy().tolist(), x.grad.to_numpy().tolist()]))
"""


@pytest.mark.slow
def test_processes_share_what_they_compile(tmp_path):
    """Two at once into an empty folder, then a third."""
    (tmp_path / "model.py").write_text(MODEL)
    environment = {**os.environ, "QDRUN_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", SCRIPT.format(folder=str(tmp_path))]
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)) for _ in range(2)
        ]
        results = [json.loads(p.communicate(timeout=300)[0]) for p in both]
    third = json.loads(subprocess.run(command, capture_output=True, env=environment, text=True, check=True).stdout)
    assert third[0] == {}
    assert results[0][1:] == results[1][1:] == third[1:]
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_the_key_covers_the_compiler_itself(tmp_path, monkeypatch):
    """The digest is of the sources' content, and there is none when they changed after this process began to load them."""
    root = tmp_path / "compiler"
    (root / "lang").mkdir(parents=True)
    (root / "a.py").write_text("x = 1\n")
    fake = root / "lang" / "keys.py"
    fake.write_text("")
    for path in root.rglob("*.py"):
        os.utime(path, (1e9, 1e9))
    monkeypatch.setattr(keys, "__file__", str(fake))
    digest = keys.compiler_digest.__wrapped__
    first = digest()
    assert first is not None and digest() == first
    (root / "a.py").write_text("x = 2\n")
    with pytest.warns(RuntimeWarning, match=r"lowers every kernel again .*a\.py was written after this process began"):
        assert digest() is None
    os.utime(root / "a.py", (1e9, 1e9))
    assert digest() not in (None, first)
    changed = digest()
    os.utime(root / "a.py", (4e9, 4e9))  # an archive from a machine whose clock is wrong
    with pytest.warns(RuntimeWarning, match="was written after"):
        assert digest() is None
    monkeypatch.setattr(keys, "LOADED", time.time() + 60)
    assert digest() == changed


def test_a_kernel_that_cannot_be_stored_says_so(session, monkeypatch):
    def refuse(*_):
        raise serialized_kernel.StoreError("a Surprise does not belong here")

    monkeypatch.setattr(serialized_kernel, "pack", refuse)
    with pytest.warns(
        RuntimeWarning, match=r"kernel `run` \(forward\) is not kept on disk, .*: a Surprise does not belong here"
    ):
        first, lowered = session.run(needs_grad=False)
    assert lowered == 1
    np.testing.assert_allclose(first[0], expected()[0], rtol=1e-12)


def test_a_fault_of_our_own_in_reading_an_entry_is_no_miss(session, monkeypatch):
    session.run()

    def broken(*_):
        raise TypeError("a fault of the compiler")

    monkeypatch.setattr(serialized_kernel, "unpack", broken)
    with pytest.raises(TypeError, match="a fault of the compiler"):
        session.run()


def test_a_key_is_compiled_once_however_many_threads_ask(session):
    """Each thread in a program of its own, all at once; then in another process, which reads each file once."""

    def run(module, begin, results, k):
        with qd.init(arch=qd.cpu, cpu_max_num_threads=1):
            x, y, z, kernel = module.make()
            x.from_numpy(np.linspace(0.1, 1.0, 6))
            z.from_numpy(np.linspace(-1.0, 0.3, 6))
            begin.wait()
            kernel(5)
            results[k] = y.to_numpy()

    def at_once():
        module, begin, results = session.module(), threading.Barrier(4), {}
        made = [threading.Thread(target=run, args=(module, begin, results, k)) for k in range(4)]
        for thread in made:
            thread.start()
        for thread in made:
            thread.join()
        for k in range(4):
            np.testing.assert_allclose(results[k], expected()[0], rtol=1e-12)
        return dict(session.counts)

    read, real = [], serialized_kernel.unpack
    session.monkeypatch.setattr(serialized_kernel, "unpack", lambda data, *a: read.append(data) or real(data, *a))
    counts = at_once()
    assert counts["simplify"] == 1 and 1 <= counts["lower"] <= 4 and read == []
    assert at_once() == {} and len(read) == 1
