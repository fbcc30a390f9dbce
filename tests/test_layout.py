"""The layout is the flow of the data: ten layers, and each imports only from earlier ones."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from trueline.methods import built_in_names

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "trueline"
README = ROOT / "README.md"
LAYERS = [
    layer.split()
    for layer in """errors text settings types files
        examples prompts
        engines
        embed onnx search cluster
        store space
        methods/base decode
        methods corrective rad
        session explain
        serve integrations lab
        cli""".splitlines()
]
SHORTHANDS = {  # Answer.explain; RAD's entries, which a space carries and never looks into
    ("types", "explain"),
    ("space", "rad/entries"),
    ("space", "rad/build"),
}
METHODS = ("types", "methods", "corrective", "rad", "lab/paper")  # where a method may be named
MODULES = sorted(SOURCE.rglob("*.py"))
# The package itself may import every stage.
STAGES = [path for path in MODULES if path.parent != SOURCE or path.name[:2] != "__"]


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imports(tree: ast.AST, package: str = "trueline") -> list[str]:
    """Every module of a package that is imported anywhere in a tree, inside functions too."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "trueline":
            found += [f"trueline.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return [name for name in found if name.split(".")[0] == package]


def tracked() -> list[Path]:
    """The files git knows or would add."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git checkout")
    return [path for name in done.stdout.split("\0") if (path := ROOT / name).is_file()]


def layer_of(name: str) -> int:
    """The layer of a module, by its path below the package, or of the folder it is in."""
    for part in (name, name.split("/")[0]):
        for number, layer in enumerate(LAYERS):
            if part in layer:
                return number
    raise AssertionError(f"{name} is in no layer")


@pytest.mark.parametrize("path", STAGES, ids=name_of)
def test_imports_come_from_the_same_layer_or_an_earlier_one(path):
    here = path.relative_to(SOURCE).with_suffix("").as_posix()
    later = {
        there
        for name in imports(tree_of(path))
        if (there := name.removeprefix("trueline").lstrip(".").replace(".", "/"))
        and there != "__version__"  # the one name that the package itself gives
        and (here, there) not in SHORTHANDS
        and layer_of(there) > layer_of(here)
    }
    assert later == set()


def test_only_the_lab_and_the_commands_import_the_lab():
    importers = {
        path.relative_to(SOURCE).parts[0]
        for path in MODULES
        if any(name.startswith("trueline.lab") for name in imports(tree_of(path)))
    }
    assert importers <= {"lab", "cli"}


@pytest.mark.parametrize("path", STAGES, ids=name_of)
def test_no_module_names_a_method_or_an_engine(path):
    """Methods and engines are chosen by what they can do, so that others can be added."""
    here = path.relative_to(SOURCE).as_posix()
    tree = tree_of(path)
    if not here.startswith(METHODS):
        words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        names = set(built_in_names()) - {"id"}  # many things have an id
        assert not words & names, f"{name_of(path)} names a method"
        of_methods = [name for name in imports(tree) if name.startswith("trueline.methods.")]
        assert set(of_methods) <= {"trueline.methods.base"}
    if not here.startswith(("engines", "integrations", "embed", "onnx")):
        assert imports(tree, "transformers") == []
        ours = imports(tree)
        assert not [name for name in ours if name.startswith("trueline.engines.transformers")]
        config = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        assert not [node for node in config if ast.unparse(node).endswith("model.config")]


def test_no_file_names_a_folder_of_the_machine_it_was_written_on():
    folders = [f"/{name}/".encode() for name in ("work", "root", "home")]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if any(folder in line for folder in folders)
    ]
    assert found == []


def test_the_readme_is_short_and_its_file_tree_is_the_real_one():
    text = README.read_text("utf-8")
    assert len(text.splitlines()) < 200
    tree = text.partition("```text\nsrc/trueline/\n")[2].partition("```")[0]
    names = re.findall(r"(?:^|  )([\w/]+(?:\.py|/))  ", tree, re.M)
    assert len(names) > 20
    assert [x for x in names if not (SOURCE / x).exists() and not (ROOT / x).exists()] == []
