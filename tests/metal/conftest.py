import pytest

import qdrun as qd


@pytest.fixture(autouse=True)
def clang():
    """The emulated device compiles with it."""
    from qdrun.tests.devices.metal import executor

    try:
        executor.clang()
    except qd.DeviceError as e:
        pytest.skip(str(e).splitlines()[0])
