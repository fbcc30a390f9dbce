"""One contract for all engines and integrations: what must be the same, and what may differ.

Recorded: on the same logits every loop picks the same tokens and makes the same decisions.
Live: every engine computes logits of its own, a little other than another's. Two greedy runs of
one request may part only where the reference's two best logits lay closer than that noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LiveStep:
    """One greedy step of a running engine: the token it picked, and how clearly it led."""

    token: int
    gap: float  # the best of the logits it picked from, less the second best


@dataclass(frozen=True)
class LiveAgreement:
    """How far the runs of two engines agree."""

    same: int  # steps with the same token
    within_noise: int  # requests that part at a step closer than the noise
    faults: tuple[tuple[int, int, float], ...]  # (request, step, gap) of the others

    def __str__(self) -> str:
        text = f"{self.same} steps alike, {self.within_noise} parted within the noise"
        return f"{text}, {len(self.faults)} beyond it" if self.faults else text


def live_step(logits: torch.Tensor) -> LiveStep:
    """A greedy step from the final logits of one row (vocabulary,)."""
    (best, second), (token, _) = (found.tolist() for found in logits.float().topk(2))
    return LiveStep(token, best - second)


def engine_noise(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """How far two engines disagree about which of two tokens leads, at most.

    `pairs` are the plain logits (vocabulary,) of the reference and of the other engine behind
    the same tokens, on a probe text that has nothing to do with what is compared later. For the
    reference's two best tokens x and y it is the largest |(a_x - a_y) - (b_x - b_y)|.
    """
    found = [0.0]
    for reference, other in pairs:
        (x, y) = reference.float().topk(2).indices.tolist()
        lead, theirs = (float(row[x]) - float(row[y]) for row in (reference, other))
        found.append(abs(lead - theirs))
    return max(found)


def compare_live(
    reference: Sequence[Sequence[LiveStep]],
    other: Sequence[Sequence[LiveStep]],
    *,
    noise: float,
) -> LiveAgreement:
    """Hold the greedy runs of an engine, one per request, to those of the reference.

    Up to the first step where the tokens differ both engines have read the same, so that step
    alone tells something: it is excused if the reference's two best logits lay no further apart
    than the noise (`engine_noise`), and a fault if they did. What comes behind it is another
    text and is not compared. A run that ends before the other does parts there as well.
    """
    assert len(reference) == len(other), "a run for each request"
    same, within, faults = 0, 0, []
    for request, (ours, theirs) in enumerate(zip(reference, other, strict=True)):
        for step, known in enumerate(ours):
            if step < len(theirs) and theirs[step].token == known.token:
                same += 1
                continue
            if known.gap <= noise:
                within += 1
            else:
                faults.append((request, step, known.gap))
            break
        else:
            if len(theirs) > len(ours):  # it went on where the reference had ended
                faults.append((request, len(ours), float("inf")))
    return LiveAgreement(same, within, tuple(faults))
