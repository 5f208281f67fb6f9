"""Signals are served while LLVM compiles, and what was left behind disturbs nothing."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from qdrun.compiler.runtime.interruptible import interruptible


def test_the_result_and_the_error_of_a_call_come_back():
    assert interruptible(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)


def test_other_threads_call_by_themselves():
    found = []
    thread = threading.Thread(target=lambda: found.append(interruptible(threading.current_thread)))
    thread.start()
    thread.join()
    assert found == [thread]
    assert interruptible(threading.current_thread) is not threading.main_thread()


def test_a_call_is_left_behind_by_what_a_signal_handler_raises():
    class Stop(Exception):
        pass

    def handler(*_):
        raise Stop

    go_on, ended = threading.Event(), threading.Event()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        threading.Timer(0.2, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)).start()
        with pytest.raises(Stop):
            interruptible(lambda: (go_on.wait(30), ended.set()))
        assert not ended.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)
        go_on.set()
    assert ended.wait(30)


_LONG = """
    import signal
    import sys
    import qdrun as qd
    from qdrun.compiler.codegen.math import calls
    from qdrun.compiler.runtime import jit

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    calls.MOST_LINES = 10**9  # as code in line, the gradient takes LLVM minutes
    qd.init(default_fp=qd.f64, batch=5, offline_cache={cached})
    x = qd.field(qd.f64, shape=16, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def long():
        for _ in range(1):
            v = x[0]
            for i in qd.static(range(1500)):
                v = qd.sin(v) * x[i % 10] + 0.3
            loss[None] = v

    @qd.kernel
    def short():
        for i in range(16):
            x[i] = 2.0 * i

    begun = jit._compile

    def compile(text, name, opt_level):
        print("compiles", name, flush=True)
        return begun(text, name, opt_level)

    jit._compile = compile
"""


def _interrupted(folder: Path, body: str, number: int, cached: bool = False) -> tuple[subprocess.Popen[str], float]:
    """A program that is interrupted while it compiles, and the seconds it goes on."""
    source = textwrap.dedent(_LONG).format(cached=cached) + textwrap.dedent(body)
    (folder / "compiles.py").write_text(source)
    program = subprocess.Popen(
        [sys.executable, folder / "compiles.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "compiles long\n", program.communicate()[1]
    time.sleep(0.5)
    program.send_signal(number)
    begin = time.monotonic()
    program.out, program.err = program.communicate(timeout=120)  # type: ignore[attr-defined]
    return program, time.monotonic() - begin


@pytest.mark.slow
def test_ctrl_c_ends_a_program_that_compiles(tmp_path):
    program, seconds = _interrupted(tmp_path, "long()", signal.SIGINT)
    assert program.returncode == -signal.SIGINT and program.err.rstrip().endswith("KeyboardInterrupt")
    assert seconds < 60  # far less; LLVM would go on for minutes


@pytest.mark.slow
def test_a_program_goes_on_after_it_was_interrupted(tmp_path):
    program, seconds = _interrupted(
        tmp_path,
        """
        try:
            long()
        except KeyboardInterrupt:
            short()
            assert (x.to_numpy() == [2.0 * i for i in range(16)]).all()
            print("went on", flush=True)
        """,
        signal.SIGINT,
        cached=True,
    )
    assert program.returncode == 0 and program.out.endswith("went on\n"), program.err
    assert seconds < 60


@pytest.mark.slow
def test_sigterm_ends_a_program_that_compiles(tmp_path):
    program, seconds = _interrupted(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        long()
        """,
        signal.SIGTERM,
    )
    assert program.returncode == 3 and seconds < 60, program.err
