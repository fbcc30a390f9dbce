"""A step and its picked token in, the record of why it was picked out."""

from __future__ import annotations

import torch

from trueline.decoders.base import Adjusted, Step
from trueline.engines.base import Engine
from trueline.fusion import entropy, move_of
from trueline.records import Candidate, TraceStep

_BEST = 5  # candidates and neighbors kept


def trace_step(step: Step, adjusted: Adjusted, row: int, token: int) -> TraceStep:
    """What the model wanted in one row, what was picked, and which examples moved it."""
    base, final = step.logits[row], adjusted.logits[row]
    own = _best(step.lm, base, base.float().softmax(-1))
    stretch = 1.0 if adjusted.stretch is None else float(adjusted.stretch[row])
    probabilities = (final.float() / stretch).softmax(-1)  # of logits that are not stretched
    first = int(base.argmax())  # as greedy picks it; topk may order ties otherwise
    rival = first
    if token == first:
        rival = next((best.token for best in own if best.token != token), token)
    neighbors = [
        neighbor
        for found in adjusted.evidence
        for neighbor in found.neighbors(row, token, rival, most=_BEST)
    ]
    return TraceStep(
        token=token,
        text=step.lm.pieces([token])[0],
        base=own,
        final=_best(step.lm, final, probabilities),
        rival=rival,
        move=move_of(base, final, token, rival),
        hits=sum(found.count(row) for found in adjusted.evidence),
        neighbors=tuple(neighbors),
        entropy=float(entropy(base[None])),
        flipped=token != first,
        probability=float(probabilities[token]),
    )


def _best(
    lm: Engine, logits: torch.Tensor, probabilities: torch.Tensor
) -> tuple[Candidate, ...]:
    tokens = logits.topk(min(_BEST, len(logits))).indices.tolist()
    return tuple(
        Candidate(token, text, float(logits[token]), float(probabilities[token]))
        for token, text in zip(tokens, lm.pieces(tokens), strict=True)
    )
