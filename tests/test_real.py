"""SmolLM2-135M and all-MiniLM-L6-v2 themselves, held to the slow transcription."""

import pytest
import torch
from oracle import Oracle

import trueline as tl
from trueline.engines.models import resolve
from trueline.examples import read_examples

pytestmark = [pytest.mark.real, pytest.mark.slow]

GROUND, ASKED, LENGTH = 10, 12, 20  # examples in the space, questions, tokens an answer


@pytest.fixture(scope="module")
def facts():
    ground = read_examples("facts:ground")
    return ground[:: len(ground) // GROUND][:GROUND]  # some of every category


@pytest.fixture(scope="module")
def questions():
    test = read_examples("facts:test")
    return [example.question for example in test[:: len(test) // ASKED][:ASKED]]


@pytest.fixture(scope="module")
def space(smol, minilm, facts):
    return tl.build(smol, facts, context=8, embedder=minilm)


@pytest.fixture(scope="module")
def reference():
    from sentence_transformers import SentenceTransformer

    folder = resolve("all-minilm-l6-v2", "embedder").folder
    return SentenceTransformer(str(folder), device="cpu")


@pytest.fixture(scope="module")
def oracle(smol, facts, reference):
    made = Oracle(smol.model, smol.tokenizer, reference)
    prompt = tl.Prompt()
    for example in facts:
        for answer in example.answers:
            made.add(
                prompt.encode(example.question, smol.tokenizer),
                prompt.encode_answer(example.question, answer, smol.tokenizer),
            )
    return made


def tokens(smol, method, questions, **options):
    answers = tl.generate(smol, method, questions, max_new_tokens=LENGTH, **options)
    return [answer.token_ids for answer in answers]


def followed(oracle, smol, questions, answers, **settings):
    """What the oracle picks along given answers."""
    prompts = [tl.Prompt().encode(question, smol.tokenizer) for question in questions]
    pairs = zip(prompts, map(list, answers))
    return [tuple(oracle.follow(*pair, **settings)) for pair in pairs]


@pytest.fixture(scope="module")
def wanted(smol, space, questions, oracle):
    """RAD's answers in a batch, which the oracle agrees with token by token."""
    answers = tokens(smol, tl.RAD(space), questions, batch_size=16)
    assert followed(oracle, smol, questions, answers, alpha=0.5, tau=0.7) == answers
    return answers


def test_greedy_picks_the_tokens_of_the_oracle(smol, questions, oracle, wanted):
    answers = tokens(smol, tl.Greedy(), questions)
    assert followed(oracle, smol, questions, answers, alpha=0.0, tau=0.7) == answers
    assert answers != wanted


def test_every_form_of_rad_picks_the_tokens_of_the_oracle(
    smol, minilm, facts, space, questions, wanted
):
    assert tokens(smol, tl.RAD(space), questions, batch_size=1) == wanted
    for form, dtype in (({"values": "logits"}, None), ({"dtype": "float32"}, "float32")):
        stored = tl.build(smol, facts, context=8, embedder=minilm, **form)
        assert tokens(smol, tl.RAD(stored), questions, batch_size=16) == wanted
        assert dtype in (None, stored.info()["dtype"])
    assert space.info()["dtype"] == "float16"


def test_our_embedder_gives_the_vectors_of_sentence_transformers(minilm, reference):
    texts = ["", " gum", "Seven years, they say", "naïve café — 北京 🙂", "\n\nA:"]
    texts.append("word " * 400)
    ours = minilm.embed(texts)
    theirs = torch.tensor(reference.encode(texts, show_progress_bar=False))
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert torch.allclose(ours.norm(dim=1), torch.ones(len(texts)), atol=1e-5)


def test_a_bfloat16_model_gives_rad_logits_within_its_rounding(smol, space, questions):
    from trueline.methods.base import Rows, Step

    half = tl.load("smollm2-135m", dtype="bfloat16")
    assert half.fingerprint == smol.fingerprint
    prompts = [tl.Prompt().encode(question, smol.tokenizer) for question in questions[:4]]
    logits = {}
    for lm in (smol, half):
        rows = Rows(lm, prompts, list(map(len, prompts)))
        step = Step(rows, lm.start().join(prompts))
        adjusted = tl.RAD(space).adjust(step)
        assert len(adjusted.evidence[0].hits) > 0
        logits[lm] = adjusted.logits.float()
    distance = (logits[smol] - logits[half]).norm() / logits[smol].norm()
    assert distance < 0.05  # a bfloat16 number has 8 bits: 0.4 % each, over 30 layers


@pytest.fixture(scope="module")
def full_space(smol, minilm, facts):
    """kNN-LM's own: keys over the whole context."""
    return tl.build(smol, facts, embedder=minilm, context="full")


@pytest.mark.parametrize("name", ["cad", "id", "dola", "kate", "knn-lm"])
def test_every_baseline_picks_the_tokens_of_its_transcription(
    name, smol, full_space, questions, reference
):
    from test_decoders import transcribed

    from trueline.methods import make_method

    method, some = make_method(name, space=full_space), questions[:2]
    found = tl.generate(smol, method, some, max_new_tokens=8)
    for question, answer in zip(some, found):
        assert answer.token_ids == transcribed(
            name, smol, full_space, question, reference, length=8
        )
    ours, plain = (
        tl.score(smol, way, some[0], ["It is not true."]) for way in (method, tl.Greedy())
    )
    assert abs(ours[0] - plain[0]) > 0.01  # it changes something, also where the tokens agree
