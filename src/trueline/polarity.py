"""A question of yes or no and an example -> the word that is true, where the model can tell.

Does the model's yes or no go by what it is told? It is asked the question behind the example's
truthful answer and behind its wrong one, and the difference of the two is the effect of the
truth on its word:

    effect = [log p(Yes) - log p(No) behind the truthful answer] - [the same behind a wrong one]

What the model believes by itself is in both and goes out. A model that cannot read has no
effect either way, and then neither word is said: a wrong one ahead of a true sentence would be
worse than none. docs/results/polarity.md has what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from trueline.engines.base import read_continuations

if TYPE_CHECKING:
    from trueline.engines.base import Engine, TokenReader
    from trueline.prompts import Prompt
    from trueline.records import Example

LEAST_EFFECT = 0.5  # nats; chosen on the grounding facts
_ASKED = (
    "Fact: {fact}\nQuestion: {question}\n"
    "Going by the fact, is the answer to the question yes or no?"
)
_WORD = 8  # tokens that a yes or no may take, and more
_BEGINS = re.compile(r"\W*(?:yes|no)\b", re.I)


def true_word(lm: TokenReader, prompt: Prompt, question: str, example: Example) -> str:
    """Yes or No; empty where it cannot be told, or an answer says it by itself.

    It takes two short passes of the model: engines that give logits of their own answer alone
    cannot tell, nor can a model that does not read so long a question with the answer.
    """
    if not hasattr(lm, "start") or not example.wrong_answers:
        return ""
    if any(_BEGINS.match(answer) for answer in example.answers):
        return ""
    engine = cast("Engine", lm)
    if not _fits(engine, prompt, asked_behind(question, example)):
        return ""
    effect = effect_of_truth(engine, prompt, question, example)
    if effect > LEAST_EFFECT:
        return "Yes"
    return "No" if effect < -LEAST_EFFECT else ""  # neither where it is no number


def asked_behind(question: str, example: Example) -> list[str]:
    """What the model is asked: behind the truthful answer, and behind the wrong one."""
    facts = (example.answers[0], example.wrong_answers[0])
    return [_ASKED.format(fact=fact, question=question) for fact in facts]


def _fits(lm: Engine, prompt: Prompt, texts: Sequence[str]) -> bool:
    if lm.limit is None:
        return True
    longest = max(len(prompt.encode(text, lm.tokenizer)) for text in texts)
    return longest + _WORD <= lm.limit


def effect_of_truth(lm: Engine, prompt: Prompt, question: str, example: Example) -> float:
    """How much more the model says yes behind the truthful answer than behind the wrong one."""
    asked = asked_behind(question, example)
    pairs = [(text, word) for text in asked for word in ("Yes", "No")]
    yes, no, wrong_yes, wrong_no = mean_log_probs(lm, prompt, pairs)
    return (yes - no) - (wrong_yes - wrong_no)


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
