"""Hooks of mkdocs.yml: pages link to files of the repository that lie outside of docs/; the site gets copies of these files."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"^```.*?^```$", re.S | re.M)


def place(path: Path) -> str:
    """Where a file of the repository lies on the site; README.md is the first page."""
    if path == ROOT / "README.md":
        return "index.md"
    name = path.relative_to(DOCS if DOCS in path.parents else ROOT).as_posix()
    return name if DOCS in path.parents else f"source/{name}"


def targets(text: str, folder: Path) -> set[Path]:
    """The files that a page links to."""
    return {(folder / target).resolve() for target, _ in LINK.findall(FENCED.sub("", text))}


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to outside of docs/, and what those pages link to."""
    waiting = [Path(str(file.abs_src_path)) for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        for path in targets(page.read_text(encoding="utf-8"), page.parent) - seen:
            seen.add(path)
            if path.is_file() and ROOT in path.parents and DOCS not in path.parents and path != ROOT / "README.md":
                files.append(File.generated(config, place(path), abs_src_path=str(path)))
                if path.suffix == ".md":
                    waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Point the links of a page at the places of their files on the site."""
    file = page.file
    folder = Path(str(file.abs_src_path)).parent

    def moved(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if not target.is_file() or ROOT not in target.parents:
            return link[0]  # mkdocs reports it
        return f"]({posixpath.relpath(place(target), posixpath.dirname(file.src_uri) or '.')}{link[2] or ''})"

    markdown = re.sub(r"^```(\w+) file=(\S+)$", r'```\1 title="\2"', markdown, flags=re.M)
    markdown = re.sub(r"^```(\w+) (?!title=).+$", r"```\1", markdown, flags=re.M)  # words for tests/examples/test_docs.py
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.S | re.M)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)
