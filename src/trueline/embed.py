"""What an embedder is, and how texts with repeats are embedded: texts -> unit vectors."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer

from trueline.engines import DEFAULT_EMBEDDER, lasting_name, open_device, remember
from trueline.engines.models import resolve
from trueline.engines.weights import WEIGHTS, opening
from trueline.errors import ModelError
from trueline.onnx import (
    Encoder,
    Inputs,
    Runtime,
    TokenRows,
    open_encoder,
    open_runtime,
    pad_rows,
)


class Embedder(Protocol):
    """What turns a window of text into the key of an entry, or a query."""

    id: str
    hash: str  # of everything that shapes the vectors
    dimension: int

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors (texts, dimension), float32, in the order of the texts."""
        ...


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Texts cut into tokens, ready for an embedder's second phase."""

    rows: TokenRows
    inputs: Inputs | None = None  # the same rows for a runtime, if it embeds them


class TwoPhaseEmbedder(ABC):
    """An embedder that does its Python first, so that the rest can run in another thread.

    A thread that runs Python alongside the model takes time from the model's own Python; one
    that runs compiled code does not.
    """

    id: str
    hash: str
    dimension: int

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors (texts, dimension), float32, in the order of the texts."""
        return self.embed_tokenized(self.tokenize(texts))

    @abstractmethod
    def tokenize(self, texts: Sequence[str], *, tails: bool = False) -> Tokenized:
        """Cut texts into tokens: the first phase.

        Of a text that is longer than it reads, the beginning is kept; with `tails` the end.
        """

    @abstractmethod
    def embed_tokenized(self, tokenized: Tokenized) -> torch.Tensor:
        """The unit vectors of tokenized texts: the second phase, safe in another thread."""


@dataclass(frozen=True, slots=True)
class PreparedTexts:
    """Texts without their repeats, tokenized if their embedder works in two phases."""

    distinct: list[str]
    indices: list[int]  # of each text among the distinct ones
    tokenized: Tokenized | None


def prepare_texts(
    embedder: Embedder, texts: Sequence[str], *, tails: bool = False
) -> PreparedTexts:
    """Do what an embedder can do before its model runs; `embed_prepared` does the rest.

    With `tails` it is the end that counts of a text which is too long for the embedder.
    """
    index: dict[str, int] = {}
    indices = [index.setdefault(text, len(index)) for text in texts]
    distinct = list(index)
    phases = _two_phases(embedder)
    tokenized = phases.tokenize(distinct, tails=tails) if phases and distinct else None
    return PreparedTexts(distinct, indices, tokenized)


def embed_prepared(embedder: Embedder, prepared: PreparedTexts) -> torch.Tensor:
    """The unit vectors of all prepared texts, repeats too: (texts, dimension)."""
    phases = _two_phases(embedder)
    if not prepared.distinct:
        return torch.zeros(0, embedder.dimension)
    if prepared.tokenized is not None and phases is not None:
        vectors = phases.embed_tokenized(prepared.tokenized)
    else:
        vectors = embedder.embed(prepared.distinct)
    has_repeats = len(prepared.distinct) < len(prepared.indices)
    return vectors[prepared.indices] if has_repeats else vectors


def embed_distinct(
    embedder: Embedder, texts: Sequence[str], *, tails: bool = False
) -> torch.Tensor:
    """The unit vectors of texts (texts, dimension); equal texts are embedded once."""
    return embed_prepared(embedder, prepare_texts(embedder, texts, tails=tails))


def _two_phases(embedder: Embedder) -> TwoPhaseEmbedder | None:
    """The embedder, if a class made from it has not given it another `embed`."""
    if isinstance(embedder, TwoPhaseEmbedder):
        return embedder if type(embedder).embed is TwoPhaseEmbedder.embed else None
    return None


_BATCH = 64  # texts a forward pass
_RUNTIME_MOST = 32  # texts: more keep all cores of torch busy, and the runtime has one


class SentenceEmbedder(TwoPhaseEmbedder):
    """An encoder, and the mean of a text's states or the first of them as its vector."""

    def __init__(
        self,
        id: str,
        encoder: Encoder,
        tokenizer: Tokenizer,
        *,
        pooling: str,
        limit: int | None,
    ) -> None:
        self.id, self.encoder, self.pooling = id, encoder, pooling
        self.dimension = encoder.width
        self.tokenizer = tokenizer
        if limit is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(limit)
        tokenizer.no_padding()
        self._tails = Tokenizer.from_str(tokenizer.to_str())
        if limit is not None:
            self._tails.enable_truncation(limit, direction="left")
        parts = [encoder.fingerprint(), tokenizer.to_str(), pooling]
        self.hash = hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def tokenize(self, texts: Sequence[str], *, tails: bool = False) -> Tokenized:
        """Cut texts into tokens, and pad them if the fast runtime is to embed them."""
        tokenizer = self._tails if tails else self.tokenizer
        encodings = tokenizer.encode_batch([text.strip() for text in texts])
        rows = [encoding.ids for encoding in encodings]
        if 0 < len(rows) <= _RUNTIME_MOST and self._runtime is not None:
            return Tokenized(rows, pad_rows(rows, self.encoder.pad_id))
        return Tokenized(rows)

    def embed_tokenized(self, tokenized: Tokenized) -> torch.Tensor:
        """Unit vectors (texts, dimension), by the fast runtime where the texts are padded."""
        if tokenized.inputs is not None and self._runtime is not None:
            return self._runtime.run(tokenized.inputs)
        return self._embed_batches(tokenized.rows)

    def open(self) -> None:
        """Open its runtime, which may have to be exported first."""
        _ = self._runtime

    @cached_property
    def _runtime(self) -> Runtime | None:
        return open_runtime(self.encoder, self.hash, self._embed_padded)

    def _embed_batches(self, rows: TokenRows) -> torch.Tensor:
        """Unit vectors by torch; texts of similar length share a pass."""
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        vectors = torch.empty(len(rows), self.dimension, device=self.encoder.device)
        for start in range(0, len(order), _BATCH):
            indices = order[start : start + _BATCH]
            vectors[indices] = self._embed_batch([rows[index] for index in indices])
        return vectors

    @torch.inference_mode()
    def _embed_batch(self, rows: TokenRows) -> torch.Tensor:
        inputs = pad_rows(rows, self.encoder.pad_id).values()
        return self._embed_padded(
            *(torch.from_numpy(a).to(self.encoder.device) for a in inputs)
        )

    def _embed_padded(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Unit vectors of a padded batch, by one pass of torch: (texts, dimension)."""
        states = self.encoder(ids, mask).float()  # (texts, tokens, dimension)
        summed = states[:, 0] if self.pooling == "first" else (states * mask[..., None]).sum(1)
        return torch.nn.functional.normalize(summed, dim=1)


class StaticEmbedder(TwoPhaseEmbedder):
    """The mean of fixed word vectors: a thousand times cheaper, blind to the order of words.

    The vector of a text without a known word is zero.
    """

    def __init__(
        self, id: str, vectors: torch.Tensor, tokenizer: Tokenizer, unknown: int | None
    ) -> None:
        self.id, self.vectors, self.tokenizer, self.unknown = id, vectors, tokenizer, unknown
        self.dimension = int(vectors.shape[1])
        tokenizer.no_truncation()
        tokenizer.no_padding()
        digest = hashlib.sha256(vectors.cpu().numpy().tobytes())
        digest.update(tokenizer.to_str().encode())
        self.hash = digest.hexdigest()

    def tokenize(self, texts: Sequence[str], *, tails: bool = False) -> Tokenized:
        """Cut texts into tokens and drop the unknown ones."""
        encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return Tokenized(
            [[token for token in item.ids if token != self.unknown] for item in encodings]
        )

    def embed_tokenized(self, tokenized: Tokenized) -> torch.Tensor:
        """Unit vectors (texts, dimension); zero for a text without a known word."""
        rows, device = tokenized.rows, self.vectors.device
        if not rows:
            return torch.zeros(0, self.dimension, device=device)
        ids = torch.tensor([token for row in rows for token in row], dtype=torch.long)
        starts = torch.tensor([0, *(len(row) for row in rows[:-1])]).cumsum(0)
        means = torch.nn.functional.embedding_bag(
            ids.to(device), self.vectors, starts.to(device), mode="mean"
        )
        return torch.nn.functional.normalize(means, dim=1)


_TRIAL = "The sky is blue."  # an embedder's first text


def load_embedder(
    name: str | Path = DEFAULT_EMBEDDER, *, device: str | torch.device = "cpu"
) -> Embedder:
    """Open an embedder by alias, hub id or local folder."""
    source = resolve(str(name), "embedder")
    place = open_device(device)
    with opening(source.id, "an embedder"):
        if (source.folder / "modules.json").exists() and not _is_static(source.folder):
            opened = _tried(_sentence_embedder(source.id, source.folder, place))
        else:
            opened = _tried(_static_embedder(source.id, source.folder, place))
    remember(opened, partial(load_embedder, lasting_name(name), device=device))
    return opened


def _tried(embedder: SentenceEmbedder | StaticEmbedder) -> Embedder:
    """The embedder, once it has embedded a text: what is damaged shows here."""
    rows = [embedder.tokenizer.encode(_TRIAL).ids]
    vectors = embedder.embed_tokenized(Tokenized(rows))
    if vectors.shape != (1, embedder.dimension) or not vectors.isfinite().all():
        raise ModelError(
            f"{embedder.id} gives vectors that are not numbers; its weights are damaged: "
            "fetch it again"
        )
    return embedder


def _sentence_embedder(id: str, folder: Path, device: torch.device) -> SentenceEmbedder:
    modules = [item["type"].rsplit(".", 1)[-1] for item in _read(folder / "modules.json")]
    pooling = _read(folder / "1_Pooling" / "config.json")
    modes = [
        key for key, on in pooling.items() if key.startswith("pooling_mode_") and on is True
    ]
    if modes not in (["pooling_mode_mean_tokens"], ["pooling_mode_cls_token"]) or (
        set(modules) - {"Transformer", "Pooling", "Normalize"}
    ):
        raise ModelError(
            f"{id} is built of {', '.join(modules)} with {', '.join(modes) or 'no pooling'}; "
            "trueline runs encoders with mean or first-token pooling, such as "
            f"{DEFAULT_EMBEDDER}"
        )
    settings = _read(folder / "sentence_bert_config.json")
    encoder = open_encoder(folder, device)
    limits = [limit for limit in (settings.get("max_seq_length"), encoder.limit) if limit]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    mode = "mean" if "mean" in modes[0] else "first"
    limit = min(limits, default=None)
    return SentenceEmbedder(id, encoder, tokenizer, pooling=mode, limit=limit)


def _static_embedder(id: str, folder: Path, device: torch.device) -> StaticEmbedder:
    from safetensors.torch import load_file

    tensors = [t for t in load_file(folder / WEIGHTS).values() if t.dim() == 2]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if len(tensors) != 1:
        raise ModelError(f"{id} holds {len(tensors)} matrices; word vectors are one")
    unknown = tokenizer.token_to_id("[UNK]")
    return StaticEmbedder(id, tensors[0].float().to(device), tokenizer, unknown)


def _is_static(folder: Path) -> bool:
    config = folder / "config.json"
    return config.exists() and _read(config).get("model_type") == "model2vec"


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))
