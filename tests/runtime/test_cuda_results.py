"""What a failure of the driver becomes."""

import pickle

import pytest

from qdrun.compiler.errors import DeviceError, OutOfMemory, QdrunRuntimeError
from qdrun.compiler.runtime.cuda import results
from qdrun.compiler.runtime.cuda.results import device_error as failure
from qdrun.compiler.runtime.gpu.results import out_of_memory

STAY = {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999}


def test_the_failures_that_stay_say_that_the_process_must_be_restarted():
    assert {code for code, r in results.RESULTS.known.items() if r.restart} == STAY
    for code, r in results.RESULTS.known.items():
        e = failure(code, "a launch failed")
        assert e.restart == (code in STAY) == ("restart the process" in str(e)), r.name
        assert e.code == code and e.result == f"CUDA_ERROR_{r.name}" and e.result in str(e)
        assert "\n  do: " in str(e)


def test_the_message_of_an_illegal_address():
    assert str(failure(700, "kernel `f` failed")) == (
        "kernel `f` failed: it read or wrote memory that is not its own (CUDA_ERROR_ILLEGAL_ADDRESS)\n"
        "  the device cannot be used any more by this process\n"
        "  do: restart the process; run the kernel with qd.init(debug=True), which checks every index"
    )


def test_the_failures_that_an_index_out_of_bounds_may_have_caused_say_so():
    assert {code for code in STAY if failure(code, "x").bounds} == {700, 714, 716, 717, 718, 719}
    assert pickle.loads(pickle.dumps(failure(700, "x"))).bounds


def test_a_result_that_nobody_knows_keeps_the_drivers_name():
    e = results.device_error(918, "a graph failed", "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE")
    assert e.result == "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE" and not e.restart
    assert failure(12345, "x").result == "CUresult 12345"


def test_a_log_is_part_of_the_message():
    e = failure(218, "the driver cannot compile kernel `f`", detail="ptxas line 3: unknown\n")
    assert str(e).splitlines()[1] == "  ptxas line 3: unknown"


def test_device_errors_are_runtime_errors_and_pickle():
    e = pickle.loads(pickle.dumps(failure(719, "kernel `f` failed")))
    assert isinstance(e, DeviceError) and isinstance(e, QdrunRuntimeError)
    assert (e.restart, e.code, e.result) == (True, 719, "CUDA_ERROR_LAUNCH_FAILED")
    assert str(e) == str(failure(719, "kernel `f` failed"))


def test_only_out_of_memory_is_full():
    assert results.RESULTS.is_full(failure(2, "x")) and not results.RESULTS.is_full(failure(1, "x"))
    e = out_of_memory(failure(2, "loading failed"), "the code of kernel `f` does not fit")
    assert isinstance(e, OutOfMemory) and str(e).startswith(
        "the code of kernel `f` does not fit: the device has no more memory"
    )


@pytest.mark.parametrize("code", sorted(results.RESULTS.known))
def test_the_numbers_are_cudas(code):
    driver = pytest.importorskip("cuda.bindings.driver")
    assert driver.CUresult(code).name == f"CUDA_ERROR_{results.RESULTS.known[code].name}"
