"""The value types of a config: amounts of memory and time, names, devices, targets, URIs.

Each is a type for pydantic models that says what is wrong, what is allowed and what to do, and what an editor's schema says of it.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeGuard

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from ...compiler.amounts import bytes_in
from ...compiler.errors import QdrunError

EMULATED = "emulated"
"""The ``device.id`` of a GPU that this machine's CPU plays: for tests, and to try a config where there is none. Slow."""
SOFTWARE = "llvmpipe"
"""The ``device.id`` of the driver by which this machine's CPU is a GPU, for the same."""
INTERPRETER = "python"
"""The ``device.backend`` of the reference interpreter, which runs kernels on the CPU without machine code."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
DEVICE_ID = re.compile(
    r"(?:GPU|MIG)-[0-9a-fA-F-]+|(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]|emulated(?::gfx\w+)?(?::\d)?|llvmpipe"
)
TARGET = re.compile(r"(?:[^:\s]+|[^:\n]+\.py):[A-Za-z_]\w*")
SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
DURATION = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([a-z]*)\s*")
PERCENT = re.compile(r"(\d+(?:\.\d*)?)\s*%")
VARIABLE = re.compile(r"\$([A-Za-z_]\w*|\{[A-Za-z_]\w*\})")
URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://.*")


def refuse(what: str, *, allowed: Sequence[str] = (), hint: str = "") -> PydanticCustomError:
    """An error of a validator that carries the allowed values and what to do."""
    return PydanticCustomError("refused", "{what}", {"what": what, "allowed": list(allowed), "hint": hint})


class NoVariable(QdrunError, ValueError):
    """A path names a variable of the environment that is not set."""

    exit_code = 2


def expanded(text: str) -> str:
    """A path or URI with its ``~``, ``$NAME`` and ``${NAME}`` replaced, as a shell does.

    Raises:
        NoVariable: a variable is not set, or empty.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1].strip("{}")
        if not os.environ.get(name):
            raise NoVariable(f"`{text}`: the variable {name} is not set\n  do: set it, or write the path itself")
        return os.environ[name]

    return os.path.expanduser(VARIABLE.sub(value, text))


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value of a config is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value of a config is a finite number, that is: one in the range of doubles."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _parse_bytes(value: Any) -> Any:
    if is_whole(value) and value > 0:
        return value
    found = bytes_in(value) if isinstance(value, str) else None
    if not found:
        raise refuse(f"`{value}` is not an amount of memory", allowed=("bytes as a number", "512MiB", "2GiB", "1.5GB"))
    return found


def _parse_budget(value: Any) -> Any:
    if value == "auto":
        return value
    try:
        return _parse_bytes(value)
    except PydanticCustomError as error:
        what = f"`{value}` is not an amount of memory, and not `auto`"
        raise refuse(what, allowed=("auto", *(error.context or {})["allowed"])) from None


def _parse_batch(value: Any) -> Any:
    if value in ("auto", "off") or (is_whole(value) and value >= 1):
        return value
    hint = "write off, without quotes or with" if value is False else ""
    raise refuse(f"`{value}` is not a number of trials", allowed=("auto", "off", "a count from 1 on"), hint=hint)


def _parse_seconds(value: Any) -> Any:
    match = DURATION.fullmatch(value) if isinstance(value, str) else None
    seconds = float(value) if is_number(value) else float(match[1]) * SECONDS.get(match[2] or "s", 0.0) if match else 0.0
    if seconds <= 0 or not math.isfinite(seconds):
        what = f"`{value}` is not a time greater than 0"
        raise refuse(what, allowed=("seconds as a number", "90s", "10m", "1.5h", "2d"), hint="write a number and its unit")
    return seconds


def _parse_share(value: Any) -> Any:
    match = PERCENT.fullmatch(value) if isinstance(value, str) else None
    if (is_whole(value) and value >= 0) or (match and float(match[1]) <= 100):
        return value
    raise refuse(f"`{value}` is neither a count nor a share", allowed=("a count from 0 on", '"10%"'), hint='write 5 or "10%"')


def _parse_number(value: Any) -> Any:
    if not is_number(value):
        raise refuse(f"`{value}` is not a finite number", allowed=("numbers such as 3, 0.5 and 1e-3",))
    return value


def _parse_name(value: Any) -> Any:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise refuse(
            f"`{value}` cannot be the name of a run",
            hint="use 1 to 64 letters, digits, `-`, `_` and `.`, a letter or digit first",
        )
    return value


def _parse_device(value: Any) -> Any:
    whole = is_whole(value) and value >= 0
    if value is not None and not whole and not (isinstance(value, str) and DEVICE_ID.fullmatch(value)):
        raise refuse(
            f"`{value}` does not name a device", allowed=("an index, 0 the first", "GPU-<uuid>", "0000:3b:00.0", EMULATED)
        )
    return value


def _parse_target(value: Any) -> Any:
    if not isinstance(value, str) or not TARGET.fullmatch(value):
        raise refuse(f"`{value}` does not name a job", allowed=("package.module:Name", "path/to/file.py:Name"))
    return value


def _parse_uri(value: Any) -> Any:
    match = URI.fullmatch(value) if isinstance(value, str) else None
    if not isinstance(value, str) or not value.strip() or "\0" in value or (match is None and "://" in value):
        raise refuse(f"`{value}` is neither a folder nor a URI", allowed=("runs", "file:///data/runs", "s3://bucket/runs"))
    if match is not None:
        from fsspec import available_protocols

        known = sorted({str(name) for name in available_protocols()})
        if match[1].lower() not in known:
            from .yaml_lines import did_you_mean

            hint = did_you_mean(match[1], known) or "use a protocol of fsspec"
            raise refuse(f"`{match[1]}` is no protocol of fsspec", allowed=known, hint=hint)
    return value


def allowed_count(share: int | str | None, total: int) -> int | None:
    """A count, or a share such as ``10%`` of ``total``, rounded down, as a count; None stays None."""
    if isinstance(share, str):
        return int(total * float(share.rstrip("% ")) / 100.0)
    return share


def _schema(first: dict[str, Any], *others: dict[str, Any], **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [first, *others], **more} if others else {**first, **more})


_WHOLE = {"type": "integer", "minimum": 1}
_SIZE = {"type": "string", "pattern": r"^\s*\d+(\.\d*)?\s*([kKmMgGtT][iI]?)?[bB]?\s*$"}
_INDEX = {"type": "integer", "minimum": 0}

Bytes = Annotated[int, BeforeValidator(_parse_bytes), _schema(_WHOLE, _SIZE, examples=["512MiB", "2GiB"])]
Budget = Annotated[Any, BeforeValidator(_parse_budget), _schema({"const": "auto"}, _WHOLE, _SIZE)]
Batch = Annotated[Any, BeforeValidator(_parse_batch), _schema({"enum": ["auto", "off"]}, _WHOLE)]
Seconds = Annotated[
    float,
    BeforeValidator(_parse_seconds),
    _schema({"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"^\s*\d+(\.\d*)?\s*(s|m|min|h|d)?\s*$"}),
]
Share = Annotated[
    Any,
    BeforeValidator(_parse_share),
    _schema(_INDEX, {"type": "string", "pattern": r"^\d+(\.\d*)?\s*%$"}, examples=[5, "10%"]),
]
Number = Annotated[Any, BeforeValidator(_parse_number), _schema({"type": "number"})]
Name = Annotated[str, BeforeValidator(_parse_name), _schema({"type": "string", "pattern": f"^{NAME.pattern}$"})]
DeviceId = Annotated[int | str | None, BeforeValidator(_parse_device), _schema(_INDEX, {"type": "string"}, {"type": "null"})]
TargetText = Annotated[str, BeforeValidator(_parse_target), _schema({"type": "string", "pattern": f"^{TARGET.pattern}$"})]
Uri = Annotated[str, BeforeValidator(_parse_uri), _schema({"type": "string", "minLength": 1})]


def differing(mine: Mapping[str, Any], other: Mapping[str, Any], above: str = "") -> list[str]:
    """The dotted keys of two configs that have other values, as deep as both are maps."""
    found: list[str] = []
    for key in sorted({*mine, *other}):
        a, b = mine.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differing(a, b, f"{above}{key}.")
        elif a != b:
            found.append(f"{above}{key}")
    return found
