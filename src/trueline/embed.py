"""From texts to unit vectors: a sentence encoder, or the mean of static word vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer

from trueline.engines import (
    DEFAULT_EMBEDDER,
    lasting_name,
    open_device,
    open_encoder,
    origin_of,
    remember,
)
from trueline.engines.models import resolve
from trueline.engines.weights import WEIGHTS, opening, weight_files
from trueline.errors import ModelError
from trueline.files import file_hash
from trueline.onnx import Runtime, TokenRows, open_runtime, pad_rows, runtime_path

_BATCH = 64  # texts in a pass of torch
_RUNTIME_MOST = 32  # texts: more keep all cores of torch busy, and the runtime has one
_TRIAL = "The sky is blue."  # an embedder's first text
_HASHED = (  # the files that determine the vectors, and the weights
    "config.json tokenizer.json modules.json sentence_bert_config.json 1_Pooling/config.json"
).split()


class Embedder(Protocol):
    """Turns texts into unit vectors."""

    id: str
    hash: str  # of everything that determines the vectors
    dimension: int

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors (texts, dimension), float32, in the order of the texts."""


class TwoPhaseEmbedder:
    """An embedder that runs its Python first, so that the rest can run in another thread.

    A thread that runs Python in parallel to the model slows down the model's own Python; a
    thread that runs compiled code does not.
    """

    id: str
    hash: str
    dimension: int

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors (texts, dimension), float32, in the order of the texts."""
        return self.embed_tokenized(self.tokenize(texts))

    def tokenize(self, texts: Sequence[str], *, tails: bool = False) -> TokenRows:
        """The first phase; of a long text the start is kept, with `tails` the end."""
        raise NotImplementedError

    def embed_tokenized(self, rows: TokenRows) -> torch.Tensor:
        """The second phase, safe in another thread."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[object, ...]:
        """Another process opens it by name: its encoder and runtime cannot be pickled."""
        return origin_of(self), ()


@dataclass(frozen=True, slots=True)
class PreparedTexts:
    """Texts without repeats, tokenized if their embedder has two phases."""

    distinct: list[str]
    indices: list[int]  # of each text among the distinct ones
    tokenized: TokenRows | None


def prepare_texts(
    embedder: Embedder, texts: Sequence[str], *, tails: bool = False
) -> PreparedTexts:
    """The first phase for texts with repeats; see `TwoPhaseEmbedder.tokenize` for `tails`."""
    index: dict[str, int] = {}
    indices = [index.setdefault(text, len(index)) for text in texts]
    phases = _two_phases(embedder) if index else None
    tokenized = phases.tokenize(list(index), tails=tails) if phases else None
    return PreparedTexts(list(index), indices, tokenized)


def embed_prepared(embedder: Embedder, prepared: PreparedTexts) -> torch.Tensor:
    """The second phase: the unit vectors of all texts, repeats too (texts, dimension)."""
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
    """The embedder, unless a subclass has its own `embed`."""
    if isinstance(embedder, TwoPhaseEmbedder):
        return embedder if type(embedder).embed is TwoPhaseEmbedder.embed else None
    return None


class SentenceEmbedder(TwoPhaseEmbedder):
    """An encoder in the folder layout of sentence-transformers.

    Few texts at once run on ONNX Runtime, if it is installed; torch's encoder is opened only
    to export it, or for many texts.
    """

    def __init__(self, id: str, folder: Path, device: torch.device) -> None:
        self.id, self.folder, self.device = id, folder, device
        config, pooling = _read(folder, "config.json"), _read(folder, "1_Pooling/config.json")
        modules = [item["type"].rsplit(".", 1)[-1] for item in _read(folder, "modules.json")]
        modes = [
            key for key, on in pooling.items() if key.startswith("pooling_mode_") and on is True
        ]
        if modes not in (["pooling_mode_mean_tokens"], ["pooling_mode_cls_token"]) or (
            set(modules) - {"Transformer", "Pooling", "Normalize"}
        ):
            raise ModelError(
                f"{id} is built of {', '.join(modules)} with {', '.join(modes) or 'no pooling'}"
                "; trueline runs encoders with mean or first-token pooling, such as "
                f"{DEFAULT_EMBEDDER}"
            )
        self.takes_mean = "mean" in modes[0]
        self.dimension = int(pooling["word_embedding_dimension"])
        self.pad_id = int(config.get("pad_token_id") or 0)
        self.hash = _hash_files(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self._tails = Tokenizer.from_str(self.tokenizer.to_str())
        limits = [
            _read(folder, "sentence_bert_config.json").get("max_seq_length"),
            config.get("max_position_embeddings"),
        ]
        if limit := min(filter(None, limits), default=None):
            self.tokenizer.enable_truncation(limit)
            self._tails.enable_truncation(limit, direction="left")

    def tokenize(self, texts: Sequence[str], *, tails: bool = False) -> TokenRows:
        tokenizer = self._tails if tails else self.tokenizer
        return [one.ids for one in tokenizer.encode_batch([text.strip() for text in texts])]

    def embed_tokenized(self, rows: TokenRows) -> torch.Tensor:
        if 0 < len(rows) <= _RUNTIME_MOST and self._runtime is not None:
            return self._runtime.run(pad_rows(rows, self.pad_id))
        return self.embed_by_torch(rows)

    @torch.inference_mode()
    def embed_by_torch(self, rows: TokenRows) -> torch.Tensor:
        """The vectors by torch; texts of similar length share a pass."""
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        vectors = torch.empty(len(rows), self.dimension, device=self.device)
        for start in range(0, len(order), _BATCH):
            indices = order[start : start + _BATCH]
            padded = pad_rows([rows[index] for index in indices], self.pad_id)
            inputs = (torch.from_numpy(array).to(self.device) for array in padded.values())
            vectors[indices] = self._model(*inputs)
        return vectors

    def open(self) -> None:
        """Open its runtime, which may have to be exported first."""
        _ = self._runtime

    @cached_property
    def word_vectors(self) -> torch.Tensor:
        """The input embedding of its encoder (vocabulary, d), without opening the encoder."""
        from safetensors import safe_open

        for file in weight_files(self.folder):
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():
                    if name.endswith("word_embeddings.weight"):
                        table: torch.Tensor = weights.get_tensor(name).float()
                        return table
        found: torch.Tensor = self._model.encoder.word_vectors
        return found

    @cached_property
    def _model(self) -> _UnitVectors:
        return _UnitVectors(open_encoder(self.folder, self.device), self.takes_mean)

    @cached_property
    def _runtime(self) -> Runtime | None:
        if self.device.type != "cpu":
            return None
        return open_runtime(self.hash, lambda: self._model, pad=self.pad_id)


class _UnitVectors(torch.nn.Module):
    """A padded batch of ids and mask (texts, tokens) -> unit vectors (texts, d)."""

    def __init__(self, encoder: Any, takes_mean: bool) -> None:
        super().__init__()
        self.encoder, self.takes_mean = encoder, takes_mean

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.encoder(ids, mask).float()  # (texts, tokens, d)
        summed = (states * mask[..., None]).sum(1) if self.takes_mean else states[:, 0]
        return torch.nn.functional.normalize(summed, dim=1)


class StaticEmbedder(TwoPhaseEmbedder):
    """The mean of fixed word vectors: a thousand times cheaper, ignores the order of words.

    The vector of a text without a known word is zero.
    """

    def __init__(self, id: str, folder: Path, device: torch.device) -> None:
        from safetensors.torch import load_file

        tensors = [t for t in load_file(folder / WEIGHTS).values() if t.dim() == 2]
        if len(tensors) != 1:
            raise ModelError(f"{id} holds {len(tensors)} matrices; word vectors are one")
        self.id, self.hash, self.vectors = (
            id,
            _hash_files(folder),
            tensors[0].float().to(device),
        )
        self.dimension = int(self.vectors.shape[1])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.unknown = self.tokenizer.token_to_id("[UNK]")

    def tokenize(self, texts: Sequence[str], *, tails: bool = False) -> TokenRows:
        """The known tokens of each text."""
        encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[token for token in one.ids if token != self.unknown] for one in encodings]

    def embed_tokenized(self, rows: TokenRows) -> torch.Tensor:
        device = self.vectors.device
        if not rows:
            return torch.zeros(0, self.dimension, device=device)
        ids = torch.tensor([token for row in rows for token in row], dtype=torch.long)
        starts = torch.tensor([0, *(len(row) for row in rows[:-1])]).cumsum(0)
        means = torch.nn.functional.embedding_bag(
            ids.to(device), self.vectors, starts.to(device), mode="mean"
        )
        return torch.nn.functional.normalize(means, dim=1)


def load_embedder(
    name: str | Path = DEFAULT_EMBEDDER, *, device: str | torch.device = "cpu"
) -> Embedder:
    """Open an embedder by alias, hub id or local folder."""
    source = resolve(str(name), "embedder")
    place = open_device(device)
    embedder: SentenceEmbedder | StaticEmbedder
    with opening(source.id, "an embedder"):
        config = source.folder / "config.json"
        is_static = config.exists() and _read(source.folder, "config.json").get("model_type")
        if (source.folder / "modules.json").exists() and is_static != "model2vec":
            embedder = SentenceEmbedder(source.id, source.folder, place)
            rows = embedder.tokenize([_TRIAL])
            is_exported = runtime_path(embedder.hash).exists()
            vectors = (embedder.embed_tokenized if is_exported else embedder.embed_by_torch)(
                rows
            )
        else:
            embedder = StaticEmbedder(source.id, source.folder, place)
            vectors = embedder.embed([_TRIAL])
        if vectors.shape != (1, embedder.dimension) or not vectors.isfinite().all():
            raise ModelError(
                f"{embedder.id} gives vectors that are not numbers; its weights are damaged: "
                "fetch it again"
            )
    remember(embedder, partial(load_embedder, lasting_name(name), device=device))
    return embedder


def _hash_files(folder: Path) -> str:
    """A hash of the files that determine the vectors."""
    paths = [*weight_files(folder), *(folder / name for name in _HASHED)]
    lines = [f"{path.relative_to(folder)} {file_hash(path)}" for path in paths if path.exists()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text("utf-8"))
