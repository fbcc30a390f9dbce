"""Tiny parts for the quick tests, the real model and embedder, and commands that are run."""

import contextlib
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import tiny
import torch
from hypothesis import HealthCheck, settings

import trueline as tl
from trueline.embed import load_embedder
from trueline.onnx import runtime_path
from trueline.types import Example

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))

# No test depends on how busy the machine is.
settings.register_profile(
    "trueline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("trueline")

EXAMPLES = [
    Example(question, answers, wrong, id=f"fact-{number}", source="made up for the tests")
    for number, ((question, answers), wrong) in enumerate(
        zip(tiny.FACTS, tiny.WRONG, strict=True), 1
    )
]


LONGEST = """cluster docs real corrective_real run llama_cpp_real serving_limits harness
    model_attacks paper cli judge_attacks option_attacks site docs_types examples_folder
    playground page path_attacks serving packaging""".split()


def pytest_collection_modifyitems(items):
    """What takes longest is not to begin last: one process would work while another waits."""
    for item in items:
        if "hostile" in item.path.parts:
            item.add_marker("hostile")
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))  # a file stays whole


@pytest.fixture(scope="session")
def embedder_folder(tmp_path_factory):
    return tiny.write_embedder(tmp_path_factory.mktemp("embedder") / "tiny-bert")


@pytest.fixture(scope="session")
def embedder(embedder_folder):
    return load_embedder(embedder_folder)


@pytest.fixture(scope="session")
def sentence_transformer(embedder_folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(embedder_folder), device="cpu")


@pytest.fixture
def lm():
    return tiny.language_model("llama")


@pytest.fixture
def examples():
    return EXAMPLES


@pytest.fixture(scope="session")
def smol():
    """The real model, opened once for all tests that only ask it."""
    return tl.load("smollm2-135m")


@pytest.fixture(scope="session")
def minilm():
    """The real embedder."""
    return load_embedder("all-minilm-l6-v2")


def fill_home(home: Path) -> None:
    """Make a cache in which the default names stand for a tiny random model and embedder.

    They are opened by the code that opens the real ones, in this process and in others.
    """
    from trueline.engines.models import ALIASES
    from trueline.engines.transformers.open import quiet

    with pytest.MonkeyPatch.context() as patch, quiet():
        patch.setenv("TRUELINE_HOME", str(home))
        for name in ("smollm2-135m", "all-minilm-l6-v2"):
            folder = ALIASES[name].folder
            folder.mkdir(parents=True)
            if ALIASES[name].kind == "embedder":
                tiny.write_embedder(folder)
                embedder = load_embedder(folder)
            else:
                lm = tiny.language_model("llama", chat=True)
                lm.model.save_pretrained(folder)
                lm.tokenizer.save_pretrained(folder)
            (folder / "source.json").write_text(json.dumps(ALIASES[name].facts), "utf-8")
    embedder.open()  # exporting takes longer than most tests: it is kept outside this cache
    if (kept := runtime_path(embedder.hash)).exists():
        (home / "runtimes").mkdir()
        shutil.copy(kept, home / "runtimes")


@pytest.fixture(scope="session")
def filled_home(tmp_path_factory):
    """One such cache for everybody who only reads it."""
    home = tmp_path_factory.mktemp("home")
    fill_home(home)
    return home


@pytest.fixture(scope="module")
def tiny_home(filled_home):
    """Default names mean tiny parts, nothing is fetched, and one thread is faster for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRUELINE_HOME", str(filled_home))
        patch.setenv("PIP_NO_INDEX", "1")
        yield filled_home
    torch.set_num_threads(threads)


STYLED = re.compile("\x1b\\[|[\u2500-\u259f]")  # ANSI escapes, boxes and bars


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self):
        def refuse(constant):
            raise ValueError(f"{constant} is no JSON")

        assert self.code == 0, self.err
        return json.loads(self.out, parse_constant=refuse)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run_command(*args, stdin="", terminal=False, environment=None):
    """Run a command in this process, at a terminal without styles if at one at all."""
    from trueline.cli import main

    kind = Terminal if terminal else io.StringIO
    out, err, code = kind(), kind(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["trueline", *args])
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        for name, value in {"TERM": "dumb", **(environment or {})}.items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as end:
            code = end.code
    ran = Ran(code, out.getvalue(), err.getvalue())
    assert terminal or not STYLED.search(ran.err)
    return ran


from tiny_run import data, parts, table  # noqa: E402, F401  # fixtures; it reads EXAMPLES
