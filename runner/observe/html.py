"""Tables of HTML for notebooks. Every text is escaped; there are no scripts and no pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..visible import visible

SHOWN = 50
"""Rows of a table in a notebook."""


def table_html(headers: Sequence[str], lines: Sequence[Sequence[str]], total: int | None = None) -> str:
    """Columns of text as a table. ``total``: the number of rows of which ``lines`` are the first."""
    head = "".join(f"<th>{_text(cell)}</th>" for cell in headers)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in line)}</tr>" for line in lines)
    more = (len(lines) if total is None else total) - len(lines)
    note = f"<div>and {more:,} more rows</div>" if more > 0 else ""
    return f"<div style='overflow-x:auto'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}</div>"


def text_html(text: str) -> str:
    """A text with its line breaks and columns."""
    return f"<pre style='white-space:pre;overflow-x:auto'>{_text(text)}</pre>"


def line_html(text: str) -> str:
    """A line above a table."""
    return f"<div>{_text(text)}</div>"


def _text(text: str) -> str:
    return escape(visible(text)).replace("$", "&#36;")  # a notebook typesets what is between dollars


__all__ = ["SHOWN", "line_html", "table_html", "text_html"]
