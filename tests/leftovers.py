"""What a test leaves changed in its process: tests after it would see it, and fail or not by their order."""

import os
import sys

THEIRS = ("RAY_", "PYTEST_CURRENT_TEST", "PYTHONBREAKPOINT", "no_grpc_proxy", "ROCM_PATH", "CUDA_DEVICE_MAX_CONNECTIONS")
"""Variables that Ray, fixtures of a session, and a process that holds a device for all its threads set: beginnings of their names."""


def state(shared_ray):
    """What a test has to leave as it was.

    Args:
        shared_ray: a fixture of the session has opened a Ray, which stays.
    """
    ray, numpy = sys.modules.get("ray"), sys.modules.get("numpy")
    return {
        "the working folder": os.getcwd(),
        "environment variables": {k: v for k, v in os.environ.items() if not k.startswith(THEIRS)},
        "numpy's treatment of errors": numpy and numpy.geterr(),
        "an open Ray": not shared_ray and hasattr(ray, "is_initialized") and ray.is_initialized(),
    }


def changed(before, after):
    """What of a state has changed, in words."""
    out = []
    for what, was in before.items():
        now = after[what]
        if isinstance(was, dict) and isinstance(now, dict):
            names = sorted(name for name in {*was, *now} if was.get(name) != now.get(name))
            out += [f"{what}: {', '.join(names)}"] if names else []
        elif was != now and was is not None:
            out.append(f"{what}: {was} is now {now}")
    return out
