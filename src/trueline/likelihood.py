"""A question and examples near to it -> their probabilities, the model's word counted in.

How likely does the model find an example's answer behind this question, behind the example's
own question, and behind none? An answer that fits is nearly as likely as behind its own
question, and more likely than behind none. Both differences, in nats a token, join the log-odds
of scope:

    log-odds = bias + weight * (log-odds of scope) + fit * (asked - own) + told * (asked - none)

The weights were fitted with SmolLM2-135M (benchmarks/fit_scope.py --careful).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import TYPE_CHECKING, cast

import torch

from trueline.engines.base import Engine, TokenReader, read_continuations
from trueline.errors import SettingError
from trueline.prompts import Prompt
from trueline.records import Example
from trueline.scope import Scoped, model_for

if TYPE_CHECKING:
    from trueline.space.space import GroundingSpace

NO_QUESTION = "?"  # what is asked where no question is
_WORTH_READING = 0.01  # probability below which the model's word would change nothing
_MOST = 3  # examples it is asked about, the most probable ones


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Log-probabilities of an example's first answer, in nats a token."""

    asked: float  # behind the question that is asked
    own: float  # behind the example's own question
    none: float  # behind no question

    @property
    def signals(self) -> dict[str, float]:
        """What joins the log-odds."""
        return {"fit": self.asked - self.own, "told": self.asked - self.none}


def weigh_likelihood(
    lm: TokenReader, space: GroundingSpace, found: Sequence[Scoped]
) -> list[Scoped]:
    """The same examples with probabilities that the model's likelihoods are part of."""
    if not hasattr(lm, "start"):
        raise SettingError(
            "careful=True asks the model how likely it finds the answers; this engine gives "
            "logits of its own answer only; leave careful off"
        )
    read = [one for one in found if one.probability > _WORTH_READING][:_MOST]
    likelihoods = answer_likelihoods(
        cast("Engine", lm), space, [(one.text, one.example) for one in read]
    )
    weighed = [
        replace(one, probability=p, part_probability=min(one.part_probability, p))
        for one, likelihood in zip(read, likelihoods, strict=True)
        for p in [_probability(one, likelihood, _weights(space, one.example))]
    ]
    return sorted([*weighed, *found[len(read) :]], key=lambda one: -one.probability)


def answer_likelihoods(
    lm: Engine, space: GroundingSpace, asked: Sequence[tuple[str, Example]]
) -> list[Likelihood]:
    """How likely examples' answers are behind some questions; what is their own is kept."""
    kept = space.texts_read.setdefault((lm.fingerprint, "likelihoods"), {})
    pairs = {
        (question, example.answers[0]): None
        for text, example in asked
        for question in (text, example.question, NO_QUESTION)
    }
    missing = [pair for pair in pairs if pair not in kept]
    found = dict(zip(missing, mean_log_probs(lm, space.prompt, missing), strict=True))
    known = {**kept, **found}
    for _, example in asked:
        for question in (example.question, NO_QUESTION):
            kept[question, example.answers[0]] = known[question, example.answers[0]]
    return [
        Likelihood(
            *(
                known[question, example.answers[0]]
                for question in (text, example.question, NO_QUESTION)
            )
        )
        for text, example in asked
    ]


@torch.inference_mode()
def mean_log_probs(lm: Engine, prompt: Prompt, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The log-probability of each answer behind its question, a token on average."""
    if not pairs:
        return []
    questions = list(dict.fromkeys(question for question, _ in pairs))
    rows = [questions.index(question) for question, _ in pairs]
    contexts = [prompt.encode(question, lm.tokenizer) for question in questions]
    answers = [
        prompt.encode_answer(question, answer, lm.tokenizer) for question, answer in pairs
    ]
    states = read_continuations(lm, contexts, rows, answers)
    means = []
    for row, tokens in enumerate(answers):
        own = states.map(lambda tensor: tensor[row, : len(tokens)])  # noqa: B023
        logits = own.logits if own.hidden is None or lm.head is None else lm.head(own.hidden)
        assert logits is not None
        log_probs = logits.float().log_softmax(-1)  # (tokens, vocabulary)
        chosen = log_probs.gather(1, torch.tensor(tokens, device=log_probs.device)[:, None])
        means.append(float(chosen.mean()))
    return means


def _weights(space: GroundingSpace, example: Example) -> Mapping[str, float]:
    return model_for(space, example).careful


def _probability(one: Scoped, likelihood: Likelihood, weights: Mapping[str, float]) -> float:
    values = {"bias": 1.0, "scope": one.odds, **likelihood.signals}
    total = sum(weight * values[name] for name, weight in weights.items())
    return 1 / (1 + exp(-max(-60.0, min(60.0, total))))
