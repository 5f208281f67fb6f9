"""What fields and ndarrays of a batched program are to Python: an array for each trial."""

import copy
import pickle

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.ir.trials import trial_bytes

COUNTS = (1, 2, 3, 8, 17, 1000)


@pytest.fixture
def rng():
    return np.random.default_rng(16)


def program(count, **options):
    return qd.init(arch=qd.cpu, batch=count, default_fp=qd.f64, **options)


def everything(rng, count):
    """Fields and ndarrays of many kinds, each with the shape that ``to_numpy`` shows, without trials."""
    S = qd.types.struct(pos=qd.types.vector(3, qd.f32), mass=qd.f64, kind=qd.i8)
    s = S.field(shape=(5,))
    level = qd.root.dense(qd.ij, (2, 3))
    a, b = qd.field(qd.f32), qd.Vector.field(2, qd.f64)
    level.place(a, b)
    blocks = [
        (qd.field(qd.f64, ()), ()),
        (qd.field(qd.i8, 3), (3,)),
        (qd.field(qd.f32, (4, 5), order="ji"), (4, 5)),
        (qd.field(qd.i64, (2, 2), offset=(-1, 3)), (2, 2)),
        (qd.Vector.field(3, qd.f32, shape=7), (7, 3)),
        (qd.Vector.field(3, qd.f32, shape=7, layout=qd.Layout.SOA), (7, 3)),
        (qd.Matrix.field(2, 3, qd.f64, shape=(2,)), (2, 2, 3)),
        (a, (2, 3)),
        (b, (2, 3, 2)),
        (s.pos, (5, 3)),
        (s.mass, (5,)),
        (s.kind, (5,)),
        (qd.field(qd.f64, 4, needs_grad=True).grad, (4,)),
        (qd.ndarray(qd.f64, ()), ()),
        (qd.ndarray(qd.f32, (3, 4), layout=(1, 0)), (3, 4)),
        (qd.Vector.ndarray(3, qd.f32, 5), (5, 3)),
        (qd.Matrix.ndarray(2, 2, qd.i16, (2, 3)), (2, 3, 2, 2)),
        (qd.ndarray(qd.f64, 6, needs_grad=True).grad, (6,)),
        (qd.tensor(qd.f32, (2, 3), backend=qd.Backend.FIELD, layout=(1, 0)), (2, 3)),
    ]
    return [(x, rng.integers(-100, 100, (count, *shape)).astype(x.dtype.numpy)) for x, shape in blocks]


@pytest.mark.parametrize("lanes", [0, 1, 4, 16])
@pytest.mark.parametrize("count", COUNTS)
def test_what_is_written_for_all_trials_is_read_back_and_nothing_else_changes(rng, count, lanes):
    p = program(count, cpu_lanes=lanes)
    known = everything(rng, count)
    for x, columns in known:
        x.from_numpy(columns)
    for x, columns in known:
        found = x.to_numpy()
        assert found.dtype == columns.dtype and np.array_equal(found, columns), x
        assert np.array_equal(np.asarray(x), columns)
    for x, columns in known:
        for b in {0, count // 2, count - 1}:
            with p.trial(b):
                assert np.array_equal(x.to_numpy(), columns[b]), x


@pytest.mark.parametrize("count", [1, 3, 17])
def test_a_trial_is_written_alone(rng, count):
    p = program(count)
    known = everything(rng, count)
    for x, columns in known:
        x.from_numpy(columns)
    for b in {0, count - 1, count // 2}:
        with p.trial(b):
            for x, columns in known:
                columns[b] = rng.integers(0, 99, columns.shape[1:])
                x.from_numpy(columns[b])
    for x, columns in known:
        assert np.array_equal(x.to_numpy(), columns), x


def test_elements_are_written_in_all_trials_and_read_in_one(rng):
    p = program(11)
    x, v, t = qd.field(qd.f64, (3, 4)), qd.Vector.field(3, qd.f32, 2), qd.ndarray(qd.f64, (2, 3), layout=(1, 0))
    x[1, 2], v[1], t[1, 2] = 7.0, [1, 2, 3], 5.0
    for tensor, at, value in ((x, (1, 2), 7.0), (v, (1,), [1, 2, 3]), (t, (1, 2), 5.0)):
        found = tensor.to_numpy()
        assert (found[(slice(None), *at)] == value).all() and np.count_nonzero(found) == 11 * np.size(value)
    with p.trial(9):
        assert x[1, 2] == 7.0 and isinstance(x[1, 2], float) and v[1].to_list() == [1, 2, 3]
        x[0, 0] = 3.0
        v[1].y = 9
        v[0][2] += 4
        t.fill(2)
    assert np.argwhere(x.to_numpy() == 3.0).tolist() == [[9, 0, 0]]
    assert np.argwhere(v.to_numpy() == 9).tolist() == [[9, 1, 1]] and v.to_numpy()[9, 0, 2] == 4
    assert (t.to_numpy()[9] == 2).all() and np.count_nonzero(t.to_numpy()[:9]) == 9
    x.fill(1.5)
    v.fill([4, 5, 6])
    assert (x.to_numpy() == 1.5).all() and (v.to_numpy() == [4, 5, 6]).all()


def test_an_array_of_one_trial_goes_to_all(rng):
    program(9)
    x, v, t = qd.field(qd.f64, (3, 4)), qd.Vector.field(3, qd.f32, 9), qd.ndarray(qd.f64, 5)
    for tensor, shape in ((x, (3, 4)), (v, (9, 3)), (t, (5,))):
        one = rng.random(shape).astype(tensor.dtype.numpy)
        tensor.from_numpy(one)
        assert np.array_equal(tensor.to_numpy(), np.broadcast_to(one, (9, *shape)))
    columns = rng.random((9, 9, 3)).astype(np.float32)
    v.from_numpy(columns)
    assert np.array_equal(v.to_numpy(), columns)
    v.from_numpy(columns[..., None])
    assert np.array_equal(v.to_numpy(keep_dims=True), columns[..., None])
    v.from_numpy(columns[:, :, None, :])
    assert np.array_equal(v.to_numpy(), columns)
    with pytest.raises(qd.QdrunTypeError, match=r"has shape \(9, 3, 4\) with all trials, \(3, 4\) with one; the array has"):
        x.from_numpy(np.zeros((8, 3, 4)))


def test_memory_is_what_the_layout_says_to_the_byte():
    for count in COUNTS:
        p = program(count)
        width = p.trials.width
        groups = -(-count // width)
        qd.field(qd.f64, (), needs_grad=True)
        qd.field(qd.f32, 3)
        qd.Vector.field(3, qd.f32, 2, needs_grad=True)
        qd.field(qd.i32, 5, per_trial=False)
        p.materialize()
        # one trial: f64 at 0, three f32 at 8, six f32 at 24; gradients at 0 and 8
        own = groups * width
        assert p.usage() == {"fields": own * 48 + 20, "gradients": own * 32, "trials": own * 72}
        arrays = [qd.ndarray(qd.f32, (3, 3), needs_grad=True), qd.ndarray(qd.i32, 3, per_trial=False)]
        assert p.usage()["ndarrays"] == groups * width * trial_bytes(36) + 12
        assert p.usage()["gradients"] == groups * width * (32 + trial_bytes(36))
        del arrays
        p.close()


def test_trials_that_do_not_fit_name_the_largest_field():
    program(1000, memory_limit=1 << 20)
    qd.field(qd.f64, 10)
    qd.field(qd.f64, 200, name="long")
    with pytest.raises(
        qd.OutOfMemory, match=r"(?s)`long` of shape \(200,\).* for each of 1,0\d\d trials.*fewer trials \(batch=..\)"
    ):
        qd.sync()
        qd.root.program.materialize()


def test_what_trials_share_is_one_array(rng):
    p = program(6)
    ends, table = qd.field(qd.i32, 4, per_trial=False), qd.Vector.ndarray(2, qd.f64, 3, per_trial=False)
    ends.from_numpy(np.arange(4))
    table.fill(1.5)
    ends[3] = 9
    assert ends[3] == 9 and ends.to_numpy().tolist() == [0, 1, 2, 9] and table[2].to_list() == [1.5, 1.5]
    if p.device.on_host:
        assert ends.view.shape == (4,) and ends.to_numpy(copy=False) is not None and table.view.shape == (3, 2)
    with p.trial(2):
        assert ends[3] == 9
    x = qd.field(qd.i32, 4)
    x.copy_from(ends)
    assert (x.to_numpy() == [0, 1, 2, 9]).all()
    y = qd.field(qd.i32, 4)
    columns = rng.integers(0, 99, (6, 4)).astype(np.int32)
    x.from_numpy(columns)
    y.copy_from(x)
    assert np.array_equal(y.to_numpy(), columns)
    with pytest.raises(qd.QdrunRuntimeError, match=r"has one for each of 6 trials\n  do: copy inside of `with program.trial"):
        ends.copy_from(x)
    with p.trial(4):
        ends.copy_from(x)
    assert ends.to_numpy().tolist() == columns[4].tolist()


SHARED_GRADIENTS = {
    "field": lambda: qd.field(qd.f64, 3, needs_grad=True, per_trial=False),
    "vectors": lambda: qd.Vector.field(3, qd.f64, 3, needs_dual=True, per_trial=False),
    "ndarray": lambda: qd.ndarray(qd.f64, 3, needs_grad=True, per_trial=False),
    "placed": lambda: qd.root.dense(qd.i, 3).place((x := qd.field(qd.f64, per_trial=False)), x.grad),
}


@pytest.mark.parametrize("make", SHARED_GRADIENTS.values(), ids=SHARED_GRADIENTS.keys())
def test_what_trials_share_has_no_gradient(make):
    program(3)
    with pytest.raises(qd.QdrunRuntimeError, match=r"per_trial=False is shared by all trials .* has no gradient"):
        make()


def test_lazy_gradients_leave_out_what_trials_share():
    program(3)
    x, y = qd.field(qd.f64), qd.field(qd.f64, per_trial=False)
    qd.root.dense(qd.i, 3).place(x, y)
    qd.root.lazy_grad()
    assert x.has_grad() and not y.has_grad()
    assert x.grad.to_numpy().shape == (3, 3)


def test_the_keyword_changes_nothing_without_a_batch():
    p = qd.init(arch=qd.cpu)
    x, a = qd.field(qd.f64, 3, needs_grad=True, per_trial=False), qd.ndarray(qd.f64, 2, needs_grad=True, per_trial=False)
    v, m = qd.Vector.field(2, qd.f32, 2, per_trial=False), qd.Matrix.ndarray(2, 2, qd.f32, 2, per_trial=False)
    s = qd.types.struct(a=qd.f32).field(shape=2, per_trial=False)
    t = qd.tensor(qd.f64, 2, per_trial=False)
    for each in (x, a, v, m, s.a, t):
        each.fill(2)
        assert (each.to_numpy() == 2).all() and each.to_numpy().shape[0] in (2, 3)
    x.grad.fill(1)
    with p.trial(0):
        assert x[0] == 2
    with pytest.raises(qd.QdrunIndexError, match="the trials 0 to 0"), p.trial(1):
        pass


REFUSED = {
    "element": (lambda x: x[1], "is read in Python, and each of the 5 trials"),
    "view": (lambda x: x.view, "view of .*the 5 trials of this program lie side by side"),
    "zero copy": (lambda x: x.to_numpy(copy=False), "copy=False of"),
    "numpy": (lambda x: np.array(x, copy=False), "view of|copy=False of"),
    "dlpack": (lambda x: x.to_dlpack(), "DLPack of"),
    "from_dlpack": (np.from_dlpack, "DLPack of"),
}


@pytest.mark.parametrize(
    "make", [lambda: qd.field(qd.f64, 3, name="x"), lambda: qd.ndarray(qd.f64, 3), lambda: qd.tensor(qd.f64, 3)]
)
@pytest.mark.parametrize(("use", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_batched_is_refused(make, use, message):
    program(5)
    with pytest.raises(qd.QdrunRuntimeError, match=f"(?s){message}.*\n  do: "):
        use(make())


def test_torch_gets_copies(rng):
    torch = pytest.importorskip("torch")
    p = program(5)
    x, columns = qd.field(qd.f64, 3), rng.random((5, 3))
    x.from_torch(torch.from_numpy(columns))
    assert np.array_equal(x.to_numpy(), columns) and np.array_equal(x.to_torch().numpy(), columns)
    with p.trial(3):
        assert np.array_equal(x.to_torch().numpy(), columns[3])
    with pytest.raises(qd.QdrunValueError, match="copy=False of"):
        x.to_torch(copy=False)


def test_trials_are_opened_one_in_the_other_and_closed_by_errors():
    p = program(4)
    x = qd.field(qd.f64, ())
    x.from_numpy(np.arange(4.0))
    with p.trial(1):
        with p.trial(np.int64(3)):
            assert x[None] == 3
        assert x[None] == 1
    with pytest.raises(ZeroDivisionError), p.trial(2):
        1 / 0
    assert x.to_numpy().shape == (4,)
    for wrong in (4, -1, 1.0, None):
        with (
            pytest.raises(qd.QdrunIndexError, match=r"program.trial\(.*\): this program has the trials 0 to 3"),
            p.trial(wrong),
        ):
            pass


def test_recorders_and_single_trials_do_not_meet():
    p = program(4)
    x, loss = qd.field(qd.f64, (), needs_grad=True, needs_dual=True), qd.field(qd.f64, (), needs_grad=True, needs_dual=True)
    with pytest.raises(qd.QdrunRuntimeError, match="while launches are recorded"), qd.ad.Tape(loss):
        with p.trial(0):
            pass
    with pytest.raises(qd.QdrunRuntimeError, match="while launches are recorded"), qd.ad.FwdMode(loss=loss, param=x):
        with p.trial(0):
            pass
    for block in (qd.ad.Tape(loss), qd.ad.FwdMode(loss=loss, param=x)):
        with (
            pytest.raises(qd.QdrunRuntimeError, match=r"all trials, and `with program.trial\(2\):` is open"),
            p.trial(2),
            block,
        ):
            pass
    with pytest.raises(qd.QdrunRuntimeError, match="compares the gradient of one loss"), qd.ad.Tape(loss, grad_check=[x]):
        pass


def test_copies_and_pickles_keep_every_trial(rng):
    program(5)
    a, t, columns = qd.ndarray(qd.f64, 3), qd.tensor(qd.f64, (2, 3), layout=(1, 0)), rng.random((5, 3))
    shared = qd.ndarray(qd.i32, 2, per_trial=False)
    a.from_numpy(columns)
    t.from_numpy(np.stack([columns, columns], 1))
    shared.fill(4)
    assert np.array_equal(copy.deepcopy(a).to_numpy(), columns)
    assert np.array_equal(pickle.loads(pickle.dumps(a)).to_numpy(), columns)
    assert np.array_equal(pickle.loads(pickle.dumps(t)).to_numpy(), t.to_numpy())
    for made in (copy.deepcopy(shared), pickle.loads(pickle.dumps(shared))):
        assert made.to_numpy().tolist() == [4, 4]


def test_what_a_program_held_is_put_back(rng):
    p = program(9)
    x, a, kept, rest = qd.field(qd.f64, 3), qd.ndarray(qd.f64, 2), qd.field(qd.i32, 2), qd.field(qd.f32, 4)
    first, second = rng.random(3), rng.random(2)
    x.from_numpy(first)
    a.from_numpy(second)

    @qd.kernel
    def write(b: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in range(2):
            x[i] += 1.0
            rest[i] = 2.0
            b[i] = kept[i]

    found = p.first_values([(write, (a,))])
    assert not found.why
    kept.fill(7)  # no launch writes to it: it is not put back
    write(a)
    with p.trial(8):
        x.fill(-1)
    found.put_back()
    assert np.array_equal(x.to_numpy(), np.tile(first, (9, 1))) and np.array_equal(a.to_numpy(), np.tile(second, (9, 1)))
    assert kept.to_numpy().tolist() == [[7, 7]] * 9 and not rest.to_numpy().any()
    with p.trial(4):
        x[1] = 5.0
    assert p.first_values([(write, (a,))]).why == "`x` begins with other values in other trials"


def test_padding_repeats_the_last_trial(rng):
    p = program(3, cpu_lanes=8)
    x, columns = qd.field(qd.f64, 2), rng.random((3, 2))
    x.from_numpy(columns)
    padded = p.trials.padded
    assert padded > 3 and np.array_equal(x._content.reshape(padded, 2)[3:], np.broadcast_to(columns[2], (padded - 3, 2)))


@pytest.mark.parametrize("batch", [0, -1, 1.5, True, "8", [3]])
def test_a_batch_is_a_number_of_trials(batch):
    with pytest.raises(qd.QdrunRuntimeError, match=r"qd.init: batch=.* is not a number of trials\n  do: batch=1 or more"):
        qd.init(arch=qd.cpu, batch=batch)


def test_the_interpreter_runs_no_batch():
    with pytest.raises(
        qd.QdrunRuntimeError, match=r"batch=3, and the interpreter runs one simulation\n  do: qd.init\(arch=qd.cpu"
    ):
        qd.init(arch=qd.python, batch=3)


def test_a_batch_may_be_a_number_of_numpy():
    p = qd.init(arch=qd.cpu, batch=np.int32(5))
    assert p.options.batch == 5 and type(p.options.batch) is int and p.trials.count == 5
    assert qd.init(arch=qd.cpu).trials is None


def test_gradients_and_duals_are_cleared_in_every_trial():
    program(5)
    x, a = qd.field(qd.f64, 3, needs_grad=True, needs_dual=True), qd.ndarray(qd.f64, 2, needs_grad=True)
    for each in (x.grad, x.dual, a.grad):
        each.fill(3)
    qd.ad.clear_all_gradients()
    assert not x.grad.to_numpy().any() and not a.grad.to_numpy().any() and (x.dual.to_numpy() == 3).all()
    qd.ad.clear_all_gradients(qd.ad.SNodeGradType.DUAL)
    assert not x.dual.to_numpy().any()


def test_the_same_memory_as_a_field_of_one_component(rng):
    program(5)
    v, columns = qd.Vector.field(3, qd.f64, 2), rng.random((5, 2, 3))
    v.from_numpy(columns)
    assert np.array_equal(v.get_scalar_field(1).to_numpy(), columns[..., 1])
    v.get_scalar_field(2).fill(8)
    assert (v.to_numpy()[..., 2] == 8).all()
