"""Time loops inside a kernel: a field with a time axis is written and read in one task. Right where the order is proven, else refused."""

from __future__ import annotations

import importlib.util
import itertools
import random

import numpy as np
import pytest

import qdrun as qd

ROWS, STEPS, PAD = 3, 5, 4
SIZE = STEPS + 2 * PAD
_numbers = itertools.count()
HEAD = """
import qdrun as qd

def make(f, g, loss, n):
    @qd.kernel
    def run({args}):
        for i in range({rows}):
"""


def program(body, tmp_path, dynamic=False):
    """The kernel of a body over ``f`` and ``g`` (ROWS x SIZE), its fields, in f64."""
    path = tmp_path / f"time_{next(_numbers)}.py"
    lines = "".join(f"            {line}\n" for line in body)
    head = HEAD.format(args="n: qd.i32" if dynamic else "", rows=ROWS)
    path.write_text(f"{head}{lines}    return run\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    f, g = (qd.field(qd.f64, shape=(ROWS, SIZE), needs_grad=True) for _ in range(2))
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    kernel = module.make(f, g, loss, STEPS)
    return (lambda: kernel(STEPS)) if dynamic else kernel, f, g, loss


def gradient_and_differences(body, tmp_path, rng, dynamic=False):
    """The gradient of ``loss`` by every element of ``f`` and ``g`` at random values, and central differences."""
    run, f, g, loss = program(body, tmp_path, dynamic)
    start = [rng.uniform(0.2, 0.9, (ROWS, SIZE)) for _ in range(2)]

    def value(values):
        f.from_numpy(values[0])
        g.from_numpy(values[1])
        loss[None] = 0.0
        run()
        return loss[None]

    f.from_numpy(start[0])
    g.from_numpy(start[1])
    with qd.ad.Tape(loss=loss, validation=True):
        run()
    grads = [f.grad.to_numpy(), g.grad.to_numpy()]
    wanted = [np.zeros((ROWS, SIZE)) for _ in range(2)]
    for which, row, column in itertools.product(range(2), range(ROWS), range(SIZE)):
        high, low = ([x.copy() for x in start] for _ in range(2))
        high[which][row, column] += 1e-6
        low[which][row, column] -= 1e-6
        wanted[which][row, column] = (value(high) - value(low)) / 2e-6
    return np.stack(grads), np.stack(wanted)


ACCEPTED = {
    "a recurrence": ["for t in range(n):", "    f[i, t + 1] = qd.sin(f[i, t])", "loss[None] += f[i, n] * f[i, n]"],
    "a recurrence downwards": ["for s in range(n):", "    f[i, n - s] = qd.sin(f[i, n - s + 1])", "loss[None] += f[i, 1]"],
    "a condition on the loop's own index": [
        "for t in range(1, n):",
        "    if t > 2:",
        "        f[i, t] = qd.sin(f[i, t - 1])",
        "    else:",
        "        f[i, t] = f[i, t - 1] * f[i, t - 1]",
        "loss[None] += f[i, n - 1]",
    ],
    "two sibling loops in reverse order": [
        "for t in range(n):",
        "    f[i, t + 1] = qd.sin(f[i, t]) * g[i, t]",
        "for t in range(n):",
        "    loss[None] += f[i, n - t] * f[i, n - t]",
    ],
    "two loops that write one field": [
        "for t in range(3):",
        "    f[i, t + 1] = qd.sin(f[i, t])",
        "for t in range(3, n):",
        "    f[i, t + 1] = qd.cos(f[i, t])",
        "loss[None] += f[i, n]",
    ],
    "an inner loop over another axis": [
        "for t in range(1, n):",
        "    for k in range(3):",
        "        f[i, t + 1] += qd.sin(f[i, t]) * g[i, k]",
        "    g[i, 4 + t] = f[i, t + 1] * f[i, t]",
        "loss[None] += f[i, n] * g[i, 3 + n]",
    ],
}
REFUSED = {
    "an outer loop that writes again": [
        "for r in range(2):",
        "    for t in range(n):",
        "        f[i, t + 1] = qd.sin(f[i, t]) + 0.1 * r * f[i, t + 1]",
        "loss[None] += f[i, n]",
    ],
    "a step that is computed in the loop": [
        "for t in range(n):",
        "    f[i, t + t % 2 + 1] = qd.sin(f[i, t])",
        "loss[None] += f[i, n]",
    ],
}
KEPT = {
    "an outer loop that sweeps again": [
        "for r in range(2):",
        "    for t in range(n):",
        "        f[i, t + 1] = qd.sin(f[i, t]) + 0.1 * r",
        "loss[None] += f[i, n]",
    ],
    "an element that is written in place": ["for t in range(n):", "    f[i, 0] = qd.sin(f[i, 0])", "loss[None] += f[i, 0]"],
    "a read before the write": ["for t in range(n):", "    f[i, t] = qd.sin(f[i, t + 1])", "loss[None] += f[i, 0]"],
    "a loop behind the reads": [
        "for t in range(n):",
        "    loss[None] += f[i, t] * f[i, t]",
        "for t in range(n):",
        "    f[i, t] = g[i, t]",
    ],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", KEPT)
def test_a_time_loop_that_overwrites_what_it_has_read_is_right_on_a_tape_alone(name, dynamic, tmp_path):
    qd.init(default_fp=qd.f64)
    got, want = gradient_and_differences(KEPT[name], tmp_path, np.random.default_rng(), dynamic)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_time_loop_whose_reads_come_after_the_writes_has_the_gradient_of_differences(name, dynamic, tmp_path):
    qd.init(default_fp=qd.f64, debug=True)
    got, want = gradient_and_differences(ACCEPTED[name], tmp_path, np.random.default_rng(), dynamic)
    assert np.abs(want).max() > 1e-3
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_is_overwritten_after_it_was_read_is_refused(name, tmp_path):
    qd.init(default_fp=qd.f64)
    run, *_, loss = program(REFUSED[name], tmp_path)
    with pytest.raises(qd.DataAccessError, match="overwrites it"):
        with qd.ad.Tape(loss=loss):
            run()


def random_body(rng):
    """One or two nests of loops that read and write ``f`` and ``g`` at random distances, and a loss over some of it."""
    body = []
    for _ in range(rng.randint(1, 2)):
        depth = rng.choice([1, 1, 2])
        names = ["t", "k"][:depth]
        for level, name in enumerate(names):
            first, last = rng.choice([("0", "n"), ("1", "n"), ("0", "2"), ("2", "n")])
            reverse = rng.random() < 0.2
            bounds = f"{first}, {last}" if not reverse else f"{last} - 1, {first} - 1, -1"
            body.append("    " * level + f"for {name} in range({bounds}):")
        pad = "    " * depth
        if rng.random() < 0.3:
            body.append(pad + f"if {rng.choice(names)} {rng.choice(['>', '<', '=='])} {rng.randint(0, 3)}:")
            pad += "    "
        for _ in range(rng.randint(1, 2)):
            body.append(pad + _statement(rng, names))
    return [*body, "for s in range(n + 2):", f"    loss[None] += f[i, {PAD - 1} + s] * g[i, {PAD - 1} + s]"]


def _statement(rng, names):
    def index():
        sign, name = rng.choice(["", "", "", "n - "]), rng.choice(names)
        return f"{PAD} + {sign}{name} + {rng.randint(-2, 2)}"

    target, source, other = (rng.choice("fg") for _ in range(3))
    how = rng.choice(["=", "=", "+="])
    value = rng.choice(["qd.sin({0})", "{0} * {1}", "0.5 * {0} + 0.2 * {1}", "qd.exp(-{0}) * {1}"])
    return f"{target}[i, {index()}] {how} " + value.format(f"{source}[i, {index()}]", f"{other}[i, {index()}]")


@pytest.mark.slow
def test_random_time_loops_have_the_gradient_of_differences_or_are_refused(tmp_path):
    seed = random.randrange(1 << 32)
    rng, accepted, refused = random.Random(seed), 0, 0
    for number in range(150):
        qd.init(default_fp=qd.f64, offline_cache=False)
        body = random_body(rng)
        try:
            got, want = gradient_and_differences(body, tmp_path, np.random.default_rng([seed, number]))
        except qd.DataAccessError:
            refused += 1
            continue
        accepted += 1
        scale = max(1.0, np.abs(want).max())
        assert np.allclose(got, want, rtol=1e-5, atol=1e-6 * scale), (seed, number, "\n".join(body), got - want)
    assert accepted >= 15 and refused >= 15, (seed, accepted, refused)
