"""The files that trials have left in a report: pictures and videos as far as there is room, links to all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from mimetypes import guess_type
from urllib.parse import quote

from ...packing.claims import amount
from ...store.attempts import check_inside
from ...study.trials import counted
from .material import Material
from .page import embedded, folded, soft, table, text, trial_button

TRIALS, SHOWN, BYTES = 200, 24, 3 << 19
"""Trials whose files are linked, pictures and videos that are shown, and the bytes of these together."""
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
VIDEOS = ("video/mp4", "video/webm")


def gallery(run: Material, place_of: Callable[[int], int | None], linked: bool = False) -> list[str]:
    """The artifacts of a run as HTML, those of the trial with the smallest loss first.

    Args:
        run: the run.
        place_of: of a trial in the page's data, by its index in the run.
        linked: the page is not in the run's folder: links have the address of that folder.
    """
    base = f"{run.folder.uri}/" if linked else ""
    losses = run.rows.column("loss")
    left = [place for place, where in enumerate(run.rows.column("artifacts_folder")) if where is not None]
    left.sort(key=lambda place: _order(losses[place]))
    lines, shown, room, without = list[list[str]](), list[str](), BYTES, 0
    for place in left[:TRIALS]:
        row, label = run.rows[place], run.trials[place].label
        where, names = str(row["artifacts_folder"]), row.get("artifacts") or []
        check_inside(run.folder, where)
        sizes = run.folder.files.below(where)
        links = [f'<a href="{text(base + quote(f"{where}/{name}"))}">{text(name)}</a>' for name in names]
        rest = len(sizes) - len(names)
        button = trial_button(place_of(place), label)
        lines.append([button, ", ".join(links) + (f" and {rest} more" if rest > 0 else ""), amount(sum(sizes.values()))])
        for name in names:
            kind, size = guess_type(name)[0] or "", sizes.get(f"{where}/{name}")
            if kind not in (*PICTURES, *VIDEOS) or size is None:
                continue
            if size > room or len(shown) == SHOWN:
                without += 1
                continue
            room -= size
            shown.append(_shown(run.folder.files.read(f"{where}/{name}"), kind, button, name))
    if not lines:
        return []
    said = f"{counted(len(left), 'trial')} left files, the smallest loss first."
    said += f" {without} more pictures or videos are linked only: the page has no room for them." * bool(without)
    more = soft(f"and {counted(len(left) - len(lines), 'more trial')}") if len(left) > len(lines) else ""
    files = folded(f"files of {counted(len(lines), 'trial')}", table(["trial", "files", "size"], lines, wide=["files"]) + more)
    return [soft(said), f'<div class="gallery">{"".join(shown)}</div>' if shown else "", files]


def _shown(data: bytes, kind: str, button: str, name: str) -> str:
    address = embedded(data, kind)
    media = (
        f'<video controls src="{address}"></video>'
        if kind in VIDEOS
        else f'<img src="{address}" alt="{text(name)}" loading="lazy">'
    )
    return f"<figure>{media}<figcaption>{button} {text(name)}</figcaption></figure>"


def _order(loss: float | None) -> float:
    return math.inf if loss is None or math.isnan(loss) else float(loss)


__all__ = ["gallery"]
