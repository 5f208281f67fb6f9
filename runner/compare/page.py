"""Two runs on one page of HTML: the report of both, with what differs."""

from __future__ import annotations

import os

from ..observe.report.document import html
from ..observe.report.library import library
from ..observe.report.material import gather
from ..observe.report.page import section, soft, table, text
from ..observe.table import write_file
from ..store.layout import RunFolder
from .runs import RunPair, shown


def write_page(pair: RunPair, out: str | os.PathLike[str]) -> str:
    """Write the page of two runs to a file or URI; gives its path.

    Raises:
        PlotsMissing: the chart library is not installed.
        StorageFull: no room.
        NoPlace: it cannot be written there.
    """
    return write_file(out, page_of(pair, library()).encode("utf-8", "replace"))


def page_of(pair: RunPair, plotly: str) -> str:
    """The page. ``plotly``: the source of the chart library."""
    runs = [gather(RunFolder(run.folder)) for run in pair.runs]
    return html(runs, plotly, linked=True, differences=differences(pair))


def differences(pair: RunPair) -> list[str]:
    """Sections about the ends, the configs, the code and the versions of two runs, and the numbers of the trials that both have."""
    names = [run.run for run in pair.runs]
    config = [[text(key), *(text(shown(value)) for value in values)] for key, values in pair.config.items()]
    versions = [[text(name), *map(text, values)] for name, values in pair.versions.items()]
    return [
        section("ends", "Both runs", table(["", *names], [[*map(text, row)] for row in pair.ends()])),
        section("differences", "Config", table(["key", *names], config) if config else soft("The configs are equal.")),
        section("code", "Code", soft(f"{', '.join(pair.sources)} differ." if pair.sources else "The code is equal.")),
        section("versions", "Versions", table(["", *names], versions)) if versions else "",
        section("numbers", "Trials of both", f"<pre>{text(pair.numbers.text)}</pre>") if pair.common else "",
    ]


__all__ = ["differences", "page_of", "write_page"]
