"""A table of a run as CSV and as JSON, formatted column by column."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from json.encoder import encode_basestring_ascii
from typing import Any

from ..store.encoding import plain
from .run_table import RunTable


class _Lines(list[str]):
    """What a writer of CSV writes, row by row."""

    write = list[str].append


def csv_lines(parts: Iterable[RunTable], names: Sequence[str], escape_formulas: bool = False) -> Iterator[str]:
    """Yield the rows as CSV with a header, line by line. Arrays are JSON strings, missing values are empty.

    Args:
        parts: of the table.
        names: of the columns.
        escape_formulas: put ``'`` before strings that a spreadsheet would run as a formula.
    """
    lines = _Lines()
    # Python before 3.11.9 quotes the characters of this line end alone
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow(names)
    for part in chain(parts, [None]):
        yield from (line.removesuffix("\r\n") + "\n" for line in lines)
        lines.clear()
        if part is not None:
            cells = [part.mapped(name, lambda values: _csv_cells(values, escape_formulas)) for name in names]
            writer.writerows(zip(*cells, strict=True))


def _csv_cells(values: list[Any], escape_formulas: bool) -> list[Any]:
    kinds = set(map(type, values))
    if kinds & {list, dict}:
        values = [json.dumps(plain(value)) if isinstance(value, list | dict) else value for value in values]
    return list(map(_escaped, values)) if escape_formulas and str in kinds else values


def _escaped(value: Any) -> Any:
    """Escape a formula as OWASP's page "CSV Injection" advises. Numbers are left alone: a sign is theirs."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value


def json_rows(parts: Iterable[RunTable], indent: int) -> Iterator[str]:
    """The rows as a JSON list in pieces, as ``json.dumps`` writes them at that depth. Numbers that are not finite become texts."""
    between, edge = "[", "\n" + " " * indent
    for part in parts:
        columns = []
        for name in part.data.schema.names:
            texts, head = part.mapped(name, lambda values: _json_texts(values, f"{edge} ")), f"{json.dumps(name)}: "
            left_out = "null" if name in part.partial else ""
            columns.append([None if text == left_out else head + text for text in texts])
        for cells in zip(*columns, strict=True):
            yield f"{between}{edge}{{{edge} {f',{edge} '.join(filter(None, cells))}{edge}}}"
            between = ","
    yield "[]" if between == "[" else edge[:-1] + "]"


def _json_texts(values: list[Any], edge: str) -> list[str]:
    """Each value as JSON; those of one type at once. ``edge``: the line break before the end of a list, with the depth."""
    kinds = set(map(type, values))
    if kinds == {int} or (kinds == {float} and all(map(math.isfinite, values))):
        return list(map(repr, values))
    if kinds == {str}:
        return list(map(encode_basestring_ascii, values))
    if kinds == {list}:
        items, between = iter(_json_texts(list(chain.from_iterable(values)), f"{edge} ")), f",{edge} "
        return [f"[{edge} {between.join(islice(items, len(value)))}{edge}]" if value else "[]" for value in values]
    if type(None) in kinds and len(kinds) <= 2:
        texts = iter(_json_texts([value for value in values if value is not None], edge))
        return ["null" if value is None else next(texts) for value in values]
    return [json.dumps(plain(value), indent=1).replace("\n", edge) for value in values]


__all__ = ["csv_lines", "json_rows"]
