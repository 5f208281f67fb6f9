"""The chart library of a report: plotly.js, as the Python package ``plotly`` ships it, packed into the page."""

from __future__ import annotations

import gzip
from base64 import b64encode

from ....compiler.errors import QdrunError

VERSION = 4
"""The major version of plotly.js that the page is written for: the first that has arrows (``quiver``)."""


class PlotsMissing(QdrunError, ImportError):
    """The chart library is not installed, or too old."""


def library() -> str:
    """The source of plotly.js.

    Raises:
        PlotsMissing: it is not installed, or older than ``VERSION``.
    """
    try:
        from plotly.offline import get_plotlyjs, get_plotlyjs_version
    except ImportError as error:
        raise PlotsMissing(
            "the charts of a report are drawn by plotly, which is not installed\n  do: pip install plotly"
        ) from error
    found = get_plotlyjs_version()
    if int(found.split(".")[0]) < VERSION:
        raise PlotsMissing(
            f"the charts of a report need plotly.js {VERSION}, and the installed plotly has {found}\n  do: pip install -U plotly"
        )
    return get_plotlyjs()


def packed(source: str) -> str:
    """A script as base64 of its gzip form, which is 0.4 of its size; equal for equal scripts."""
    return b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()


__all__ = ["PlotsMissing", "library", "packed"]
