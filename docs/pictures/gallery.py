"""Copies the pictures of finished runs of the gallery here: python docs/pictures/gallery.py RUN .. (runs of classes named ``..Picture``).

The picture of the best trial becomes ``gallery-<job>.png``. Small pictures are enlarged without smoothing, large ones are reduced.
"""

import sys
from pathlib import Path

from PIL import Image

from qdrun.runner import load

HERE, LEAST, MOST = Path(__file__).parent, 240, 720


def copy(run: str) -> Path | None:
    """The copy of the picture of a run's best trial; None if the run left none."""
    results = load(run)
    best = min(results.rows, key=lambda row: row["loss"])
    found = [path for name, path in results.artifacts(best["trial"]).items() if name.endswith(".png")]
    if not found:
        return None
    job = results.config["job"]["target"].partition(":")[0].rpartition(".")[2]
    picture = Image.open(found[0]).convert("RGB")
    if picture.width < LEAST:
        times = -(-LEAST // picture.width)
        picture = picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
    picture.thumbnail((MOST, MOST))
    picture.quantize(64).save(HERE / f"gallery-{job}.png", optimize=True)
    return HERE / f"gallery-{job}.png"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(copy(name))
