"""A question and verified answers -> how likely a model finds the answers behind it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trueline.engines.base import Engine, states_behind
from trueline.prompts import Prompt


@torch.inference_mode()
def mean_log_prob(lm: Engine, prompt: Prompt, question: str, answers: Sequence[str]) -> float:
    """The mean log-probability of a token of the answers behind a question in its prompt.

    The prompt is read once. What does not fit into the model is cut off.
    """
    context = prompt.encode(question, lm.tokenizer)
    texts = [prompt.encode_answer(question, answer, lm.tokenizer) for answer in answers]
    if lm.limit is not None:
        texts = [text[: max(1, lm.limit - len(context))] for text in texts]
    reading = lm.start()
    states = reading.join([context])
    reading.keep([0] * len(texts))
    states = states.take([0] * len(texts))
    if any(len(text) > 1 for text in texts):
        states = states_behind(states, reading.read_on([text[:-1] for text in texts]))
    else:
        states = states.map(lambda tensor: tensor[:, None])
    total = count = 0.0
    for row, text in enumerate(texts):
        own = states.map(lambda tensor, row=row, text=text: tensor[row, : len(text)])  # type: ignore[misc]
        logits = own.logits if own.hidden is None or lm.head is None else lm.head(own.hidden)
        assert logits is not None
        log_probs = logits.float().log_softmax(-1)  # (tokens, vocabulary)
        total += float(log_probs[range(len(text)), text].sum())
        count += len(text)
    return total / count
