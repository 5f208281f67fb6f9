"""Tapes that were recorded before: what a launch costs in Python."""

import sys

import numpy as np

import qdrun as qd


def test_a_launch_of_a_tape_that_is_known_takes_six_calls_of_python_and_its_gradient_none():
    with qd.init(default_fp=qd.f64):
        a, b = (qd.ndarray(qd.f64, 4, needs_grad=True) for _ in range(2))
        loss = qd.field(qd.f64, shape=(), needs_grad=True)
        array = qd.types.ndarray(dtype=qd.f64, ndim=1)

        @qd.kernel
        def add(x: array, y: array, factor: qd.f64):
            for i in range(4):
                y[i] += factor * x[i]

        @qd.kernel
        def total(y: array):
            for i in range(4):
                loss[None] += y[i]

        def calls_of(launches: int) -> int:
            calls = 0

            def count(frame, event, what):
                nonlocal calls
                calls += event == "call"

            def run():
                with qd.ad.Tape(loss):
                    for k in range(launches):
                        add(a, b, 0.5 + k)
                    total(b)

            for _ in range(3):
                run()
            sys.setprofile(count)
            try:
                run()
            finally:
                sys.setprofile(None)
            np.testing.assert_allclose(a.grad.to_numpy(), sum(0.5 + k for k in range(launches)))
            return calls

        assert calls_of(80) - calls_of(40) <= 6 * 40
