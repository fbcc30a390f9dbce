"""Retrieval-augmented decoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch

from trueline.corrective.votes import _log
from trueline.embed import PreparedTexts
from trueline.engines import as_logits_processor, wrap_transformers
from trueline.engines.base import Engine
from trueline.errors import SettingError
from trueline.methods.base import Adjusted, Needs, Rows, SpaceMethod, Step
from trueline.rad.entries import EntrySettings, entries_of
from trueline.rad.retrieve import Matches, Retriever, open_retriever, window_texts
from trueline.search import Hits
from trueline.settings import Between
from trueline.space import GroundingSpace
from trueline.types import Neighbor

# What some entries say of some tokens: (n,), (tokens,) -> (n, tokens).
Says = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class RetrievedEvidence:
    """What was retrieved in one step, and with which weight it went into the result."""

    space: GroundingSpace
    retriever: Retriever
    hits: Hits
    weights: torch.Tensor  # (hits,), summing to 1 in each row
    strength: float  # what the weighted values are multiplied with before they are added
    says: Says
    is_wrong: bool = False  # whether the entries stand in wrong answers
    scale: torch.Tensor | None = None  # (rows,) what each row's sum is multiplied with at last

    def count(self, row: int) -> int:
        """How many entries one row hit."""
        return int((self.hits.rows == row).sum())

    def neighbors(self, row: int, picked: int, rival: int, *, most: int) -> list[Neighbor]:
        """The neighbors of one row that moved picked and rival apart, the strongest first."""
        places = (self.hits.rows == row).nonzero()[:, 0]
        entries = self.hits.entries[places]
        said = self.says(entries, torch.tensor([picked, rival], device=entries.device))
        pushes = self.strength * self.weights[places] * (said[:, 0] - said[:, 1])
        if self.scale is not None:
            pushes = pushes * self.scale[row]
        best = pushes.abs().argsort(descending=True, stable=True)[:most]
        columns = (entries, self.hits.similarities[places], self.weights[places], pushes)
        return [
            self._neighbor(*values)
            for values in zip(*(column[best].tolist() for column in columns), strict=True)
        ]

    def _neighbor(self, entry: int, similarity: float, weight: float, push: float) -> Neighbor:
        assert self.space.entries is not None
        number, answer, step = self.space.entries.source(entry, wrong=self.is_wrong)
        example = self.space.examples[number]
        answers = example.wrong_answers if self.is_wrong else example.answers
        return Neighbor(
            example=example.id,
            question=example.question,
            answer=answers[answer],
            source=example.source,
            step=step,
            similarity=similarity,
            weight=weight,
            push=push,
            is_wrong=self.is_wrong,
        )


Aggregation = Literal["weighted", "mean"]
Fusion = Literal["add", "mix", "prob"]


def weigh(
    similarities: torch.Tensor, rows: torch.Tensor, count: int, how: Aggregation = "weighted"
) -> torch.Tensor:
    """The weight of each hit in its row: s_i / sum_S s, or 1 / |S|; each row's sum to 1."""
    shares = similarities if how == "weighted" else torch.ones_like(similarities)
    totals = shares.new_zeros(count).index_add_(0, rows, shares)  # (count,)
    return (shares / totals[rows]).nan_to_num(0.0)  # cosines of 0, below a negative tau


def aggregate(
    weights: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, count: int
) -> torch.Tensor:
    """sum_i w_i v_i in each row: (hits, width) -> (count, width); zero where nothing was hit.

    On a CPU hits are added one after the other, so a row's sum does not depend on its batch.
    """
    total = values.new_zeros(count, values.shape[1])
    return total.index_add_(0, rows, values * weights[:, None])


def fuse(
    base: torch.Tensor,
    pull: torch.Tensor,
    hit: torch.Tensor,
    *,
    alpha: float,
    how: Fusion = "add",
) -> torch.Tensor:
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
        fused = torch.logaddexp(own + _log(1 - alpha), theirs + _log(alpha))
    return torch.where(hit[:, None], fused.to(base.dtype), base)


def neutralize(fused: torch.Tensor, hit: torch.Tensor, alpha: float) -> torch.Tensor:
    """Take back how far `add` stretches the rows that hit: the model's own scale."""
    return torch.where(hit[:, None], fused / (1 + alpha), fused)


@dataclass(frozen=True)
class StepHits:
    """What a method found for a step."""

    rows: int
    hits: tuple[Hits, ...]  # of every set of entries it looks into


@dataclass(frozen=True)
class WindowPrefetch:
    """The last windows of some rows, as the embedder's tokens: embedded, then searched."""

    method: Grounded
    lm: Engine
    windows: Sequence[str]
    tokenized: PreparedTexts  # what the embedder makes of the windows without running

    def run(self) -> StepHits:
        """What is near the windows."""
        retriever = self.method.retriever(self.lm)
        return self.method.look_up_by(
            self.lm, retriever.embed_tokenized(self.tokenized), self.windows
        )


class Grounded(SpaceMethod):
    """Looks up what is near the last tokens, in the entries of its space."""

    def __post_init__(self) -> None:
        super().__post_init__()
        entries_of(self.space, self.name, self.needs.context or "full")

    def check(self, lm: Engine) -> None:
        """Refuse a model the entries say nothing of; open what will be looked into."""
        assert self.space.entries is not None
        self.space.entries.check_model(lm)
        self.retriever(lm)

    def prefetch(self, rows: Rows) -> WindowPrefetch:
        """The windows of the rows; tokenising is Python, which a second thread only delays."""
        windows = window_texts(self.space, rows.lm, rows.contexts, rows.starts)
        tokenized = self.retriever(rows.lm).tokenize(windows)
        return WindowPrefetch(self, rows.lm, windows, tokenized)

    def look_up(self, rows: Rows) -> StepHits:
        """What is near the last windows of some rows."""
        return self.prefetch(rows).run()

    def look_up_by(self, lm: Engine, queries: torch.Tensor, windows: Sequence[str]) -> StepHits:
        """What is near some windows, whose embeddings are given."""
        raise NotImplementedError

    @property
    def made(self) -> EntrySettings:
        """How the entries of the space were made."""
        assert self.space.entries is not None
        return self.space.entries.settings

    def retriever(self, lm: Engine) -> Retriever:
        """The entries of the space, opened on the device of a model."""
        return open_retriever(self.space, lm.device)


_CHUNK = 64  # entries that go through a head that is not linear at once


@dataclass(frozen=True)
class RAD(Grounded):
    """Add what the model itself predicts in similar truthful contexts (arXiv 2508.02184).

    final = base + alpha * sum_i w_i l_i,   w_i = s_i / sum_S s,   S = {i : s_i > tau}
    With beta, what it predicts in similar wrong contexts is subtracted the same way.
    """

    space: GroundingSpace
    alpha: Annotated[float, Between(0, 1)] = (
        0.5  # weight of the retrieved logits; 0 is plain decoding
    )
    # A neighbor counts only above this cosine; at 1 none does.
    tau: Annotated[float, Between(-1, 1)] = 0.7
    beta: Annotated[float, Between(0, 1)] = (
        0.0  # weight of the logits retrieved from wrong answers
    )
    aggregation: Aggregation = "weighted"
    fusion: Fusion = "add"
    neutral: bool | None = (
        None  # None: where our own loop reads probabilities (sampling, score, traces)
    )
    matches: Matches = "all"  # exact matches: with the others, left out, or alone
    from_step: Annotated[int, Between(0)] = 0  # earlier steps of an answer are the model's own
    name = "rad"
    needs = Needs(space=True, context=8)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta and not self.made.wrong:
            raise SettingError(
                "beta subtracts what stands in wrong answers, and this space holds none; "
                "build it with wrong=True (`trueline build --wrong`)"
            )

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        super().check_settings(settings)
        if settings["beta"] and settings["fusion"] != "add":
            raise SettingError(f"beta needs fusion='add', got {settings['fusion']!r}")

    @classmethod
    def needs_wrong(cls, settings: Mapping[str, Any]) -> bool:
        return bool(settings.get("beta"))

    @classmethod
    def settings_past_boundary(cls, context: int | str | None) -> dict[str, Any] | None:
        return {"from_step": context} if isinstance(context, int) else None

    def check(self, lm: Engine) -> None:
        super().check(lm)
        self._sets(lm)

    def look_up_by(self, lm: Engine, queries: torch.Tensor, windows: Sequence[str]) -> StepHits:
        """What is near some windows, whose embeddings are given: truthful, then wrong."""
        found = [
            retriever.above(queries, tau=self.tau, matches=self.matches)
            for retriever, _ in self._sets(lm)
        ]
        return StepHits(len(windows), tuple(found))

    def adjust(self, step: Step) -> Adjusted:
        lookup = step.fetched or self.look_up(step.rows)
        evidence = self.retrieve(step.lm, lookup, self._open(step.rows))
        if not any(len(found.hits) for found in evidence):
            return Adjusted(step.logits, evidence)
        neutral = step.is_probability if self.neutral is None else self.neutral
        stretch = None
        if self.fusion == "add":
            stretch = 1 + self.alpha * (evidence[0].hits.count(lookup.rows) > 0)  # (rows,)
        if neutral and stretch is not None:
            evidence = tuple(replace(found, scale=1 / stretch) for found in evidence)
        if step.hidden is not None and self._is_fused_before_head(step.lm):
            logits = self._before_head(step.lm, step.hidden, evidence, neutral)
        else:
            logits = self.after_head(step.lm, step.logits, evidence, neutral)
        is_raw = neutral or self.neutral is False  # then probabilities are read as they are
        return Adjusted(logits, evidence, None if is_raw else stretch)

    def retrieve(
        self, lm: Engine, lookup: StepHits, is_open: torch.Tensor | None = None
    ) -> tuple[RetrievedEvidence, ...]:
        """What was looked up, with its weights: truthful, then wrong; `is_open` bars rows."""
        pairs = zip(self._sets(lm), lookup.hits, strict=True)
        return tuple(
            self._evidence(lm, lookup.rows, hits, is_open, retriever, strength)
            for (retriever, strength), hits in pairs
        )

    def _open(self, rows: Rows) -> torch.Tensor | None:
        """The rows that may be changed (rows,); None: all of them."""
        if not self.from_step:
            return None
        steps = [len(x) - start for x, start in zip(rows.contexts, rows.starts, strict=True)]
        return torch.tensor(steps, device=rows.lm.device) >= self.from_step

    def _sets(self, lm: Engine) -> list[tuple[Retriever, float]]:
        """The truthful entries, then the wrong ones if they count; each with its strength."""
        found = [(self.retriever(lm), self.alpha)]
        if not self.beta:
            return found
        return [*found, (open_retriever(self.space, lm.device, wrong=True), -self.beta)]

    def after_head(
        self,
        lm: Engine,
        base: torch.Tensor,
        evidence: tuple[RetrievedEvidence, ...],
        neutral: bool,
    ) -> torch.Tensor:
        """Fuse logits (rows, vocabulary) with the logits of the neighbors."""
        pulls = [self._pulled_logits(lm, found, len(base)) for found in evidence]
        return self._fused(base, pulls, evidence, neutral)

    def processor(
        self,
        model: Any,
        tokenizer: Any,
        *,
        question: str | None = None,
        prompt_length: int | None = None,
    ) -> Any:
        """RAD in transformers' own loop: model.generate(..., logits_processor=[...]).

        `prompt_length` is the number of tokens generate is given, pads included; only a space
        built with window="answer" and from_step need it. RAD has no use for the question.
        """
        lm = wrap_transformers(model, tokenizer)
        self.check(lm)
        asks = self.made.window == "answer" or self.from_step
        if asks and prompt_length is None:
            raise SettingError(
                "a space built with window='answer', and from_step, need to know where the "
                "answer begins, and transformers does not tell: give "
                "prompt_length=input_ids.shape[1]"
            )
        start = prompt_length or 0

        def adjust(contexts: list[list[int]], scores: torch.Tensor) -> torch.Tensor:
            count = len(contexts)
            rows = Rows(lm, contexts, [start] * count, [question] * count)
            evidence = self.retrieve(lm, self.look_up(rows), self._open(rows))
            if not any(len(found.hits) for found in evidence):
                return scores
            return self.after_head(lm, scores, evidence, neutral=bool(self.neutral))

        return as_logits_processor(adjust)

    def _before_head(
        self,
        lm: Engine,
        hidden: torch.Tensor,
        evidence: tuple[RetrievedEvidence, ...],
        neutral: bool,
    ) -> torch.Tensor:
        """head(h + alpha * sum_i w_i h_i): one head product for both."""
        assert lm.head is not None
        pulls = [self._pull(found, len(hidden)) for found in evidence]  # (rows, d) each
        logits = lm.head(self._fused(hidden, pulls, evidence, neutral))
        if lm.head.bias is None:
            return logits
        one = torch.ones(len(hidden), 1, device=hidden.device)
        shares = self._fused(one, [one] * len(evidence), evidence, neutral)  # (rows, 1)
        # The fused logits hold the bias `shares` times; the head has added it once.
        return torch.where(shares == 1, logits, logits + (shares - 1) * lm.head.bias)

    def _fused(
        self,
        base: torch.Tensor,
        pulls: list[torch.Tensor],
        evidence: tuple[RetrievedEvidence, ...],
        neutral: bool,
    ) -> torch.Tensor:
        """Every set of neighbors into the rows it hit: (rows, width)."""
        hits = [found.hits.count(len(base)) > 0 for found in evidence]
        for pull, hit, found in zip(pulls, hits, evidence, strict=True):
            base = fuse(base, pull, hit, alpha=found.strength, how=self.fusion)
        return (
            neutralize(base, hits[0], self.alpha) if neutral and self.fusion == "add" else base
        )

    def _evidence(
        self,
        lm: Engine,
        rows: int,
        hits: Hits,
        is_open: torch.Tensor | None,
        retriever: Retriever,
        strength: float,
    ) -> RetrievedEvidence:
        hits = hits if is_open is None else hits.kept(is_open[hits.rows])
        weights = weigh(hits.similarities, hits.rows, rows, self.aggregation)

        def says(entries: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            values = retriever.values(entries)
            if self.made.values == "logits" or lm.head is None:
                return values[:, tokens]
            return lm.head.at(values.to(lm.dtype), tokens).float()

        return RetrievedEvidence(
            self.space, retriever, hits, weights, strength, says, strength < 0
        )

    def _pull(self, found: RetrievedEvidence, rows: int) -> torch.Tensor:
        """sum_i w_i v_i over the stored values: (rows, width)."""
        values = found.retriever.values(found.hits.entries)
        return aggregate(found.weights, found.hits.rows, values, rows)

    def _pulled_logits(self, lm: Engine, found: RetrievedEvidence, rows: int) -> torch.Tensor:
        """sum_i w_i l_i by the shortest way the head allows: (rows, vocabulary)."""
        if self.made.values == "logits" or self._is_linear(lm):
            return self._logits(lm, self._pull(found, rows))
        total = torch.zeros(rows, lm.vocabulary, device=lm.device)
        hits = found.hits
        for start in range(0, len(hits), _CHUNK):
            some = slice(start, start + _CHUNK)
            logits = self._logits(lm, found.retriever.values(hits.entries[some]))
            total += aggregate(found.weights[some], hits.rows[some], logits, rows)
        return total

    def _logits(self, lm: Engine, values: torch.Tensor) -> torch.Tensor:
        """Stored values as logits."""
        if self.made.values == "logits":
            return values
        assert lm.head is not None
        return lm.head(values.to(lm.dtype)).float()

    def _is_fused_before_head(self, lm: Engine) -> bool:
        return self._is_linear(lm) and self.fusion != "prob"

    def _is_linear(self, lm: Engine) -> bool:
        """Whether sums of the values stand for sums of logits, by both checks of the head."""
        made = self.made
        is_shown = made.head == "linear" and lm.head is not None and lm.head.is_linear
        return is_shown and made.values == "hidden"


@dataclass(frozen=True)
class KNNLM(Grounded):
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

    def look_up_by(self, lm: Engine, queries: torch.Tensor, windows: Sequence[str]) -> StepHits:
        nearest = self.retriever(lm).nearest(queries, self.k)
        return StepHits(len(windows), (nearest,))

    def adjust(self, step: Step) -> Adjusted:
        if self.lam == 0:
            return Adjusted(step.logits)
        retriever = self.retriever(step.lm)
        lookup = step.fetched or self.look_up(step.rows)
        (hits,), rows = lookup.hits, lookup.rows
        distances = 2 - 2 * hits.similarities.view(rows, -1)  # (rows, k), of unit vectors
        weights = (-distances).softmax(-1).reshape(-1)
        tokens = retriever.tokens[hits.entries]
        weights = weights * (tokens >= 0)  # an end without a token of its own says nothing
        own = step.logits.float().log_softmax(-1)
        mass = torch.zeros_like(own)  # (rows, vocabulary)
        mass.index_put_((hits.rows, tokens.clamp(min=0)), weights, accumulate=True)
        keep = math.log1p(-self.lam) if self.lam < 1 else -math.inf
        mixed = torch.logaddexp(own + keep, mass.log() + math.log(self.lam))
        evidence = RetrievedEvidence(
            self.space,
            retriever,
            hits,
            weights,
            self.lam,
            says=lambda entries, asked: (retriever.tokens[entries, None] == asked).float(),
        )
        return Adjusted(mixed, (evidence,))
