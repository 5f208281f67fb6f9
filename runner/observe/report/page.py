"""The parts of a page of HTML: escaped text, tables, embedded data, and a policy under which the page's own scripts alone can run."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from .library import packed


def clean(value: object, most: int | None = None) -> str:
    """A value as text without control characters, which are shown as a mark; of a longer one the first ``most`` characters."""
    text = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in str(value))
    return text if most is None or len(text) <= most else text[: most - 2] + ".."


def text(value: object) -> str:
    """A value as text that HTML takes for nothing else."""
    return escape(clean(value), quote=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, wide: Sequence[str] = ()) -> str:
    """A table of cells that are HTML already; columns of ``wide`` have room."""
    kinds = [' class="wide"' if name in wide else "" for name in headers]
    head = "".join(f"<th{kind}>{text(name)}</th>" for name, kind in zip(headers, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>\n" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page with its heading, and ``name`` as its id; nothing when there is nothing in it."""
    inside = "\n".join(part for part in parts if part)
    return f'<section id="{text(name)}"><h2>{text(title)}</h2>\n{inside}\n</section>' if inside else ""


def soft(said: str) -> str:
    """A sentence about a chart or a table."""
    return f'<p class="soft">{text(said)}</p>' if said else ""


def charts() -> str:
    """The place where the script puts the controls and the charts of a section."""
    return '<div class="controls"></div><div class="plots"></div><p class="soft note"></p>'


def trial_button(place: int | None, label: str) -> str:
    """A button that shows a trial by its place in the data; its text alone for a trial that is not in the data."""
    return (
        f"<code>{text(label)}</code>" if place is None else f'<button type="button" data-trial="{place}">{text(label)}</button>'
    )


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """Figures at a glance: pairs of a value and what it is."""
    inside = "".join(f'<div class="tile"><b>{text(value)}</b><span>{text(what)}</span></div>' for value, what in pairs)
    return f'<div class="tiles">{inside}</div>'


def folded(title: str, inside: str) -> str:
    """Render the content that is shown on demand. ``title`` is HTML already."""
    return f"<details><summary>{title}</summary>{inside}</details>"


def embedded(data: bytes, kind: str) -> str:
    """The address of bytes that are a part of the page. ``kind``: as in ``image/png``."""
    return f"data:{text(kind)};base64,{b64encode(data).decode()}"


def json_script(name: str, data: Mapping[str, Any]) -> str:
    """Data as JSON in an element with an id, where no text in it can end the element.

    Raises:
        ValueError: it holds a number that is not finite.
    """
    source = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        source = source.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" id="{text(name)}">{source}</script>'


def _hash(source: str) -> str:
    return f"'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'"


def page(title: str, body: str, data: Mapping[str, Any], plotly: str) -> str:
    """A whole document.

    Its policy lets nothing be loaded. Two scripts can run, by their hashes: that of the page, and the chart library that it unpacks.
    These may compile text as code (``unsafe-eval``), because plotly.js makes the WebGL calls of parallel coordinates in this way.

    Args:
        title: of the document.
        body: HTML.
        data: what the script of the page draws.
        plotly: the source of the chart library.
    """
    own = files(__name__.rpartition(".")[0])
    style, *scripts = (own.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "charts.js"))
    script = f'"use strict";\n(() => {{\n{chr(10).join(scripts)}}})();'
    policy = (
        f"default-src 'none'; script-src {_hash(script)} {_hash(plotly)} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        "media-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style></head>\n<body>\n"
        f"<noscript><p>The charts and the table of trials need JavaScript.</p></noscript>\n{body}\n"
        f'<aside id="trial" hidden></aside>\n{json_script("report-data", data)}\n'
        f'<script type="application/octet-stream" id="report-library">{packed(plotly)}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )
