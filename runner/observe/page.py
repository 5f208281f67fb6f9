"""The parts of a page of HTML: escaped text, tables, and one style sheet for light and dark. No script, nothing from elsewhere."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape

CSS = """
:root { color-scheme: light dark; --ground: #ffffff; --card: #f6f7f9; --ink: #1c2024; --soft: #667080; --line: #d9dee4;
  --good: #1f7a4d; --bad: #c0392b; --busy: #2c6fa8; }
@media (prefers-color-scheme: dark) { :root { --ground: #15181c; --card: #1d2127; --ink: #e4e7eb; --soft: #98a2b0;
  --line: #343b45; --good: #4fc08d; --bad: #f0776b; --busy: #6db3ea; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 20px 60px; max-width: 1080px; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 36px 0 8px; border-bottom: 1px solid var(--line); }
p { margin: 6px 0; } .soft { color: var(--soft); font-size: 0.87rem; }
.state { font-weight: 600; } .done { color: var(--good); } .failed, .lost, .poisoned { color: var(--bad); } .running { color: var(--busy); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 18px 0; }
.tile { background: var(--card); border-radius: 8px; padding: 10px 14px; }
.tile b { display: block; font-size: 1.2rem; font-weight: 600; } .tile span { color: var(--soft); font-size: 0.82rem; }
figure { margin: 14px 0; background: var(--card); border-radius: 8px; padding: 8px 10px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 8px; }
figure svg { display: block; width: 100%; height: auto; max-width: 520px; margin: 0 auto; }
img { max-width: 100%; max-height: 260px; border-radius: 6px; }
figcaption { color: var(--soft); font-size: 0.85rem; padding: 2px 4px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.86rem; width: 100%; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td { overflow-wrap: normal; } td.wide { overflow-wrap: anywhere; min-width: 240px; }
code, pre { font: 0.82rem/1.45 ui-monospace, monospace; } pre { background: var(--card); padding: 10px; border-radius: 8px;
  overflow: auto; max-height: 420px; } summary { cursor: pointer; color: var(--soft); }
"""


def text(value: object) -> str:
    """A value as text that HTML takes for nothing else; control characters, which no page may hold, are shown as a mark."""
    return escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in str(value)), quote=True)


def table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = (), wide: Sequence[str] = ()
) -> str:
    """A table of cells that are HTML already; columns of ``numbers`` stand to the right, those of ``wide`` have room."""
    kinds = [' class="n"' if name in numbers else ' class="wide"' if name in wide else "" for name in headers]
    head = "".join(f"<th{kind}>{text(name)}</th>" for name, kind in zip(headers, kinds))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>\n" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def section(title: str, *parts: str) -> str:
    """A part of the page with its heading; nothing when there is nothing in it."""
    inside = "\n".join(part for part in parts if part)
    return f"<section><h2>{text(title)}</h2>\n{inside}\n</section>" if inside else ""


def figure(plots: Sequence[str], caption: str) -> str:
    """Plots with what they say: side by side, and below one another where the page is narrow."""
    return f'<figure><div class="plots">{"".join(plots)}</div><figcaption>{text(caption)}</figcaption></figure>'


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """Figures at a glance: pairs of a value and what it is."""
    inside = "".join(f'<div class="tile"><b>{text(value)}</b><span>{text(what)}</span></div>' for value, what in pairs)
    return f'<div class="tiles">{inside}</div>'


def folded(title: str, inside: str) -> str:
    """Render the content that is shown on demand."""
    return f"<details><summary>{text(title)}</summary>{inside}</details>"


def image(data: bytes, kind: str) -> str:
    """A picture that is a part of the page. ``kind``: as in ``image/png``."""
    return f'<img src="data:{text(kind)};base64,{b64encode(data).decode()}" alt="">'


def page(title: str, body: str) -> str:
    """A whole document. Its policy lets nothing be loaded or run, whatever stands in it."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{CSS}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
