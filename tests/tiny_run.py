"""The parts of a tiny evaluation, which several test files share: a judge, files and a plan."""

import pytest
import tiny
import torch
from conftest import EXAMPLES

from trueline.examples import to_lines
from trueline.lab.judges.questions import Verdict
from trueline.lab.results import plain, read_written
from trueline.types import Example

TEST = [
    Example(question, f"No, {question.lower()}", [f"Yes, {question.lower()}"], id=f"t{number}")
    for number, question in enumerate(tiny.QUESTIONS, 1)
]
VARYING = ("seconds", "decoding_seconds", "time", "machine")  # between two runs of one plan
LOAD = "trueline.engines.transformers.model.load"
OPEN_JUDGE = "trueline.lab.judges.open_judge"


class FakeJudge:
    """Labels texts of an even length as right; no label for a multiple of five."""

    id, hash = "fake:1", "one"
    judged = 0

    def judge(self, task, about, items):
        type(self).judged += len(items)
        labels = (None if len(x) % 5 == 0 else len(x) % 2 == 0 for _, x in items)
        return [Verdict(self.id, about, label, self.hash) for label in labels]


def use_tiny_parts(patch, embedder):
    """Names stand for tiny parts; `short` is a model that reads few tokens."""

    def load(name, **options):
        return tiny.language_model("llama", positions=96 if name == "short" else 512)

    def open_judge(name, **options):
        FakeJudge.options = options
        return FakeJudge()

    patch.setattr(LOAD, load)
    patch.setattr("trueline.space.load_embedder", lambda name, device: embedder)
    patch.setattr(OPEN_JUDGE, open_judge)
    patch.setattr(FakeJudge, "judged", 0)
    patch.setattr(FakeJudge, "hash", "one")


@pytest.fixture
def parts(embedder, monkeypatch):
    """Tiny parts, on one thread: faster than two for them."""
    use_tiny_parts(monkeypatch, embedder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with examples to ground with, and others to test on."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "ground.jsonl").write_text("".join(to_lines(EXAMPLES)), "utf-8")
    (folder / "test.jsonl").write_text("".join(to_lines(TEST)), "utf-8")
    return folder


@pytest.fixture(scope="module")
def table(data):
    """The table of a small plan."""
    return {
        "models": ["tiny"],
        "benchmarks": [f"{data / 'ground.jsonl'}:{data / 'test.jsonl'}"],
        "methods": ["greedy", "rad"],
        "max_new_tokens": 4,
        "batch_size": 2,
        "controls": False,
    }


def lines_in(folder, kind=object) -> list:
    lines, _ = read_written(folder / "results.jsonl")
    return [line for line in lines if isinstance(line, kind)]


def steady(lines) -> list[dict]:
    return [{k: v for k, v in plain(line).items() if k not in VARYING} for line in lines]
