"""The notebook of the docs in a real Jupyter kernel: what it prints, its progress, and its run from the folder alone."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from qdrun.compiler.runtime.cache import cache_dir
from qdrun.runner import load
from qdrun.runner.engine.resume import config_of
from qdrun.runner.jobcode.store import KEPT
from qdrun.runner.observe import live, notebook
from qdrun.runner.observe.board import Board

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def printed(cell):
    return [output["text"] for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"]


def shown(cell):
    return [output.data["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]


def test_progress_is_one_output_that_is_written_again_with_every_text_escaped(monkeypatch):
    """IPython's display handles by a stand-in; the real ones are in the slow test."""
    outputs = []

    def made(shown, display_id, raw):
        outputs.append(shown)
        return SimpleNamespace(update=lambda shown, raw: outputs.append(shown))

    shows = SimpleNamespace(HTML=str, display=made)
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=shows))
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    board = Board(run="<b>run", total=2)
    assert not isinstance(notebook.display(board, quiet=True), live.Unbroken) and not notebook.in_notebook(), (
        "a console of IPython"
    )
    shell.kernel = object()
    clock = [100.0]
    monkeypatch.setattr(notebook, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with notebook.display(board) as cell:
        cell.note("<script>1</script>")
        cell.update()
        clock[0] += 1.0
        cell.update()
    assert len(outputs) == 4, "at its begin, for the note, a second later, at its end"
    html, plain = outputs[-1]["text/html"], outputs[-1]["text/plain"]
    assert "&lt;script&gt;" in html and "<script" not in html and "&lt;b&gt;run" in html
    assert "<b>run" in plain and "<script>1</script>" in plain and "\x1b" not in plain


@pytest.mark.slow
def test_the_notebook_of_the_docs_prints_what_it_says(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
    book = nbformat.read(NOTEBOOK, 4)
    before = [printed(cell) for cell in book.cells if cell.cell_type == "code"]
    how = {"timeout": 120, "kernel_name": "python3", "resources": {"metadata": {"path": str(tmp_path)}}}
    nbclient.NotebookClient(book, **how).execute()
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [printed(cell) for cell in cells] == before and any(before)
    planned, (progress, run) = shown(cells[3]), shown(cells[4])
    assert "memory of one trial (6 trials" in planned[0]
    assert "6 done" in progress and "finished" in progress, "one output, written again"
    assert "<th>grad.speed</th>" in run and run.count("<tr>") == 7
    for path in sorted((cache_dir() / "cells").rglob("*.py")):
        path.unlink()
    found = load("throws", runs=tmp_path / "runs")
    prepared, job = config_of(found.folder)
    assert len(prepared.trials) == 6 and job.__name__ == "Throw" and prepared.target.home == KEPT
    assert json.loads((found.folder.path / "run.json").read_bytes().decode())["kept_of"] == "notebook"
