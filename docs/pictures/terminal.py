"""Writes what `qdrun watch RUN` and `qdrun results RUN` show on a terminal as SVG: python docs/pictures/terminal.py RUN watch.svg.

The name of the file decides which of the two. For `watch` the run has to go on meanwhile.
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from qdrun.runner.observe.listing import table_of
from qdrun.runner.observe.live import render
from qdrun.runner.observe.view import view_of
from qdrun.runner.store.layout import RunFolder, find

COLUMNS, ROWS = "trial,stiffness,damping,loss,gradient_norm", 12


def shown(folder: RunFolder, command: str) -> RenderableType:
    """What a command prints."""
    if command == "watch":
        return render(view_of(folder))
    return Text("".join(table_of(folder, sort="loss", columns=COLUMNS.split(","), limit=ROWS).lines("table")))


def main(run: str, out: str) -> None:
    """Write the picture."""
    command = Path(out).stem
    console = Console(record=True, file=io.StringIO(), width=108, force_terminal=True)
    options = "" if command == "watch" else f" --sort loss --limit {ROWS} --columns {COLUMNS}"
    console.print(f"$ qdrun {command} latest{options}", style="bold", highlight=False)
    console.print(shown(find(run, "runs"), command))
    picture = console.export_svg(title=f"qdrun {command}")
    Path(out).write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.S), encoding="utf-8")  # these would be fetched


if __name__ == "__main__":
    main(*sys.argv[1:])
