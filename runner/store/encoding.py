"""The JSON of the run folder: strict, lossless, and with a checksum that detects every flipped bit.

Strict JSON has no infinities, no NaN and no lone surrogates. In documents and in the lines of ``trials.jsonl`` they are objects with one
key: ``{"$float": "Infinity"}``, ``{"$codepoints": [55296]}``; a user's object that looks like one of these is ``{"$object": [[key,
value], ..]}``. Events of the journal and documents for people (``--json``) have such floats as the texts ``"NaN"``, ``"Infinity"`` and
``"-Infinity"``, where a number is expected anyway.

Every line and every document ends with ``,"crc":"<CRC-32 of all bytes before>"}``, so it is JSON for every other reader, too.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections import defaultdict
from typing import Any

import numpy as np
from pydantic_core import from_json, to_json

from ...compiler.errors import QdrunError
from .interface import Files

SEAL_BYTES = len(',"crc":"00000000"}')
MOST_DIGITS = 4300
"""Maximum digits of an integer: Python's default limit for parsing."""
_ENDLESS = re.compile(rb"\d{%d}" % (MOST_DIGITS + 1))
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TAGS = ("$float", "$codepoints", "$object")


class Damaged(QdrunError, ValueError):
    """Bytes of a run folder are not those that were written."""


def crc_of(data: bytes | memoryview) -> int:
    """The CRC-32 of ``data``."""
    return zlib.crc32(data)


def sealed(text: bytes, *, looked_through: bool = False) -> bytes:
    """A JSON object, which is not empty, with its checksum as the last member.

    ``looked_through``: its integers are known to be short, so that they need not be searched for.

    Raises:
        ValueError: it holds an integer of more digits than Python reads again.
    """
    if not looked_through and len(text) > MOST_DIGITS and _ENDLESS.search(text):
        raise ValueError(f"an integer of more than {MOST_DIGITS} digits")
    body = text[:-1]
    return b'%b,"crc":"%08x"}' % (body, zlib.crc32(body))


class NewLines:
    """Reads files of lines that grow, again and again."""

    def __init__(self, files: Files) -> None:
        self._files, self._read = files, defaultdict[str, int](int)

    def of(self, path: str, size: int | None = None, most: int | None = None) -> list[bytes]:
        """The lines of a file since the last call. One that is still being written waits. ``size``: of the file, where it is known.
        ``most``: the bytes of the file that count; None: all.
        """
        start = self._read[path]
        if (size is not None and size <= start) or (most is not None and most <= start):
            return []
        data = self._files.read(path, start, most)
        whole = data.rfind(b"\n") + 1
        self._read[path] += whole
        return data[:whole].splitlines()


def is_sealed(data: bytes) -> bool:
    """Whether ``data`` is what ``sealed`` gave, bit for bit."""
    return len(data) > SEAL_BYTES and data[-SEAL_BYTES:] == b',"crc":"%08x"}' % zlib.crc32(memoryview(data)[:-SEAL_BYTES])


def unsealed(data: bytes) -> dict[str, Any]:
    """The members of a sealed object, without the checksum.

    Raises:
        Damaged: it is not sealed, or not whole.
    """
    if not is_sealed(data):
        raise Damaged(_why(data))
    return from_json(data[:-SEAL_BYTES] + b"}")


def _why(data: bytes) -> str:
    if not data:
        return "it is empty"
    if not data.endswith(b"}"):
        return f"it ends in the middle, after {len(data):,} bytes"
    return "its checksum does not match" if data[-SEAL_BYTES:].startswith(b',"crc":"') else "it has no checksum"


def document(data: dict[str, Any], indent: int | None = None) -> bytes:
    """A document of the run folder: sealed strict JSON from which ``read_document`` gives equal values of the same types."""
    return sealed(json.dumps(tagged(data), indent=indent, allow_nan=False).encode() if indent else lossless(data))


def read_document(data: bytes) -> dict[str, Any]:
    """Decode the argument of ``document``; tuples become lists.

    Raises:
        Damaged: the bytes have changed since they were written.
    """
    found = unsealed(data)
    return untagged(found) if b'"$' in data else found


def lossless(data: Any) -> bytes:
    """Strict JSON, with tags where JSON has no such value."""
    try:
        text = to_json(data, inf_nan_mode="constants")
    except ValueError:  # a lone surrogate
        return json.dumps(tagged(data), allow_nan=False, separators=(",", ":")).encode()
    if b'"$' in text or b"NaN" in text or b"Infinity" in text:
        return to_json(tagged(data))
    return text


def tagged(value: Any) -> Any:
    """``value`` with an object of one key for each thing that strict JSON does not have; see the module."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": spelled(value)}
    if isinstance(value, str):
        return value if _encodes(value) else {"$codepoints": [ord(c) for c in value]}
    if isinstance(value, dict):
        if any(not _encodes(key) for key in value) or (len(value) == 1 and next(iter(value)) in _TAGS):
            return {"$object": [[tagged(key), tagged(item)] for key, item in value.items()]}
        return {key: tagged(item) for key, item in value.items()}
    return [tagged(item) for item in value] if isinstance(value, list | tuple) else value


def untagged(value: Any) -> Any:
    """Decode the argument of ``tagged``."""
    if isinstance(value, list):
        return [untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, inner),) = value.items()
        if tag == "$float":
            return _FLOATS[inner]
        if tag == "$codepoints":
            return "".join(map(chr, inner))
        if tag == "$object":
            return {untagged(key): untagged(item) for key, item in inner}
    return {key: untagged(item) for key, item in value.items()}


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def spelled(value: float) -> str:
    """A float that is not finite, as text: ``NaN``, ``Infinity``, ``-Infinity``."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain(value: Any) -> Any:
    """``value`` as strict JSON can hold it: numbers that are not finite become texts: ``NaN``, ``Infinity``, ``-Infinity``."""
    if isinstance(value, float) and not math.isfinite(value):
        return spelled(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def readable(value: Any) -> Any:
    r"""``value`` with texts that every reader takes: a lone surrogate, half of a character, becomes its escape (``\ud800``)."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {readable(key): readable(item) for key, item in value.items()}
    return [readable(item) for item in value] if isinstance(value, list | tuple) else value


def writable(data: dict[str, Any]) -> dict[str, Any]:
    """``data`` as ``to_json`` takes it: as it is where that works, else with numpy's scalars as Python's, and the rest as text."""
    try:
        sealed(to_json(data, inf_nan_mode="strings"))
    except Exception:
        return {_key(key): _written(value) for key, value in data.items()}
    return data


def _key(key: Any) -> str:
    return readable(key) if isinstance(key, str) else _written_text(key)


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): _written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_written(item) for item in value]
    try:
        if isinstance(value, np.generic):
            value = float(value) if isinstance(value, np.floating) else value.item()
        value = readable(value)
        sealed(to_json(value, inf_nan_mode="strings"))
    except Exception:
        return _written_text(value)
    return value


def _written_text(value: Any) -> str:
    try:
        return readable(repr(value)[:200])
    except Exception:  # a __repr__ of the user's own, or an integer of thousands of digits
        return f"<{type(value).__name__}>"
