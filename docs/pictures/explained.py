"""Draws the figures of docs/adstack.md and docs/packing.md: python docs/pictures/explained.py."""

import heapq
import random
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from qdrun.runner.packing import Claim, DeviceSpec, Packer, Pool, Request

HERE, GIB = Path(__file__).parent, 1 << 30
ITERATIONS, NOW = 64, 41
SIZES = (1, 2, 3, 5, 8, 12)
SEGMENTS = {1: (1,), 2: (8, 1), 3: (16, 4, 1)}
"""Iterations between the states that each level keeps, by the number of levels."""


def kept(levels: int) -> dict[int, int]:
    """The iterations whose state is held while the backward pass is at ``NOW``, each with its level."""
    found: dict[int, int] = {}
    low, high = 0, ITERATIONS
    for level, every in enumerate(SEGMENTS[levels]):
        for k in range(low, high, every):
            found.setdefault(k, level)
        low = NOW // every * every
        high = min(low + every, ITERATIONS)
    return found


def levels(axes: Axes) -> None:
    """The states that are held at one moment of the backward pass, for one, two and three levels."""
    colours = ("tab:blue", "tab:orange", "tab:green")
    for row, count in enumerate(SEGMENTS):
        held = kept(count)
        for k in range(ITERATIONS):
            colour = colours[held[k] if count > 1 else -1] if k in held else "white"
            axes.add_patch(Rectangle((k, -row), 0.9, 0.6, facecolor=colour, edgecolor="0.7", linewidth=0.5))
        axes.text(-1, 0.3 - row, f"{count} level{'s' * (count > 1)}", ha="right", va="center")
        axes.text(ITERATIONS + 1, 0.3 - row, f"{len(held)} states", va="center")
    axes.axvline(NOW + 0.45, color="black", linewidth=1)
    axes.text(NOW + 0.45, 0.75, "the backward pass is here, and goes left", ha="center")
    axes.set(xlim=(-9, ITERATIONS + 9), ylim=(-2.2, 1.1))
    axes.axis("off")


def packing(axes: Axes) -> None:
    """Trials of 1 to 12 GiB on a card of 24 GiB: the bytes of those that run, stacked, over time."""
    draw = random.Random(3)
    packer, now = Packer(), 0.0
    packer.add_pool(Pool("card", 24 * GIB))
    packer.add_device(DeviceSpec("gpu0", "card", kind="card", lanes=6, process_bytes=GIB // 2))
    sizes = {f"t{i}": (draw.choice(SIZES), draw.uniform(10, 40)) for i in range(36)}
    packer.submit([Request(n, {"card": Claim.of([(g * GIB, 1.0)], seconds=s)}, 0.0) for n, (g, s) in sizes.items()])
    running: list[tuple[float, str]] = []
    while True:
        for placement in packer.next(now=now):
            name = placement.request.id
            heapq.heappush(running, (now + sizes[name][1], name))
        if not running:
            break
        floor = 0.5
        for _, name in sorted(running, key=lambda one: -sizes[one[1]][0]):
            gib = sizes[name][0]
            width = running[0][0] - now
            axes.add_patch(Rectangle((now, floor), width, gib, facecolor=f"C{SIZES.index(gib)}", linewidth=0))
            axes.hlines(floor, now, now + width, color="white", linewidth=0.6)
            floor += gib
        now, name = heapq.heappop(running)
        packer.finish(name)
    axes.add_patch(Rectangle((0, 0), now, 0.5, facecolor="0.5"))
    axes.axhline(24, color="black", linewidth=1)
    axes.set(xlim=(0, now), ylim=(0, 28), xlabel="seconds", ylabel="GiB")
    axes.text(now / 2, 24.5, "capacity of the card", ha="center")


def main() -> None:
    """Write both pictures."""
    for name, size, draw in (("adstack-levels", (8, 2), levels), ("packing", (7, 3.4), packing)):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        figure.savefig(HERE / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
