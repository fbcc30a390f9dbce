"""The content of a space in, its vectors and entries on a device out; each is opened once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trueline.embed import Embedder, SentenceEmbedder, load_embedder
from trueline.engines.base import Engine
from trueline.engines.models import check_named
from trueline.errors import SpaceMismatchError
from trueline.search import LARGE, Search, check_numbers, open_search
from trueline.space.agreement import agreement, check_agreement, is_of_another_engine
from trueline.space.content import Content
from trueline.space.retriever import OPENING_LOCK, Retriever
from trueline.space.segment import ANSWERS, QUESTIONS, VECTORS, Segment

_SHARED = "shared vector"  # its key among the texts that were read
_FEW = 3  # examples that weigh as much as the mean of all


@dataclass(frozen=True, eq=False)
class OpenContent(Content):
    """The content of a space with what was opened of it, which all methods share.

    Keys, values and searches belong to the segments, so that spaces that share a segment share
    them too; `opened` is handed on by `dataclasses.replace` and by edits.
    """

    embedder: Embedder | None = field(default=None, repr=False)  # None: opened when needed
    opened: dict[torch.device, Embedder] = field(default_factory=dict, repr=False)
    _retrievers: dict[tuple[torch.device, bool], Retriever] = field(
        default_factory=dict, init=False, repr=False
    )
    _questions: dict[torch.device, torch.Tensor] = field(
        default_factory=dict, init=False, repr=False
    )
    # What scope and corrective decoding read of an example's texts, by example or text.
    _agreements: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    texts_read: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.embedder is not None:
            self.check_embedder(self.embedder)

    def check_model(self, lm: Engine) -> None:
        """Refuse a model or tokenizer the entries were not made with, or a head they miss."""
        super().check_model(lm)
        self._check_head(lm)

    def check_use(self, lm: Engine) -> None:
        """Refuse a model the entries say nothing of.

        It is the one they were made with, or the same one in another engine: what tells is
        whether its states agree with those stored, looked at once.
        """
        if self.recipe.context is None or not is_of_another_engine(self, lm):
            self.check_model(lm)
            return
        if lm.fingerprint not in self._agreements:
            self._agreements[lm.fingerprint] = agreement(self, lm)
        check_agreement(self, lm, self._agreements[lm.fingerprint])
        self._check_head(lm)

    def _check_head(self, lm: Engine) -> None:
        if self.recipe.values == "hidden" and not self._fit_head(lm):
            raise SpaceMismatchError(
                f"the space keeps hidden states that the head of {lm.id} does not take; build "
                f"it anew with `trueline build --model {lm.id}`"
            )

    def _fit_head(self, lm: Engine) -> bool:
        """Whether the model's head takes its hidden states, tried on one of them."""
        sets = [each for part in self.parts for each in part.segment.sets().values()]
        width = next((each.values.shape[1] for each in sets), None)
        if lm.head is None or width is None:
            return width is None
        state = torch.zeros(1, width, dtype=lm.dtype, device=lm.device)
        try:
            lm.head.at(state, torch.zeros(1, dtype=torch.long, device=lm.device))
        except RuntimeError:  # torch says so where the widths differ
            return False
        return True

    def retriever(self, device: str | torch.device, *, wrong: bool = False) -> Retriever:
        """The entries on a device, of the truthful or the wrong answers; opened once."""
        key = torch.device(device), wrong
        with OPENING_LOCK:
            if key not in self._retrievers:
                embedder = self.open_embedder(key[0])
                self._retrievers[key] = Retriever(self.parts, embedder, key[0], wrong=wrong)
            return self._retrievers[key]

    def open_embedder(self, device: str | torch.device) -> Embedder:
        """The embedder it was built with, and no other; opened once for a device."""
        device = torch.device(device)
        with OPENING_LOCK:
            if device not in self.opened:
                if (embedder := self.embedder) is None:
                    check_named(self.recipe.embedder, "--embedder")
                    embedder = load_embedder(self.recipe.embedder, device=device)
                self.check_embedder(embedder)
                if isinstance(embedder, SentenceEmbedder):
                    embedder.open()
                self.opened[device] = embedder
            return self.opened[device]

    def question_vectors(self, device: str | torch.device) -> torch.Tensor:
        """The examples' questions as unit vectors (examples, dimension), float32; kept."""
        device = torch.device(device)
        with OPENING_LOCK:
            if device not in self._questions:
                found = np.concatenate([part.vectors()[QUESTIONS] for part in self.parts])
                vectors = torch.from_numpy(found).to(device).float()
                check_numbers(vectors, "vectors")
                self._questions[device] = vectors
            return self._questions[device]

    def nearest_examples(self, vectors: torch.Tensor, k: int) -> list[int]:
        """The numbers of the k examples whose questions are nearest to each vector, together.

        `vectors` are (queries, dimension), on the CPU.
        """
        found: dict[int, list[tuple[float, int]]] = {}
        first = 0
        for part in self.parts:
            live = None if part.live is None else torch.from_numpy(part.live)
            hits = _question_search(part.segment).nearest(vectors, k, live)
            rows = hits.entries if live is None else (live.cumsum(0) - 1)[hits.entries]
            for query, row, cosine in zip(
                hits.rows.tolist(), rows.tolist(), hits.similarities.tolist(), strict=True
            ):
                found.setdefault(query, []).append((-cosine, first + row))
            first += len(part)
        best = [number for near in found.values() for _, number in sorted(near)[:k]]
        return list(dict.fromkeys(best))

    def shared_vector(self) -> torch.Tensor:
        """What the questions and truthful answers of all examples share: (dimension,).

        It is their mean, drawn towards zero while there are few: what a single example says is
        its own.
        """
        if _SHARED not in self.texts_read:
            sums = [
                part.vectors()[name].sum(0, dtype=np.float32)
                for part in self.parts
                for name in (QUESTIONS, ANSWERS)
            ]
            total = torch.from_numpy(np.sum(sums, axis=0))
            self.texts_read[_SHARED] = total / (2 * (len(self.examples) + _FEW))
        found: torch.Tensor = self.texts_read[_SHARED]
        return found

    def example_vectors(self, number: int) -> torch.Tensor:
        """The vectors of one example's question, truthful and wrong answers: (3, dimension)."""
        for part in self.parts:
            if number < len(part):
                row = number if part.live is None else int(np.flatnonzero(part.live)[number])
                own = np.stack([part.segment.vectors[name][row] for name in VECTORS])
                vectors = torch.from_numpy(own.astype(np.float32))
                check_numbers(vectors, "vectors")
                return vectors
            number -= len(part)
        raise IndexError(number)


def _question_search(segment: Segment) -> Search:
    """Finds questions of a segment, through an index where there are many; opened once."""
    with OPENING_LOCK:
        if QUESTIONS not in segment.opened:
            keys = torch.from_numpy(np.asarray(segment.vectors[QUESTIONS]))
            record = segment.records.get("vectors")
            name = None if record is None else record.sha256
            if len(keys) < LARGE:  # compared exactly, and widened once, not at every request
                keys = keys.float()
                check_numbers(keys, "vectors")
            segment.opened[QUESTIONS] = open_search(keys, name)
        found: Search = segment.opened[QUESTIONS]
        return found
