"""The documentation as a site: it is built with every warning an error, and all of its pages are rendered."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="mkdocs-material is an extra: pip install -e '.[docs]'")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "mkdocs.yml"), "-d", str(out)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
def test_links_and_anchors_lead_somewhere_and_every_page_is_in_the_navigation(site):
    """``--strict`` has checked both; each page of docs/ has become one of the site."""
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("").as_posix()
        name = name.removesuffix("README").removesuffix("index")
        assert (site / name / "index.html").is_file(), name


@pytest.mark.slow
def test_no_table_and_no_block_of_code_is_left_as_text(site):
    for page in site.rglob("index.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^(\| --- \||```)", text, re.M), page


@pytest.mark.slow
def test_files_of_the_repository_that_pages_link_to_are_there(site):
    assert (site / "source/jobs/gallery/smoke.py").read_bytes() == (ROOT / "jobs/gallery/smoke.py").read_bytes()
    assert 'href="../../cli/#new"' in (site / "source/CHANGELOG/index.html").read_text(encoding="utf-8")
