"""Retrieval-augmented decoding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, get_args

import torch

from trueline.decoders.base import Adjusted, Step
from trueline.decoders.evidence import Evidence
from trueline.errors import SettingError
from trueline.fusion import Aggregation, Fusion, aggregate, fuse, weigh
from trueline.models.language import LanguageModel
from trueline.prompts import Prompt
from trueline.retriever import Hits, MatchBy, Matches, Retriever
from trueline.space.space import GroundingSpace

if TYPE_CHECKING:
    from transformers import LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase

_CHUNK = 64  # entries that go through a soft-capped head at once


@dataclass(frozen=True)
class RAD:
    """Add what the model itself predicts in similar truthful contexts (arXiv 2508.02184).

    final = base + alpha * sum_i w_i l_i,   w_i = s_i / sum_S s,   S = {i : s_i > tau}
    """

    space: GroundingSpace
    alpha: float = 0.5  # weight of the retrieved logits; 0 is plain decoding
    tau: float = 0.7  # a neighbor counts only above this cosine; at 1 and above none does
    aggregation: Aggregation = "weighted"
    fusion: Fusion = "add"
    neutral: bool | None = (
        None  # None: where our own loop reads probabilities (sampling, score)
    )
    matches: Matches = "all"  # exact matches: with the others, left out, or alone
    match_by: MatchBy = "cosine"  # an exact match has a cosine of 1, or the same text
    name = "rad"

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise SettingError(f"alpha must lie in [0, 1], got {self.alpha}")
        if not self.tau >= -1.0:
            raise SettingError(f"tau is a cosine and must be at least -1, got {self.tau}")
        for setting, values in (
            ("aggregation", Aggregation),
            ("fusion", Fusion),
            ("matches", Matches),
            ("match_by", MatchBy),
        ):
            if (given := getattr(self, setting)) not in get_args(values):
                allowed = ", ".join(get_args(values))
                raise SettingError(f"{setting} must be one of {allowed}; got {given!r}")

    @property
    def prompt(self) -> Prompt:
        """The prompt of the space."""
        return self.space.prompt

    def check(self, lm: LanguageModel) -> None:  # noqa: D102
        self.space.check_model(lm)

    def prompt_ids(self, lm: LanguageModel, question: str) -> list[int]:  # noqa: D102
        return self.prompt.encode(question, lm.tokenizer)

    def answer_ids(self, lm: LanguageModel, question: str, answer: str) -> list[int]:  # noqa: D102
        return self.prompt.encode_answer(question, answer, lm.tokenizer)

    def adjust(self, step: Step) -> Adjusted:  # noqa: D102
        recipe = self.space.recipe
        evidence = self.retrieve(step.lm, step.windows(recipe.context, recipe.window))
        if not len(evidence.hits):
            return Adjusted(step.logits, evidence)
        neutral = step.is_probability if self.neutral is None else self.neutral
        if step.hidden is not None and self._is_fused_before_head(step.lm):
            return Adjusted(
                self._before_head(step.lm, step.hidden, evidence, neutral), evidence
            )
        return Adjusted(self.after_head(step.logits, evidence, neutral), evidence)

    def retrieve(self, lm: LanguageModel, windows: list[str]) -> Evidence:
        """The entries near each window, with their weights."""
        retriever = self._retriever(lm.device)
        hits = retriever.above(
            windows, tau=self.tau, matches=self.matches, match_by=self.match_by
        )
        weights = weigh(hits.similarities, hits.rows, len(windows), self.aggregation)
        return Evidence(lm, retriever, hits, weights, self.alpha)

    def after_head(self, base: torch.Tensor, evidence: Evidence, neutral: bool) -> torch.Tensor:
        """Fuse logits (rows, vocabulary) with the logits of the neighbors."""
        rows = len(base)
        hit = evidence.hits.count(rows) > 0
        pull = self._pulled_logits(evidence, rows)  # (rows, vocabulary)
        return fuse(base, pull, hit, alpha=self.alpha, how=self.fusion, neutral=neutral)

    def processor(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> LogitsProcessor:
        """The same arithmetic for `model.generate(..., logits_processor=[...])` of transformers."""
        from trueline.decoders.processor import RadProcessor

        return RadProcessor(self, LanguageModel(model, tokenizer))

    def _before_head(
        self, lm: LanguageModel, hidden: torch.Tensor, evidence: Evidence, neutral: bool
    ) -> torch.Tensor:
        """head(h + alpha * sum_i w_i h_i): one head product for both."""
        assert lm.head is not None
        rows, hits = len(hidden), evidence.hits
        hit = hits.count(rows) > 0
        pull = self._aggregated(evidence.retriever, hits, evidence.weights, rows)  # (rows, d)
        moved = fuse(hidden, pull, hit, alpha=self.alpha, how=self.fusion, neutral=neutral)
        logits = lm.head(moved)
        if lm.head.bias is not None and self.fusion == "add" and not neutral:
            # The neighbors' logits hold the bias too, and the head adds it only once.
            logits = torch.where(hit[:, None], logits + self.alpha * lm.head.bias, logits)
        return logits

    def _pulled_logits(self, evidence: Evidence, rows: int) -> torch.Tensor:
        """sum_i w_i l_i by the shortest way the head allows: (rows, vocabulary)."""
        lm, hits, retriever = evidence.lm, evidence.hits, evidence.retriever
        if self.space.recipe.values == "logits":
            return self._aggregated(retriever, hits, evidence.weights, rows)
        assert lm.head is not None
        if lm.head.is_linear:
            pull = self._aggregated(retriever, hits, evidence.weights, rows)  # (rows, d)
            return lm.head(pull.to(lm.dtype)).float()
        total = torch.zeros(rows, lm.vocabulary, device=lm.device)
        for places in torch.arange(len(hits), device=lm.device).split(_CHUNK):
            logits = lm.head(retriever.values(hits.entries[places]).to(lm.dtype)).float()
            total += aggregate(evidence.weights[places], hits.rows[places], logits, rows)
        return total

    def _aggregated(
        self, retriever: Retriever, hits: Hits, weights: torch.Tensor, rows: int
    ) -> torch.Tensor:
        return aggregate(weights, hits.rows, retriever.values(hits.entries), rows)

    def _is_fused_before_head(self, lm: LanguageModel) -> bool:
        is_linear = lm.head is not None and lm.head.is_linear
        return is_linear and self.space.recipe.values == "hidden" and self.fusion != "prob"

    @cached_property
    def _retrievers(self) -> dict[torch.device, Retriever]:
        return {}

    def _retriever(self, device: torch.device) -> Retriever:
        """The space on a device; made once, since a space never changes."""
        if device not in self._retrievers:
            self._retrievers[device] = Retriever(self.space, device)
        return self._retrievers[device]
