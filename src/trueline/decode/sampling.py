"""Logits -> one token a row, its log-probability, and the trace of why it was picked."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trueline.engines.base import Engine
from trueline.methods.base import Adjusted, Step
from trueline.types import Candidate, Sampling, TokenLogprobs, TraceStep


def random_source(options: Sampling, index: int) -> torch.Generator | None:
    """The generator of one request; its draws depend only on the seed and the index."""
    if not options.is_sampled:
        return None
    source = torch.Generator()
    source.seed() if options.seed is None else source.manual_seed(options.seed + index)
    return source


def best_tokens(logits: Tensor) -> list[int]:
    """The first of the largest logits of each row (rows, vocabulary)."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:  # nine times as fast
        return [int(token) for token in logits.numpy().argmax(-1)]
    return [int(token) for token in logits.argmax(-1).tolist()]


def draw_token(logits: Tensor, options: Sampling, source: torch.Generator | None) -> int:
    """A token drawn from logits (vocabulary,) by the options of its request."""
    shares = probabilities(logits[None], options)[0].cpu()
    return int(torch.multinomial(shares, 1, generator=source))


def probabilities(logits: Tensor, options: Sampling) -> Tensor:
    """The distribution to draw from: temperature, the k best and the nucleus of mass p."""
    logits = logits.float() / options.temperature
    if options.top_k is not None:
        least = logits.topk(min(options.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if options.top_p is not None:
        ranked, order = logits.sort(descending=True, stable=True)
        before = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1)  # mass above each token
        is_out = before >= options.top_p
        is_out[:, 0] = False  # the best token stays, also if p is 0 in float32
        out = is_out.scatter(-1, order, is_out)
        logits = logits.masked_fill(out, -torch.inf)
    return logits.softmax(-1)


def token_logprobs(log_probs: Tensor, token: int, count: int) -> TokenLogprobs:
    """The log-probability of a token, and those of the `count` best of (vocabulary,)."""
    values, tokens = log_probs.topk(min(count, len(log_probs)))
    best = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token, float(log_probs[token]), best)


def move_of(base: Tensor, final: Tensor, picked: int, rival: int) -> float:
    """How far picked moved from its rival, in the logits (vocabulary,) of one row.

    move = (final[picked] - final[rival]) - (base[picked] - base[rival])

    If the rival was banned, it is the least move that makes picked win.
    """
    lead = float(base[picked] - base[rival])
    move = float(final[picked] - final[rival]) - lead
    if math.isfinite(move):
        return move
    return max(0.0, -lead) if math.isfinite(lead) else 0.0


def entropy(logits: Tensor) -> Tensor:
    """The entropy of each row's distribution, in nats: (rows, vocabulary) -> (rows,)."""
    log_probs = logits.float().log_softmax(-1)
    return -(log_probs.exp() * log_probs).nan_to_num(0.0).sum(-1)


_BEST = 5  # candidates and neighbors kept


def trace_step(step: Step, adjusted: Adjusted, row: int, token: int) -> TraceStep:
    """The model's choice in one row, the picked token, and the examples that moved it."""
    base, final = step.logits[row], adjusted.logits[row]
    first_choices = _best(step.lm, base, base.float().softmax(-1))
    stretch = 1.0 if adjusted.stretch is None else float(adjusted.stretch[row])
    probabilities = (final.float() / stretch).softmax(-1)  # of logits that are not stretched
    first = int(base.argmax())  # as greedy picks it; topk may order ties otherwise
    others = (one.token for one in first_choices if one.token != token)
    rival = next(others, token) if token == first else first
    neighbors = [
        neighbor
        for evidence in adjusted.evidence
        for neighbor in evidence.neighbors(row, token, rival, most=_BEST)
    ]
    return TraceStep(
        token=token,
        text=step.lm.pieces([token])[0],
        base=first_choices,
        final=_best(step.lm, final, probabilities),
        rival=rival,
        move=move_of(base, final, token, rival),
        hits=sum(evidence.count(row) for evidence in adjusted.evidence),
        neighbors=tuple(neighbors),
        entropy=float(entropy(base[None])),
        flipped=token != first,
        probability=float(probabilities[token]),
        window=adjusted.window(row) if adjusted.window else "",
    )


def _best(lm: Engine, logits: Tensor, probabilities: Tensor) -> tuple[Candidate, ...]:
    tokens = logits.topk(min(_BEST, len(logits))).indices.tolist()
    return tuple(
        Candidate(token, text, float(logits[token]), float(probabilities[token]))
        for token, text in zip(tokens, lm.pieces(tokens), strict=True)
    )
