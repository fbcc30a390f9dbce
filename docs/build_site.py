"""The documents and the docstrings -> a static site: `make docs`, or python docs/build_site.py.

The pages are copied to a scratch folder laid out as the repository is, so that their links work
unchanged. The page of the Python names is made from `trueline.__all__` and the contracts; the
sections of docs/README.md become the menu. zensical then builds the site and refuses a broken
link, a broken anchor or a name without a docstring page. No model and no torch is needed.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Template

import griffe

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
COPIED = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "LICENSE", "docs")
REFERENCE = "docs/api.md"
CONTRACTS = ("Method", "Engine", "Embedder", "Judge")  # what a plug-in implements

# The sections of the page of the Python names, and what each says.
SECTIONS = {
    "Functions": "What a program calls, from examples to answers.",
    "Methods": "The decoding methods; each is frozen settings, most with a space.",
    "Values and errors": "What goes in and comes out.",
    "Contracts": "What to implement to plug something in; CONTRIBUTING.md says where.",
}


def build_site(out: Path) -> None:
    """Build the site into a folder, whose old content goes; strict about every link."""
    with tempfile.TemporaryDirectory() as scratch:
        stage = Path(scratch)
        for name in COPIED:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("*.py", "zensical.toml", "__pycache__")
                shutil.copytree(ROOT / name, stage / "pages" / name, ignore=ignored)
            else:
                (stage / "pages").mkdir(exist_ok=True)
                shutil.copy(ROOT / name, stage / "pages" / name)
        (stage / "pages" / REFERENCE).write_text(reference(), "utf-8")
        (stage / "zensical.toml").write_text(site_config(), "utf-8")
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        subprocess.run(command, cwd=stage, check=True)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(stage / "site", out)


def site_config() -> str:
    """The configuration of zensical, filled in from pyproject.toml and docs/README.md."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    template = Template((ROOT / "docs" / "zensical.toml").read_text("utf-8"))
    return template.substitute(
        description=json.dumps(project["description"]),
        repository=json.dumps(project["urls"]["Source"]),
        source=json.dumps(str(SOURCE)),
        menu=menu((ROOT / "docs" / "README.md").read_text("utf-8")),
    )


def menu(index: str) -> str:
    """The menu as TOML: a section for each of the index, then the project's own pages."""
    sections = {"Start": ["README.md", "docs/README.md"]}
    for part in index.split("\n## ")[1:]:
        title = part.partition("\n")[0]
        sections[title] = [f"docs/{page}" for page in re.findall(r"^\| \[(.*?)\]", part, re.M)]
    sections["Reference"].insert(0, REFERENCE)
    sections["Project"] = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
    tables = [f"{{{json.dumps(key)} = {json.dumps(pages)}}}" for key, pages in sections.items()]
    return f"[{', '.join(tables)}]"


def reference() -> str:
    """The page of the Python names: a directive for each, which mkdocstrings fills in."""
    package = griffe.load("trueline", search_paths=[SOURCE])
    assert isinstance(package, griffe.Module)
    names = {section: list[str]() for section in SECTIONS}
    for name in public_names():
        names[section_of(name, package)].append(f"trueline.{name}")
    names["Contracts"] = [contract(name, package) for name in CONTRACTS]
    lines = ["# Python reference", "", "Made from the docstrings of `import trueline as tl`."]
    for section, about in SECTIONS.items():
        lines += ["", f"## {section}", "", about]
        for name in names[section]:
            lines += ["", f"::: {name}"]
            if section == "Methods":  # their signature says it all; Method has the rest
                lines += ["    options:", "      members: false"]
    return "\n".join(lines) + "\n"


def public_names() -> list[str]:
    """What `import trueline as tl` offers; the import itself is light."""
    sys.path.insert(0, str(SOURCE))
    import trueline

    return list(trueline.__all__)


def section_of(name: str, package: griffe.Module) -> str:
    """Where a public name stands on the page."""
    if name[0].islower():
        return "Functions"
    home = package[name]
    path = home.target_path if isinstance(home, griffe.Alias) else home.path
    return "Methods" if path.startswith("trueline.methods.") else "Values and errors"


def contract(name: str, package: griffe.Module) -> str:
    """The full path of a contract, wherever in the package it is defined."""
    found = [member.path for member in classes(package) if member.name == name]
    if len(found) != 1:
        raise SystemExit(f"the contract {name} is defined {len(found)} times: {found}")
    return found[0]


def classes(module: griffe.Module) -> Iterator[griffe.Class]:
    """Every class that is defined in a module or below it."""
    for member in module.members.values():
        if isinstance(member, griffe.Class):
            yield member
        elif isinstance(member, griffe.Module):
            yield from classes(member)


if __name__ == "__main__":
    build_site(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "site")
