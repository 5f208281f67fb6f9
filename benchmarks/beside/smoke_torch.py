"""``jobs/gallery/smoke.py`` in PyTorch, in f64, step by step."""

from __future__ import annotations

from typing import Any

import torch

from . import ours
from .measure import Run


def central(a: Any, axis: int) -> Any:
    return torch.roll(a, -1, axis) - torch.roll(a, 1, axis)


def sample(field: Any, v: Any) -> Any:
    n = len(field)
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    x, y = i - v[..., 0], j - v[..., 1]
    left, low = torch.floor(x), torch.floor(y)
    a, b = x - left, y - low
    if field.ndim == 3:
        a, b = a[..., None], b[..., None]
    i0, j0 = left.long() % n, low.long() % n
    i1, j1 = (i0 + 1) % n, (j0 + 1) % n
    return (1 - a) * ((1 - b) * field[i0, j0] + b * field[i0, j1]) + a * ((1 - b) * field[i1, j0] + b * field[i1, j1])


def loss(wind: Any, p: Any) -> Any:
    n = p.grid
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    x, y = i + 0.5 - n / 2, j + 0.5 - n / 2
    out = torch.sqrt(x * x + y * y) / n - p.radius
    smoke, wanted = 1 / (1 + torch.exp(out * n)), torch.exp(-((n * out / 4) ** 2))
    v = wind.reshape(n, n, 2) + torch.stack([p.push[0] - p.spin * y, p.push[1] + p.spin * x], dim=2)
    pressure = torch.zeros(n, n)
    for _ in range(p.steps):
        u = sample(v, v)
        source = -0.5 / n * (central(u[..., 0], 0) + central(u[..., 1], 1))
        for _ in range(p.sweeps):
            beside = (
                torch.roll(pressure, 1, 0)
                + torch.roll(pressure, -1, 0)
                + torch.roll(pressure, 1, 1)
                + torch.roll(pressure, -1, 1)
            )
            pressure = (source + beside) / 4
        v = u - 0.5 * n * torch.stack([central(pressure, 0), central(pressure, 1)], dim=2)
        smoke = sample(smoke, v)
    return ((smoke - wanted) ** 2).mean()


def make() -> Run:
    """The loss and its gradient with respect to the wind."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    p = ours.smoke()

    def run() -> tuple[Any, Any]:
        wind = torch.tensor(p.wind, requires_grad=True)
        found = loss(wind, p)
        found.backward()
        return found.item(), wind.grad

    return run


SOURCE = [central, sample, loss]
