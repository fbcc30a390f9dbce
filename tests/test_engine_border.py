"""Only engines/ and integrations/ know transformers and the settings of its models."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "trueline"
ALLOWED = ("engines", "integrations", "__init__.py")  # the last names what is public
ENGINES = [  # every folder in engines/
    f"trueline.engines.{path.parent.name}" for path in SOURCE.glob("engines/*/__init__.py")
]
NOT_YET = {  # file: what it still does; this table may only shrink
    "cli/build.py": {"imports an engine"},
    "evaluation/cells.py": {"imports an engine"},
    "evaluation/judges/__init__.py": {"imports an engine"},
    "evaluation/judges/local.py": {"imports an engine"},
    "evaluation/metrics.py": {"reads _model.config", "imports an engine"},
    "evaluation/parts.py": {"imports an engine"},
    "evaluation/run.py": {"imports an engine"},
    "report/spaces.py": {"imports an engine"},
}


def last_name(node: ast.expr) -> str:
    """The name next to the dot: `model` of lm.model."""
    return getattr(node, "attr", None) or getattr(node, "id", "")


def border_crossings(text: str) -> set[str]:
    """What a module does that only an engine may do."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        found |= {"imports transformers" for name in modules if is_in(name, "transformers")}
        found |= {
            "imports an engine" for name in modules for engine in ENGINES if is_in(name, engine)
        }
        if isinstance(node, ast.Attribute) and node.attr == "config":
            if "model" in last_name(node.value):
                found.add(f"reads {last_name(node.value)}.config")
    return found


def is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def test_no_module_outside_the_engines_knows_transformers_or_a_models_settings():
    found = {
        path.relative_to(SOURCE).as_posix(): crossings
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in ALLOWED
        and (crossings := border_crossings(path.read_text("utf-8")))
    }
    assert found == NOT_YET


def test_crossings_are_found_wherever_they_stand():
    text = "def f(lm):\n    import transformers.utils\n    return lm.model.config.hidden_size\n"
    assert border_crossings(text) == {"imports transformers", "reads model.config"}
    assert border_crossings("from transformers import AutoModel") == {"imports transformers"}
    inside = "from trueline.engines.transformers.language import LanguageModel"
    assert border_crossings(inside) == {"imports an engine"}
    assert border_crossings("from trueline.engines import load\nhub.config\n") == set()


def test_fetching_and_naming_models_imports_transformers_only_inside_its_engine():
    for name in ("sources", "download", "hub", "model_cache", "weights", "aliases"):
        text = (SOURCE / "engines" / f"{name}.py").read_text("utf-8")
        assert border_crossings(text) <= {"imports an engine"}, name
