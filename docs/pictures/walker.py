"""Draws the best robot of the tutorial's run, before and after: python docs/pictures/walker.py RUN walker.png walker-losses.png."""

import sys
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qdrun.jobs.mass_spring import MassSpring, MassSpringParams, truss
from qdrun.runner import load

FRAMES = 3


def places(params: MassSpringParams) -> np.ndarray:
    """Where the masses are: (time, mass, 2), m."""
    with MassSpring(params).opened() as job:
        job.run()
        return job.x.to_numpy()


def draw(axes: Axes, params: MassSpringParams, title: str) -> None:
    """The robot at a few times, later ones darker."""
    body, x = truss(params.columns), places(params)
    for k, t in enumerate(np.linspace(0, params.steps, FRAMES).astype(int)):
        for (a, b), muscle in zip(body.ends, body.muscle):
            colour = (0.8, 0.2, 0.1) if muscle >= 0 else (0.1, 0.2, 0.4)
            axes.plot(*x[t, [a, b]].T, color=colour, alpha=0.15 + 0.85 * k / (FRAMES - 1), linewidth=1.5)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set(title=title, xlim=(-0.05, 0.75), ylim=(-0.02, 0.2), aspect="equal", ylabel="y, m")


def main(run: str, robot: str, losses: str) -> None:
    """Write both pictures."""
    rows: list[dict[str, Any]] = sorted(load(run).rows, key=lambda row: row["loss"])
    best = rows[0]
    start = MassSpringParams(**{k.removeprefix("param."): v for k, v in best.items() if k.startswith("param.")})
    end = start.model_copy(update={"stiffness": best["out.opt.stiffness"], "actuation": list(best["out.opt.actuation"])})
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    before, after = figure.subplots(2, 1, sharex=True)
    draw(before, start, f"random muscles: {-best['out.opt.history'][0]:.2f} m in {start.steps * start.dt:g} s")
    draw(after, end, f"after gradient descent: {-best['loss']:.2f} m")
    after.set(xlabel="x, m")
    figure.savefig(robot, dpi=110)
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        axes.plot(-np.minimum.accumulate(row["out.opt.history"]), color="tab:blue", alpha=0.5, linewidth=1)
    axes.set(xlabel="step of the descent", ylabel="best distance so far, m", title=f"{len(rows)} robots")
    figure.savefig(losses, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
