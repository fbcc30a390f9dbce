"""RAD, which is Algorithm 1 of arXiv 2508.02184, and kNN-LM: methods that look up entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from trueline.engines import as_logits_processor, wrap_transformers
from trueline.engines.base import Engine, States
from trueline.errors import SettingError, SpaceMismatchError
from trueline.methods.base import Adjusted, Needs, Rows, SpaceMethod, Step
from trueline.rad.entries import RadEntries
from trueline.rad.retrieve import Matches, Retriever, open_retriever, windows_of
from trueline.search import Hits
from trueline.settings import Between
from trueline.space import GroundingSpace
from trueline.types import Neighbor, Source

Aggregation = Literal["weighted", "mean"]
Fusion = Literal["add", "mix", "prob"]
Found = tuple[Hits, ...]  # the hits of a step, one for each set of entries that is searched
_CHUNK = 64  # entries whose logits are computed at once, if the head is not linear


# The arithmetic of stages 2 and 3, for hits (i, row) of all rows of a step.


def weigh(s: Tensor, rows: Tensor, count: int, how: Aggregation = "weighted") -> Tensor:
    """The weight of each hit in its row: s_i / sum_S s, or 1 / |S|; each row's sum to 1."""
    shares = s if how == "weighted" else torch.ones_like(s)
    totals = shares.new_zeros(count).index_add_(0, rows, shares)  # (count,)
    return (shares / totals[rows]).nan_to_num(0.0)  # cosines of 0, below a negative tau


def aggregate(weights: Tensor, rows: Tensor, values: Tensor, count: int) -> Tensor:
    """sum_i w_i v_i in each row: (hits, width) -> (count, width); zero without a hit.

    On a CPU hits are added one after the other, so a row's sum does not depend on its batch.
    """
    total = values.new_zeros(count, values.shape[1])
    return total.index_add_(0, rows, values * weights[:, None])


def fuse(
    base: Tensor, pull: Tensor, hit: Tensor, *, alpha: float, how: Fusion = "add"
) -> Tensor:
    """Combine the model's own (rows, width) with the neighbors' sum, in rows with a hit.

    add: base + alpha * pull
    mix: (1 - alpha) * base + alpha * pull
    prob: log((1 - alpha) * softmax(base) + alpha * softmax(pull)), for logits only
    """
    if how == "add":
        fused = base + alpha * pull
    elif how == "mix":
        fused = (1 - alpha) * base + alpha * pull
    else:
        own, theirs = base.float().log_softmax(-1), pull.float().log_softmax(-1)
        log_shares = [float(torch.tensor(share).log()) for share in (1 - alpha, alpha)]
        fused = torch.logaddexp(own + log_shares[0], theirs + log_shares[1])
    return torch.where(hit[:, None], fused.to(base.dtype), base)


class EntryMethod(SpaceMethod):
    """Looks up which entries of its space are near to the last tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space.entries is None:
            context = self.needs.context
            raise SpaceMismatchError(
                f"{self.name} needs entries, and this space holds examples only; build it with "
                f"context={context!r} (`trueline build --context {context}`)"
            )

    def check(self, lm: Engine) -> None:
        entries_of(self.space).check_model(lm)
        self.retriever(lm)

    def retriever(self, lm: Engine) -> Retriever:
        return open_retriever(self.space, lm.device)

    def prefetch(self, rows: Rows) -> Callable[[], Found]:
        """e_t = E(last M tokens) of every row, then the entries near to it."""
        windows = windows_of(rows, entries_of(self.space).settings)
        embed = self.retriever(rows.lm).prepare(windows)
        return lambda: self.retrieve(rows.lm, embed())

    def window(self, rows: Rows, row: int) -> str:
        """The text whose embedding is e_t of a row."""
        one = slice(row, row + 1)
        own = Rows(rows.lm, rows.contexts[one], rows.starts[one], rows.questions[one])
        return windows_of(own, entries_of(self.space).settings)[0]

    def retrieve(self, lm: Engine, e_t: Tensor) -> Found:
        """The entries near to the embedded windows e_t (rows, dimension)."""
        raise NotImplementedError


@dataclass(frozen=True)
class RAD(EntryMethod):
    """Add what the model itself predicts in similar truthful contexts (arXiv 2508.02184).

    Algorithm 1, for the next token, with e_i and l_i the embedding and the logits of entry i:

        1. Retrieve.   e_t = E(last M tokens)    s_i = cos(e_t, e_i)    S = {i : s_i > tau}
        2. Aggregate.  w_i = s_i / sum_S s       l_agg = sum_{i in S} w_i l_i
        3. Add.        l_final = l_base + alpha * l_agg

    If S is empty, l_final is l_base to the bit.
    """

    space: GroundingSpace
    alpha: Annotated[float, Between(0, 1)] = 0.5  # weight of l_agg; 0 is plain decoding
    tau: Annotated[float, Between(-1, 1)] = 0.7  # entries count above this; at 1 none does
    # Not in the paper:
    beta: Annotated[float, Between(0, 1)] = 0.0  # weight of the logits from wrong answers
    aggregation: Aggregation = "weighted"  # `mean`: w_i = 1 / |S|
    fusion: Fusion = "add"
    # Whether to divide by 1 + alpha; None: where our loop reads probabilities.
    neutral: bool | None = None
    matches: Matches = "all"  # exact matches: with the others, left out, or alone
    from_step: Annotated[int, Between(0)] = 0  # earlier steps of an answer are the model's own
    name = "rad"
    needs = Needs(space=True, context=8, states=True)

    # Algorithm 1, for all rows of a step at once. C are the entries of the truthful answers;
    # with beta there is a second C, of the wrong answers, whose alpha is -beta.

    def adjust(self, step: Step) -> Adjusted:
        """l_final of every row, from which the loop picks x_t."""
        # Stage 1: retrieve S with e_t (see `prefetch`), mostly while the model read.
        S = self.prefetch(step.rows)() if step.fetched is None else step.fetched
        window = partial(self.window, step.rows)  # for a trace
        # Stage 2: aggregate with w_i.
        sets = self.weighed(step.rows, S)
        if not any(map(len, sets)):  # S is empty in every row
            return Adjusted(step.logits, sets, window=window)
        # Where the head is linear, l are states: its logits of the sum are the sum of logits.
        l_base, is_state = self._base(step)
        l_agg = [near.aggregated(is_state=is_state) for near in sets]  # sum_{i in S} w_i l_i
        # Stage 3: add alpha * l_agg.
        l_final = self.add(l_base, l_agg, sets)
        return replace(self._adjusted(step, l_final, sets, is_state), window=window)

    def retrieve(self, lm: Engine, e_t: Tensor) -> Found:
        """S = {i : s_i > tau}, s_i = cos(e_t, e_i)."""
        every_C = [C for C, _ in self._sets(lm)]
        return tuple(C.above(e_t, tau=self.tau, matches=self.matches) for C in every_C)

    def weighed(self, rows: Rows, found: Found) -> tuple[Neighbors, ...]:
        """w_i = s_i / sum_S s."""
        sets = []
        for (C, alpha), S in zip(self._sets(rows.lm), found, strict=True):
            if self.from_step:
                lengths = zip(rows.contexts, rows.starts, strict=True)
                is_open = [len(x) - start >= self.from_step for x, start in lengths]
                S = S.kept(torch.tensor(is_open, device=S.rows.device)[S.rows])
            w = weigh(S.similarities, S.rows, len(rows), self.aggregation)
            sets.append(Neighbors(self.space, rows.lm, C, S, w, alpha, len(rows)))
        return tuple(sets)

    def add(self, l_base: Tensor, l_agg: Sequence[Tensor], sets: Sequence[Neighbors]) -> Tensor:
        """l_final = l_base + alpha * l_agg, in the rows with a hit: (rows, width)."""
        l_final = l_base
        for near, pull in zip(sets, l_agg, strict=True):
            l_final = fuse(l_final, pull, near.hit, alpha=near.alpha, how=self.fusion)
        return l_final

    # What is not in the paper.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta and not entries_of(self.space).settings.wrong:
            raise SettingError(
                "beta subtracts the logits from wrong answers, and this space contains none; "
                "build it with wrong=True (`trueline build --wrong`)"
            )

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> None:
        super().check_settings(settings)
        if settings["beta"] and settings["fusion"] != "add":
            raise SettingError(f"beta needs fusion='add', got {settings['fusion']!r}")

    def _sets(self, lm: Engine) -> list[tuple[Retriever, float]]:
        """The truthful entries, then the wrong ones if they count; each with its alpha."""
        sets = [(self.retriever(lm), self.alpha)]
        if self.beta:
            sets.append((open_retriever(self.space, lm.device, wrong=True), -self.beta))
        return sets

    def _base(self, step: Step) -> tuple[Tensor, bool]:
        """What entries are added to, and whether that is states, before a linear head.

        The head is the largest product of a step: one then gives the logits of the sum.
        """
        if step.hidden is None or self.fusion == "prob" or not is_linear(self.space, step.lm):
            return step.logits, False
        return step.hidden, True

    def _adjusted(
        self, step: Step, l_final: Tensor, sets: tuple[Neighbors, ...], is_state: bool
    ) -> Adjusted:
        """The logits, how far `add` stretched them, and the neighbors as evidence."""
        hit, is_added = sets[0].hit, self.fusion == "add"
        is_neutral = is_added and (
            step.is_probability if self.neutral is None else self.neutral
        )
        logits = neutralize(l_final, hit, self.alpha) if is_neutral else l_final
        if is_state and (head := step.lm.head) is not None:
            logits = head(logits)  # head(h + alpha * sum_i w_i h_i)
            if head.bias is not None:
                ones = torch.ones(len(hit), 1, device=hit.device)
                shares = self.add(ones, [ones] * len(sets), sets)
                shares = neutralize(shares, hit, self.alpha) if is_neutral else shares
                # The fused logits contain the bias `shares` times; the head has added it once.
                logits = torch.where(shares == 1, logits, logits + (shares - 1) * head.bias)
        stretch = 1 + self.alpha * hit  # (rows,)
        if is_neutral:
            return Adjusted(logits, [replace(near, scale=1 / stretch) for near in sets])
        return Adjusted(logits, sets, stretch if is_added and self.neutral is None else None)

    def processor(
        self,
        model: Any,
        tokenizer: Any,
        *,
        question: str | None = None,
        prompt_length: int | None = None,
    ) -> Any:
        """RAD in transformers' own loop: model.generate(..., logits_processor=[...]).

        `prompt_length` is the number of tokens that generate gets, pads included; only a space
        built with window="text" or "answer", and from_step, need it. "text" also needs the
        question.
        """
        lm = wrap_transformers(model, tokenizer)
        self.check(lm)
        window = entries_of(self.space).settings.window
        if (window != "template" or self.from_step) and prompt_length is None:
            raise SettingError(
                f"window={window!r} with from_step={self.from_step} needs to know where the "
                "answer begins: give prompt_length=input_ids.shape[1]"
            )
        if window == "text" and question is None:
            raise SettingError("a space built with window='text' needs the question: give it")

        def adjust(contexts: list[list[int]], scores: Tensor) -> Tensor:
            count = len(contexts)
            rows = Rows(lm, contexts, [prompt_length or 0] * count, [question] * count)
            return self.adjust(Step(rows, States(None, scores))).logits

        return as_logits_processor(adjust)


@dataclass(frozen=True)
class Neighbors:
    """The hits of a step in one set of entries, with the weight each has in its row."""

    space: GroundingSpace
    lm: Engine
    retriever: Retriever
    hits: Hits
    weights: Tensor  # (hits,), summing to 1 in each row
    alpha: float  # the factor of the weighted sum; below 0 for wrong answers
    rows: int
    are_tokens: bool = False  # whether entries stand for their next token, not for logits
    scale: Tensor | None = None  # (rows,) the factor of each row's sum at last

    def __len__(self) -> int:
        return len(self.hits)

    @cached_property
    def hit(self) -> Tensor:
        """Whether each row has a hit: (rows,)."""
        return self.hits.count(self.rows) > 0

    def aggregated(self, *, is_state: bool) -> Tensor:
        """sum_i w_i v_i, as states or as logits: (rows, width)."""
        hits, lm, values = self.hits, self.lm, self.retriever.values
        is_value = is_state or entries_of(self.space).settings.values == "logits"
        if is_value or lm.head is None or is_linear(self.space, lm):
            total = aggregate(self.weights, hits.rows, values(hits.entries), self.rows)
            return total if is_value or lm.head is None else lm.head(total.to(lm.dtype)).float()
        total = torch.zeros(self.rows, lm.vocabulary, device=lm.device)
        for start in range(0, len(hits), _CHUNK):
            some = slice(start, start + _CHUNK)
            logits = lm.head(values(hits.entries[some]).to(lm.dtype)).float()
            total += aggregate(self.weights[some], hits.rows[some], logits, self.rows)
        return total

    # As evidence.

    def count(self, row: int) -> int:
        return int((self.hits.rows == row).sum())

    def sources(self, row: int, picked: int) -> Sequence[Source]:
        """None: entries are the model's own predictions, not verified answers."""
        return ()

    def neighbors(self, row: int, picked: int, rival: int, *, most: int) -> list[Neighbor]:
        which = (self.hits.rows == row).nonzero()[:, 0]
        numbers, weights = self.hits.entries[which], self.weights[which]
        tokens = torch.tensor([picked, rival], device=numbers.device)
        values, rad = self.retriever.values(numbers), entries_of(self.space)
        if self.are_tokens:  # whether these are next: (entries, 2)
            logits = (self.retriever.tokens[numbers, None] == tokens).float()
        elif rad.settings.values == "logits" or self.lm.head is None:
            logits = values[:, tokens]
        else:
            logits = self.lm.head.at(values.to(self.lm.dtype), tokens).float()
        pushes = self.alpha * weights * (logits[:, 0] - logits[:, 1])
        if self.scale is not None:
            pushes = pushes * self.scale[row]
        entries = rad.wrong if self.alpha < 0 and rad.wrong else rad.truthful
        found, is_wrong = [], entries is rad.wrong
        for index in pushes.abs().argsort(descending=True, stable=True)[:most].tolist():
            number = int(numbers[index])
            example = self.space.examples[entries.examples[number]]
            answers = example.wrong_answers if is_wrong else example.answers
            neighbor = Neighbor(
                example=example.id,
                question=example.question,
                answer=answers[entries.answers[number]],
                source=example.source,
                step=int(entries.steps[number]),
                similarity=float(self.hits.similarities[which[index]]),
                weight=float(weights[index]),
                push=float(pushes[index]),
                is_wrong=is_wrong,
            )
            found.append(neighbor)
        return found


@dataclass(frozen=True)
class KNNLM(EntryMethod):
    """Mix the model's distribution with the next tokens of near contexts (arXiv 1911.00172).

    p = (1 - lam) * p_model + lam * p_knn,   p_knn(x) = sum_{i of k : x_i = x} softmax(-d_i)
    d_i is the squared distance of the unit vectors. The paper's setting is a space built with
    context="full"; the space of RAD works too.
    """

    space: GroundingSpace
    k: Annotated[int, Between(1)] = 1024  # neighbors, or all if there are fewer
    lam: Annotated[float, Between(0, 1)] = 0.5  # weight of the neighbors; 0 is plain decoding
    name = "knn-lm"
    needs = Needs(space=True, context="full")

    def retrieve(self, lm: Engine, e_t: Tensor) -> Found:
        return (self.retriever(lm).nearest(e_t, self.k),)

    def adjust(self, step: Step) -> Adjusted:
        if self.lam == 0:
            return Adjusted(step.logits)
        lm, count, retriever = step.lm, len(step.rows), self.retriever(step.lm)
        (hits,) = self.prefetch(step.rows)() if step.fetched is None else step.fetched
        distances = 2 - 2 * hits.similarities.view(count, -1)  # (rows, k), of unit vectors
        weights = (-distances).softmax(-1).reshape(-1)
        tokens = retriever.tokens[hits.entries]
        weights = weights * (tokens >= 0)  # an end without an own token has no vote
        p_model = step.logits.float().log_softmax(-1)
        p_knn = torch.zeros_like(p_model)  # (rows, vocabulary)
        p_knn.index_put_((hits.rows, tokens.clamp(min=0)), weights, accumulate=True)
        keep = math.log1p(-self.lam) if self.lam < 1 else -math.inf
        mixed = torch.logaddexp(p_model + keep, p_knn.log() + math.log(self.lam))
        neighbors = Neighbors(self.space, lm, retriever, hits, weights, self.lam, count, True)
        return Adjusted(mixed, (neighbors,), window=partial(self.window, step.rows))


def neutralize(fused: Tensor, hit: Tensor, alpha: float) -> Tensor:
    """Undo how far `add` stretches the rows with a hit: the model's own scale."""
    return torch.where(hit[:, None], fused / (1 + alpha), fused)


def entries_of(space: GroundingSpace) -> RadEntries:
    assert space.entries is not None
    return space.entries


def is_linear(space: GroundingSpace, lm: Engine) -> bool:
    """Whether a sum of stored values gives the sum of their logits."""
    made = entries_of(space).settings
    is_shown = made.head == "linear" and lm.head is not None and lm.head.is_linear
    return is_shown and made.values == "hidden"
