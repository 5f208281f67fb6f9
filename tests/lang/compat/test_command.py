"""``python -m qdrun.compat``: frames, saved images, exit codes, and the summary on stderr."""

import subprocess
import sys

import pytest

WINDOW = """
import sys
import taichi as ti
ti.init(arch=ti.{arch})
x = ti.field(ti.f32, shape={shape})

@ti.kernel
def step():
    for i, j in x:
        x[i, j] += 0.25

gui = ti.GUI("grey", res={shape})
n = 0
while gui.running:
    step()
    gui.set_image(x)
    gui.show()
    n += 1
print("steps", n, x[0, 0])
"""


def run(folder, text, *options, arguments=()):
    (folder / "program.py").write_text(text)
    command = [sys.executable, "-m", "qdrun.compat", *options, "program.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=folder)


def summary(done):
    return [line.removeprefix("qdrun.compat: ") for line in done.stderr.splitlines() if line.startswith("qdrun.compat: ")]


def test_a_program_with_a_window_ends_and_its_frames_are_saved(tmp_path):
    image = pytest.importorskip("PIL.Image")
    done = run(tmp_path, WINDOW.format(arch="cpu", shape=(8, 4)), "--frames", "3", "--save", "frames")
    assert done.returncode == 0 and done.stdout == "steps 3 0.75\n", done.stderr
    shown = [image.open(tmp_path / "frames" / f"grey-0000{k}.png").getpixel((0, 0))[0] for k in range(3)]
    assert shown == [63, 127, 191] and len(list((tmp_path / "frames").iterdir())) == 3
    first, second = summary(done)
    assert first.startswith("the program ended after ") and first.endswith(" on cpu")
    assert second == f"3 frames shown in grey; 3 files saved in {tmp_path / 'frames'}"


def test_a_window_closes_by_itself(tmp_path):
    done = run(tmp_path, WINDOW.format(arch="cpu", shape=(8, 4)))
    assert done.returncode == 0 and done.stdout.startswith("steps 100 "), done.stderr
    assert "100 frames shown in grey" in done.stderr and "--frames N shows N" in done.stderr


@pytest.mark.parametrize(
    "loop",
    [
        "while True:\n    gui.show()",
        "for k in range(100):\n    gui.show()",
        "while gui.running:\n    gui.show()\n    print('.')",
    ],
)
def test_every_loop_ends_after_its_frames(tmp_path, loop):
    text = f"import taichi as ti\nimport atexit\natexit.register(print, 'bye')\ngui = ti.GUI('w', 8)\n{loop}\n"
    done = run(tmp_path, text, "--frames", "2")
    assert done.returncode == 0 and done.stdout == (".\n" * ("running" in loop) + ".\nbye\n" if "running" in loop else "bye\n")
    assert any("2 frames shown in w" in line for line in summary(done)), done.stderr


@pytest.mark.parametrize(
    "text, code, said",
    [
        ("print(1)", 0, "the program ended after"),
        ("raise SystemExit(3)", 3, "the program ended with exit code 3 after"),
        ("import sys; sys.exit('broken')", 1, "the program ended with exit code 1 after"),
        ("def f():\n    return 1 / 0\nf()", 1, "the program stopped with ZeroDivisionError after"),
        ("raise KeyboardInterrupt", 130, "the program stopped with KeyboardInterrupt after"),
    ],
)
def test_the_exit_code_is_that_of_the_program(tmp_path, text, code, said):
    done = run(tmp_path, text)
    assert done.returncode == code and summary(done)[0].startswith(said), done.stderr
    if "1 / 0" in text:
        trace = done.stderr.splitlines()
        assert trace[0] == "Traceback (most recent call last):" and trace[1].endswith('program.py", line 3, in <module>')
    if "broken" in text:
        assert done.stderr.startswith("broken\n")


def test_arguments_after_the_program_are_its_own(tmp_path):
    done = run(tmp_path, "import sys; print(sys.argv[1:])", arguments=("--frames", "x", "-h"))
    assert done.stdout == "['--frames', 'x', '-h']\n"
    bad = run(tmp_path, "", "--frames", "-1")
    assert bad.returncode == 2 and "--frames is 0 or more" in bad.stderr


@pytest.mark.parametrize("arch", ["opengl", "gles", "dx11", "dx12", "cc", "cuda", "metal"])
def test_a_backend_that_is_not_here_falls_back_with_one_warning(tmp_path, arch):
    done = run(tmp_path, f"import taichi as ti\nti.init(arch=ti.{arch})\nti.init(arch=ti.{arch})\nprint(ti.cfg.arch)")
    if done.stdout == f"{arch}\n":
        pytest.skip(f"this machine has {arch}")
    assert done.stdout == "cpu\n" and done.stderr.count("RuntimeWarning") in (1, 2), done.stderr
    assert f"there is no {arch} here: the program ran on cpu" in summary(done)


def test_the_summary_names_what_is_not_there(tmp_path):
    text = """
import taichi as ti
for attempt in (lambda: ti.Texture(1), lambda: ti.aot.Module, lambda: ti.aot.Module, lambda: ti.unheard_of):
    try:
        attempt()
    except Exception as error:
        print(type(error).__name__)
"""
    done = run(tmp_path, text)
    assert done.returncode == 0 and summary(done)[1:] == [
        "used, and not available: Texture, aot (2 times)",
        "asked for, and unknown: taichi.unheard_of",
    ], done.stderr


def test_indices_out_of_range_are_hinted_at_and_found(tmp_path):
    text = "import taichi as ti\nti.init(arch=ti.cpu)\nx = ti.field(ti.f32, shape={n})\ny = ti.field(ti.f32, shape={n})\n"
    text += "@ti.kernel\ndef k():\n    for i in x:\n        y[i] = x[(i + 1) % {m}]\nk()\nprint('done')\n"
    done = run(tmp_path, text.format(n=6, m=8))
    assert done.returncode == 0 and done.stdout == "done\n"
    assert [
        line for line in summary(done) if line.startswith("indices were not checked; Taichi pads x and 1 more to powers of two")
    ]
    done = run(tmp_path, text.format(n=6, m=8), "--debug")
    assert done.returncode == 1 and "out of range" in done.stderr and "x[(i + 1) % 8]" in done.stderr, done.stderr
    assert not any("indices" in line for line in summary(done))
    done = run(tmp_path, text.format(n=8, m=8))
    assert done.returncode == 0 and not any("indices" in line for line in summary(done)), done.stderr


def test_the_profiler_of_taichi_has_its_names(tmp_path):
    text = """
import taichi as ti
ti.init(arch=ti.cpu, kernel_profiler={on})
x = ti.field(ti.f32, 4)

@ti.kernel
def fill():
    for i in x:
        x[i] = 1.0

fill()
ti.profiler.print_kernel_profiler_info()
ti.profiler.print_scoped_profiler_info()
ti.profiler.clear_scoped_profiler_info()
ti.profiler.print_memory_profiler_info()
print(ti.profiler.get_kernel_profiler_total_time() > 0, ti.profiler.set_kernel_profiler_toolkit("cupti"))
with ti.profiler.collect_kernel_profiler_metrics(ti.profiler.get_predefined_cupti_metrics("global_access")):
    print(ti.profiler.query_kernel_profiler_info("fill"))
ti.profiler.clear_kernel_profiler_info()
"""
    done = run(tmp_path, text.format(on=True))
    assert done.returncode == 0 and "True False" in done.stdout and "fill" in done.stdout, done.stderr
    done = run(tmp_path, text.format(on=False))
    assert done.returncode == 0 and "False False\nNone\n" in done.stdout and "the kernel profiler is off" in done.stderr, (
        done.stderr
    )


def test_inner_modules_have_the_names_that_programs_use(tmp_path):
    text = """
import taichi as ti
import taichi.lang.util
from taichi.lang import impl
from taichi.lang.exception import TaichiSyntaxError
from taichi.lang.impl import current_cfg, get_runtime, static
from taichi.lang.matrix import MatrixType, Vector
from taichi.lang.misc import is_arch_supported
from taichi.tools.np2ply import PLYWriter
from taichi.lang.ops import atomic_add, mul, sqrt, sub

print(get_runtime().prog, ti.__version__ >= (1, 7, 0))
ti.init(arch=ti.cpu, default_fp=ti.f64)
x = ti.field(float, 3)

@ti.kernel
def k():
    for i in x:
        x[i] = mul(sub(5.0, i), sqrt(4.0))

k()
print(x.to_numpy(), current_cfg().arch, impl.current_cfg().default_fp, get_runtime().default_fp, get_runtime().prog.config().arch == ti.cpu)
assert PLYWriter is ti.tools.PLYWriter and isinstance(ti.math.vec3, MatrixType) and is_arch_supported(ti.cpu)
assert not is_arch_supported(ti.opengl) and ti.experimental.real_func is ti.real_func
print(Vector is ti.Vector, static is ti.static, issubclass(TaichiSyntaxError, SyntaxError), ti.lang.util.to_numpy_type(ti.f32))
try:
    import taichi.no_such_part
except ImportError as error:
    print(error)
"""
    done = run(tmp_path, text)
    assert done.stdout.splitlines() == [
        "None True",
        "[10.  8.  6.] cpu f64 f64 True",
        "True True True <class 'numpy.float32'>",
        "no module named 'taichi.no_such_part': qdrun has no qdrun.no_such_part",
    ], done.stderr


def test_windows_of_opencv_need_no_screen(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "cv2.py").write_text("version = 5\ndef imshow(*args):\n    raise RuntimeError('no screen')\nwaitKey = imshow\n")
    text = """
import cv2
import numpy as np
frame = np.zeros((4, 6, 3), np.uint8)
frame[0, 5] = 255, 128, 0
n = 0
while True:
    cv2.imshow("video", frame)
    n += 1
    print(n, cv2.waitKey(1), cv2.version)
"""
    done = run(tmp_path, text, "--frames", "2", "--save", "out")
    assert done.returncode == 0 and done.stdout == "1 -1 5\n", done.stderr
    assert image.open(tmp_path / "out" / "video-00001.png").getpixel((5, 0)) == (0, 128, 255)
    assert "2 frames shown in video; 2 files saved" in done.stderr


def test_a_program_that_installs_the_hook_itself_says_what_its_windows_did(tmp_path):
    text = "import qdrun.compat\nqdrun.compat.install(frames=2, save='f')\nimport taichi as ti\ngui = ti.GUI('w', 4)\n"
    (tmp_path / "own.py").write_text(text + "while gui.running:\n    gui.show()\nprint('end')\n")
    command = [sys.executable, tmp_path / "own.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == "end\n" and len(list((tmp_path / "f").iterdir())) == 2
    assert done.stderr == f"qdrun.compat: 2 frames shown in w; 2 files saved in {tmp_path / 'f'}\n"
