"""The picture: trials a second over the number of trials at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {"ours": "tab:blue", "jax": "tab:orange"}
LABELS = {"ours": "qdrun", "jax": "JAX"}


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    """Draw a panel for each model and backend, with the fastest way of each side for each number of trials.

    Args:
        file: a picture in a format that matplotlib writes.
        rows: as ``--json`` saves them.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = list(dict.fromkeys((row["model"], row["arch"]) for row in rows))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4.2 * columns, 3.6 * lines), squeeze=False)
    for (model, arch), ax in zip(panels, axes.flat, strict=False):
        for side, colour in COLOURS.items():
            best: dict[int, float] = {}
            for row in rows:
                if (row["model"], row["arch"], row["side"]) == (model, arch, side):
                    best[row["batch"]] = max(best.get(row["batch"], 0.0), row["rate"])
            if best:
                ax.plot(sorted(best), [best[b] for b in sorted(best)], "o-", color=colour, label=LABELS[side], markersize=4)
        ax.set(xscale="log", yscale="log", xlabel="trials in a batch", ylabel="trials/s", title=f"{model}, {arch}")
        ax.grid(True, which="both", alpha=0.25)
        ax.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
