"""Text of jobs as a terminal may be given it: nothing in it moves the cursor, changes colours or titles, or hides what stands before."""

from __future__ import annotations


def visible(text: str) -> str:
    """``text`` with a replacement character for each control character but newlines and tabs; a carriage return begins a new line."""
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
