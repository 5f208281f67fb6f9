"""Checks device texts against their grammar, which is a page of the documentation (docs/device-text.md)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "device-text.md"
_WORD = re.compile(r"\b([A-Z]+)\b(\?)?")
_TERMINATOR = re.compile(r"(?:br|ret) ")
_LABEL = re.compile(r"(\w+):$")


@cache
def words() -> dict[str, str]:
    """The words of the grammar as regular expressions."""
    rows = re.findall(r"^\| `([A-Z]+)` \| `(.*)` \|$", PAGE.read_text(encoding="utf-8"), re.M)
    found = {name: text.replace("\\|", "|") for name, text in rows}
    return {n: t[1:-1] if t[0] == "/" else f"(?:{'|'.join(t.split())})" for n, t in found.items()}


def pattern(form: str) -> str:
    """The regular expression of a form."""
    out, at = "", 0
    for m in _WORD.finditer(form):
        if m[1] in words():
            out += re.escape(form[at : m.start()]) + f"(?:{words()[m[1]]}){m[2] or ''}"
            at = m.end()
    return out + re.escape(form[at:])


@cache
def forms(backend: str) -> tuple[str, ...]:
    """The forms of a backend's lines, those of all backends first."""
    blocks = re.findall(r"^```text ?([\w ]*)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return tuple(line for of, lines in blocks if not of or backend in of.split() for line in lines.splitlines())


@cache
def _compiled(backend: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern(form)})" for form in forms(backend)))


def faults(text: str, backend: str) -> list[str]:
    """The lines of a device text that fit no form, or stand where they may not."""
    fits, out = _compiled(backend), []
    inside = ended = False  # of a function; its last line was a terminator
    for raw in text.splitlines():
        line = raw.strip()
        if not line:
            continue
        label = _LABEL.match(line) if inside else None
        if label:
            ended = False
        elif not fits.fullmatch(line):
            out.append(line)
        elif inside and ended and line != "}":
            out.append(f"{line} (behind the end of its block)")
        elif line == "}" and not (inside and ended):
            out.append("} (of a block without an end)")
        inside = (inside or line.startswith("define ")) and line != "}"
        ended = ended or bool(_TERMINATOR.match(line)) if not label else False
        if line.startswith("define "):
            ended = False
    return out


def check(text: str, backend: str) -> None:
    """Fail on what is not in the grammar."""
    found = faults(text, backend)
    assert not found, f"{len(found)} lines of a device text for {backend} are not in docs/device-text.md: {found[:5]}"
