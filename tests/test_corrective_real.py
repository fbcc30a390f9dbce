"""Corrective decoding on SmolLM2-135M, with the scope of all-MiniLM-L6-v2."""

import pytest
from corrective_oracle import CorrectiveOracle, Form

import trueline as tl
from trueline.corrective.scope import find_scope
from trueline.examples import read_examples, shipped_questions
from trueline.prompts import Prompt
from trueline.types import Example

pytestmark = [pytest.mark.real, pytest.mark.slow]

LENGTH = 40
UNRELATED = [
    "Who wrote the novel Middlemarch?",
    "How do I sort a list in Python?",
    "Which team won the football world cup in 1998?",
    "Give me a recipe for lentil soup.",
    "What is the derivative of x squared?",
    "Tell me a joke about penguins.",
]


@pytest.fixture(scope="module")
def facts():
    return read_examples("facts:test")


@pytest.fixture(scope="module")
def space(minilm, facts):
    return tl.build(None, facts, embedder=minilm)


@pytest.fixture(scope="module")
def cases(smol, space, facts):
    """Eight facts' own questions, and four paraphrases that are in scope: with their facts."""
    own = facts[:: len(facts) // 8][:8]
    method = tl.Corrective(space)
    known = {fact.id: fact for fact in facts}
    found = [
        (one.question, known[one.means[0]])
        for one in shipped_questions("test")[::5]
        if one.regime == "paraphrase"
    ]
    near = [(text, fact) for text, fact in found[:24] if is_in_scope(method, text, fact)]
    assert len(near) >= 4
    return [*((fact.question, fact) for fact in own), *near[:4]]


@pytest.fixture(scope="module")
def answers(smol, space, cases):
    questions = [question for question, _ in cases]
    return tl.generate(
        smol, tl.Corrective(space), questions, max_new_tokens=LENGTH, batch_size=8
    )


def is_in_scope(method, question, fact):
    """Whether a fact is in scope of a question."""
    scoped = [one for one in find_scope(method.space, question) if one.example.id == fact.id]
    return any(one.probability > method.threshold_of(one, question) for one in scoped)


def test_every_fact_is_in_scope_of_its_own_question(space, facts):
    method = tl.Corrective(space)
    assert all(is_in_scope(method, fact.question, fact) for fact in facts)
    careless = [is_in_scope(method, fact.question.lower().rstrip("?"), fact) for fact in facts]
    assert sum(careless) >= 0.95 * len(facts)


def test_a_batch_picks_the_tokens_of_the_oracle(smol, space, cases, answers):
    oracle = CorrectiveOracle(smol.model, smol.tokenizer, smol.stop_ids)
    method = tl.Corrective(space)
    for (question, _), answer in zip(cases, answers):
        correction = method.corrector(smol).begin(question=question)
        scope = [(one.example, one.odds, one.part) for one in correction.scope]
        prompt = Prompt().encode(question, smol.tokenizer)
        assert oracle.picks(prompt, answer.token_ids, scope, wish=Form()) == answer.token_ids


def test_covered_questions_are_answered_with_a_verified_answer(cases, answers):
    for (question, fact), answer in zip(cases, answers):
        assert any(own in answer.text for own in fact.answers), (question, answer.text)
        assert answer.is_covered
        assert fact.id in [source.example for source in answer.sources]


def test_unrelated_questions_are_the_models_own_to_the_bit(smol, space):
    from trueline.methods.base import Rows, Step

    method = tl.Corrective(space)
    ours, plain = (
        tl.generate(smol, way, UNRELATED, max_new_tokens=12) for way in (method, tl.Greedy())
    )
    assert [one.token_ids for one in ours] == [one.token_ids for one in plain]
    assert [(one.is_covered, one.sources) for one in ours] == [(False, ())] * len(UNRELATED)
    prompts = [Prompt().encode(question, smol.tokenizer) for question in UNRELATED]
    prepared = [method.corrector(smol).begin(question=question) for question in UNRELATED]
    rows = Rows(smol, prompts, list(map(len, prompts)), UNRELATED, prepared)
    step = Step(rows, smol.start().join(prompts))
    assert method.adjust(step).logits is step.logits


def test_a_space_of_wrong_answers_gives_wrong_answers(smol, minilm, facts, cases, answers):
    wrong = [
        Example(fact.question, fact.wrong_answers, fact.answers, id=fact.id) for fact in facts
    ]
    space = tl.build(None, wrong, embedder=minilm)
    own = cases[:6]
    method = tl.Corrective(space, threshold=0.5)  # this is about answers, not about scope
    questions = [question for question, _ in own]
    written = tl.generate(smol, method, questions, max_new_tokens=LENGTH, batch_size=8)
    for (_, fact), answer in zip(own, written):
        assert any(false in answer.text for false in fact.wrong_answers), answer.text
        assert not any(true in answer.text for true in fact.answers)
