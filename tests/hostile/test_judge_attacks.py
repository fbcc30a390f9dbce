"""What a broken service, a stranger's plan or a damaged cache can do to a judge: nothing."""

import json
import os
import re
import stat
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest
import torch
from attack import mutated, mutated_bytes, rounds, within
from judge_server import HANG, KEY, clean_environment, completion, serving

from trueline.errors import TruelineError
from trueline.lab.benchmarks.tables import Sample
from trueline.lab.judges import Limits, open_judge
from trueline.lab.judges.models import ResponseCache
from trueline.lab.judges.offline import OfflineJudge
from trueline.lab.judges.questions import read_verdict
from trueline.lab.results import VerdictLine, encode_lines

GUM = Sample("gum", "What happens if you swallow gum?", ("It passes.",), ("It stays.",))
OWN = "sk-own-service-aabbccddeeff"  # never to be seen by a server of these tests


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    clean_environment(monkeypatch, tmp_path, OWN)


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * 100_000,
        "<" + "a" * 500_000,
        "the " * 200_000,
        "answer is " * 50_000,
        "yes, it is " + "clearly " * 50_000,
        "\ufdfa" * 100_000,
        "\ud800\x00\u202e" * 1_000,
    ],
    ids=lambda text: ascii(text[:9]),
)
def test_a_long_reply_is_read_in_no_time(text):
    with within(20):
        assert read_verdict(text, "truth") in (True, False, None)
        assert read_verdict(f"Yes. {text}", "truth") in (True, False, None)


def test_the_cache_is_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        cache = ResponseCache(tmp_path / "deep" / "cache.sqlite")
        assert stat.S_IMODE(cache.path.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_path_that_cannot_be_a_file_is_not_a_cache(tmp_path):
    (tmp_path / "file").write_text("a")
    for path in (tmp_path, tmp_path / "file" / "cache", tmp_path / "a\0b"):
        with within(HANG), pytest.raises(TruelineError, match="cannot be used"):
            ResponseCache(path)


def test_a_damaged_cache_ends_in_an_error_or_in_what_was_written(tmp_path):
    """A flip inside a text is beyond what SQLite can see; types and structure are not."""
    cache = ResponseCache(tmp_path / "cache.sqlite")
    cache.write("a", "cohere", ("Yes", 5, 1))
    sound, counts = cache.path.read_bytes(), Counter()
    for chance in rounds("judge cache", 60, 2_000):
        cache.path.write_bytes(damaged := mutated_bytes(chance, sound))
        try:
            found = ResponseCache(cache.path).read("a")
        except TruelineError:
            counts["refused"] += 1
        except Exception as error:
            raise AssertionError(f"{chance.name}: {damaged.hex()}") from error
        else:
            counts["read"] += 1
            assert found is None or isinstance(found[0], str), chance.name
        for path in cache.path.parent.glob("cache.sqlite*"):
            path.unlink()
    assert min(counts["refused"], counts["read"]) > 0, counts


class Broken:
    """An embedder whose weights are damaged."""

    id = "broken"

    def embed(self, texts):
        [text.encode() for text in texts]  # a tokenizer takes no half surrogate either
        return torch.tensor(np.full((len(texts), 4), np.nan, dtype=np.float32))


def test_offline_an_answer_that_cannot_be_compared_is_unscored_and_never_wrong():
    alone = Sample("a", "Why \ud800?", ("So \udfff.",))
    given = [(GUM, "It passes \ud800."), (alone, "So")]
    for about in ("truth", "info", "hallucination"):
        for verdict in OfflineJudge(Broken()).judge("question", about, given):
            assert (verdict.label, verdict.basis) == (None, "")
            assert "not finite" in verdict.raw


STATUSES = [200] * 40 + [201, 204, 301, 400, 401, 404, 408, 418, 429, 500, 503]
NUMBERS = ["1e999", "-1", "9" * 30, "9" * 5_000, "NaN", "1.5", '"2"', "null", "2.0", "[[2]]"]


def hostile(chance):
    """The bytes of a response, sound or not."""
    text = chance.choice(["Yes", "No", "Yes.", "**no**", "", "Yes and no", f"Yes {KEY}"])
    value = completion("a b", text)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 4])):
        value = mutated(chance, value)
    body = json.dumps(value)
    if chance.random() < 0.15:
        body = re.sub(r": [12]\b", lambda _: f": {chance.choice(NUMBERS)}", body)
    body = body.encode()
    if chance.random() < 0.1:
        body = body.replace(b"{", b'{"a":' * chance.choice([10, 2_000, 50_000]), 1)
    if chance.random() < 0.2:
        body = mutated_bytes(chance, body)
    kind = chance.choice(["application/json", "text/plain", "application/json; charset=utf-16"])
    head = f"HTTP/1.1 {chance.choice(STATUSES)} {chance.choice(['OK', KEY])}\r\n"
    sent = f"{head}content-type: {kind}\r\n\r\n".encode() + body
    return mutated_bytes(chance, sent) if chance.random() < 0.1 else sent


def check_verdict(name, verdict):
    """A verdict has a label or a reason; it can be written, and shows no key."""
    assert verdict.raw, name
    assert verdict.is_answered or verdict.raw.startswith("(no response: "), name
    assert verdict.label is None or verdict.label is read_verdict(verdict.raw, "info"), name
    assert 0 <= verdict.prompt_tokens <= 10**7 >= verdict.answer_tokens >= 0, name
    assert not any(key in verdict.raw for key in (KEY, OWN)), name
    encode_lines([VerdictLine(cell="c", sample="s", **asdict(verdict))])


def judge_all(judge, numbers):
    """Verdicts by number; if one reply ends the run, every answer alone."""
    try:
        given = [(GUM, f"answer number {number}.") for number in numbers]
        found = judge.judge("question", "info", given)
        return dict(zip(numbers, found, strict=True))
    except TruelineError as error:
        if len(numbers) == 1:
            return {numbers[0]: error}
        return {n: found for one in numbers for n, found in judge_all(judge, [one]).items()}


def test_every_reply_ends_in_a_verdict_or_is_unscored_with_a_reason(tmp_path):
    chances = list(rounds("judge replies", 200, 2_000))
    replies = [hostile(chance) for chance in chances]
    counts, limits = Counter(), Limits(tries=1, backoff=0.0)

    def reply(prompt):
        return replies[int(re.findall(r"answer number (\d+)", prompt)[-1])]

    with within(HANG), serving(reply=reply) as server:
        os.environ["TRUELINE_JUDGE_URL"] = server.url  # restored by `environment`
        judge = open_judge(f"cohere@{server.url}", limits=limits, cache=tmp_path / "c")
        for first in range(0, len(chances), 10):
            for number, verdict in judge_all(judge, range(first, first + 10)).items():
                name = chances[number].name
                if isinstance(verdict, TruelineError):
                    counts["ended the run"] += 1
                    assert KEY not in str(verdict), name
                    assert str(verdict).isprintable(), name
                    continue
                check_verdict(name, verdict)
                kind = "scored" if verdict.label is not None else "unscored"
                counts[kind if verdict.is_answered else "no response"] += 1
    assert not any(key.encode() in (tmp_path / "c").read_bytes() for key in (KEY, OWN))
    assert min(counts["scored"], counts["unscored"], counts["no response"]) > 0, counts
    assert counts.total() == len(chances)
