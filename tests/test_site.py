"""The documents as a reader moves through them: on GitHub and on the site of `make docs`."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import trueline as tl

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)


def links(text: str) -> list[str]:
    """The links of a page that stay in the repository, without those in code."""
    return [link for link in LINK.findall(CODE.sub("", text)) if "://" not in link]


def anchors(text: str) -> set[str]:
    """The anchors GitHub gives the headings of a page."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        is_there = target.is_file() and (ROOT in target.parents or not path)
        if not is_there or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_and_anchor_of_a_page_exists(page):
    assert broken(page, page.read_text("utf-8")) == []


def test_a_broken_link_a_broken_anchor_and_a_link_to_a_folder_are_found(tmp_path):
    text = "# One\n## A `b`, c\n[a](no.md) [b](#a-b-c) [c](#no) [d](.) `[e](f.md)`\n"
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    assert broken(page, text) == ["no.md", "#no", "."]


def test_the_menu_has_every_page_of_the_index():
    site = runpy.run_path(str(ROOT / "docs" / "build_site.py"))
    menu = site["menu"]((ROOT / "docs" / "README.md").read_text("utf-8"))
    listed = re.findall(r'"docs/(.*?)"', menu)
    pages = [page.name for page in (ROOT / "docs").glob("*.md")]
    assert sorted(listed) == sorted([*pages, "api.md"])


@pytest.mark.slow
def test_the_site_is_built_with_every_public_name(tmp_path):
    command = [sys.executable, ROOT / "docs" / "build_site.py", tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    ids = re.findall(r'id="(.*?)"', (tmp_path / "site/docs/api.html").read_text("utf-8"))
    assert [name for name in tl.__all__ if f"trueline.{name}" not in ids] == []


@pytest.mark.slow
def test_a_site_with_a_broken_link_is_refused(tmp_path):
    for name in ("docs", "src"):
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for path in [*ROOT.glob("*.md"), ROOT / "LICENSE", ROOT / "pyproject.toml"]:
        shutil.copy(path, tmp_path / path.name)
    (tmp_path / "README.md").write_text("# Home\n\n[nowhere](docs/nowhere.md)\n", "utf-8")
    command = [sys.executable, tmp_path / "docs" / "build_site.py", tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "README.md:3" in re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
