"""The documents as a reader moves through them: on GitHub and on the site of `make docs`."""

import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import trueline as tl

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)


def links(text: str) -> list[str]:
    """The links of a page that stay in the repository; what stands in code is none."""
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


class Addresses(HTMLParser):
    """The addresses and the anchors of a page of the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and tag != "base":
                self.links.append(value or "")
            elif name == "id":
                self.ids.add(value or "")


def broken_on_site(page: Path, pages: dict[Path, Addresses]) -> list[str]:
    """The addresses of a page of the site that lead nowhere; other sites are not asked."""
    found = []
    for link in pages[page].links:
        address = urlsplit(link)
        if address.scheme or address.netloc:
            continue
        target = (page.parent / unquote(address.path)).resolve() if address.path else page
        target = target / "index.html" if target.is_dir() else target
        ids = pages[target].ids if target in pages else set()
        anchor = unquote(address.fragment)
        if not target.is_file() or (anchor and anchor not in ids):
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
def test_the_site_is_built_and_every_address_on_it_leads_somewhere(tmp_path):
    command = [sys.executable, ROOT / "docs" / "build_site.py", tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {
        path.resolve(): Addresses(path.read_text("utf-8"))
        for path in (tmp_path / "site").rglob("*.html")
        if path.name != "404.html"
    }
    assert {page.name: found for page in pages if (found := broken_on_site(page, pages))} == {}
    reference = pages[(tmp_path / "site" / "docs" / "api.html").resolve()].ids
    assert [name for name in tl.__all__ if f"trueline.{name}" not in reference] == []


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
