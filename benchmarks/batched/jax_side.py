"""Losses and gradients of many trials by JAX: ``jit`` of ``vmap`` of ``value_and_grad``, split over the cores or not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.batched.model import Columns, Model

Sweep = Callable[[Columns], tuple[np.ndarray, Columns]]
"""From the parameters of all trials to their losses and gradients, in NumPy's arrays on both sides."""


def start(arch: str, cores: int) -> Any:
    """Import JAX for f64 on a backend; a device for each core of a CPU, as a batch can then be split over them."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ["JAX_PLATFORMS"] = {"cpu": "cpu", "cuda": "cuda"}[arch]
    import jax

    jax.config.update("jax_enable_x64", True)
    if arch == "cpu":
        jax.config.update("jax_num_cpu_devices", cores)
    jax.devices()
    return jax


def sweeps(model: Model, batch: int, only: str) -> Iterator[tuple[str, Callable[[], Sweep]]]:
    """Each way to run ``batch`` trials, by name; the function makes it, without compiling.

    Args:
        model: the simulation.
        batch: trials at once.
        only: names of ways hold this text.
    """
    import jax

    for name, loss in model.variants().items():
        for devices in sorted({1, len(jax.devices())}):
            label = name if devices == 1 else f"{name}, {devices} devices"
            if only in label and batch % devices == 0:
                yield label, lambda loss=loss, devices=devices: _sweep(model, loss, batch, devices)


def _sweep(model: Model, loss: Callable[[Any], Any], batch: int, devices: int) -> Sweep:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    gradient = jax.value_and_grad(lambda wanted, others: loss(wanted | others))
    if batch == 1:  # without the batch's axis: faster
        one = jax.jit(gradient)
        return lambda columns: _one(*one(*_parted(model, {name: column[0] for name, column in columns.items()})))
    split = NamedSharding(Mesh(np.array(jax.devices()[:devices]), ("trial",)), PartitionSpec("trial"))
    many = jax.jit(jax.vmap(gradient), in_shardings=(split, split), out_shardings=split)

    def run(columns: Columns) -> tuple[np.ndarray, Columns]:
        found = many(*_parted(model, columns))
        return np.asarray(found[0]), {name: np.asarray(found[1][name]) for name in model.wanted}

    return run


def _parted(model: Model, columns: Columns) -> tuple[Columns, Columns]:
    """The parameters whose gradients are wanted, and the others."""
    wanted = {name: columns[name] for name in model.wanted}
    return wanted, {name: column for name, column in columns.items() if name not in wanted}


def _one(loss: Any, gradients: Any) -> tuple[np.ndarray, Columns]:
    return np.asarray(loss)[None], {name: np.asarray(value)[None] for name, value in gradients.items()}
