"""From texts to unit vectors: a sentence encoder, or the mean of static word vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer

from trueline.engines import DEFAULT_EMBEDDER, lasting_name, open_device, origin_of, remember
from trueline.engines.models import WEIGHTS, opening, resolve, weight_files
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


def prepare_texts(
    embedder: Embedder, texts: Sequence[str], *, tails: bool = False
) -> Callable[[], torch.Tensor]:
    """A function that gives the unit vectors of texts (texts, dimension).

    Repeats are embedded once. The work of Python is done at once, so that the function may run
    in another thread: Python there slows down the model's own, compiled code does not. Of a
    text that is too long the start is kept, with `tails` the end.
    """
    index: dict[str, int] = {}
    indices = [index.setdefault(text, len(index)) for text in texts]
    distinct = list(index)
    if not distinct:
        return lambda: torch.zeros(0, embedder.dimension)
    embed = partial(embedder.embed, distinct)
    if isinstance(embedder, SentenceEmbedder | StaticEmbedder):
        embed = partial(embedder.embed_tokenized, embedder.tokenize(distinct, tails=tails))
    return embed if len(distinct) == len(indices) else lambda: embed()[indices]


def embed_distinct(
    embedder: Embedder, texts: Sequence[str], *, tails: bool = False
) -> torch.Tensor:
    """The unit vectors of texts (texts, dimension); equal texts are embedded once."""
    return prepare_texts(embedder, texts, tails=tails)()


class SentenceEmbedder:
    """An encoder in the folder layout of sentence-transformers.

    Few texts at once run on ONNX Runtime, if it is installed; torch's encoder is opened only
    to export it, or for many texts.
    """

    def __init__(self, id: str, folder: Path, device: torch.device) -> None:
        self.id, self.folder, self.device = id, folder, device
        config, pooling = _read(folder, "config.json"), _read(folder, "1_Pooling/config.json")
        kinds = [item["type"].rsplit(".", 1)[-1] for item in _read(folder, "modules.json")]
        modes = [mode for mode, on in pooling.items() if "pooling_mode_" in mode and on is True]
        is_known = modes in (["pooling_mode_mean_tokens"], ["pooling_mode_cls_token"])
        if not is_known or set(kinds) - {"Transformer", "Pooling", "Normalize"}:
            raise ModelError(
                f"{id} is built of {', '.join(kinds)} with {', '.join(modes) or 'no pooling'}; "
                "trueline runs encoders with mean or first-token pooling, such as "
                f"{DEFAULT_EMBEDDER}"
            )
        self.takes_mean = "mean" in modes[0]
        self.dimension = int(pooling["word_embedding_dimension"])
        self.pad_id = int(config.get("pad_token_id") or 0)
        self.hash = _hash_files(folder)
        self.tokenizer, self._tails = _tokenizer(folder), _tokenizer(folder)
        longest = _read(folder, "sentence_bert_config.json").get("max_seq_length")
        limits = [longest, config.get("max_position_embeddings")]
        if limit := min(filter(None, limits), default=None):
            self.tokenizer.enable_truncation(limit)
            self._tails.enable_truncation(limit, direction="left")

    def __reduce__(self) -> tuple[object, ...]:  # an encoder cannot be pickled
        return origin_of(self), ()

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        return self.embed_tokenized(self.tokenize(texts))

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
                        return torch.as_tensor(weights.get_tensor(name)).float()
        return torch.as_tensor(self._model.encoder.get_input_embeddings().weight.detach())

    @cached_property
    def _model(self) -> _UnitVectors:
        from trueline.engines.transformers.open import open_model

        encoder = open_model(self.folder, "AutoModel", torch.float32)
        return _UnitVectors(encoder.to(self.device).eval(), self.takes_mean)

    @cached_property
    def _runtime(self) -> Runtime | None:
        is_cpu = self.device.type == "cpu"
        return open_runtime(self.hash, lambda: self._model, pad=self.pad_id) if is_cpu else None


class _UnitVectors(torch.nn.Module):
    """A padded batch of ids and mask (texts, tokens) -> unit vectors (texts, d)."""

    def __init__(self, encoder: Any, takes_mean: bool) -> None:
        super().__init__()
        self.encoder, self.takes_mean = encoder, takes_mean

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        output = self.encoder(input_ids=ids, attention_mask=mask)
        states = output.last_hidden_state.float()  # (texts, tokens, d)
        summed = (states * mask[..., None]).sum(1) if self.takes_mean else states[:, 0]
        return torch.nn.functional.normalize(summed, dim=1)


class StaticEmbedder:
    """The mean of fixed word vectors: a thousand times cheaper, ignores the order of words.

    The vector of a text without a known word is zero.
    """

    def __init__(self, id: str, folder: Path, device: torch.device) -> None:
        from safetensors.torch import load_file

        tensors = [t for t in load_file(folder / WEIGHTS).values() if t.dim() == 2]
        if len(tensors) != 1:
            raise ModelError(f"{id} holds {len(tensors)} matrices; word vectors are one")
        self.id, self.hash = id, _hash_files(folder)
        self.vectors = tensors[0].float().to(device)
        self.dimension = int(self.vectors.shape[1])
        self.tokenizer = _tokenizer(folder)
        self.unknown = self.tokenizer.token_to_id("[UNK]")

    def __reduce__(self) -> tuple[object, ...]:
        return origin_of(self), ()

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        return self.embed_tokenized(self.tokenize(texts))

    def tokenize(self, texts: Sequence[str], *, tails: bool = False) -> TokenRows:
        """The known tokens of each text."""
        encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[token for token in one.ids if token != self.unknown] for one in encodings]

    def embed_tokenized(self, rows: TokenRows) -> torch.Tensor:
        device = self.vectors.device
        ids = torch.tensor([token for row in rows for token in row], dtype=torch.long)
        starts = torch.tensor([0, *map(len, rows)]).cumsum(0)[:-1]
        means = torch.nn.functional.embedding_bag(
            ids.to(device), self.vectors, starts.to(device), mode="mean"
        )
        return torch.nn.functional.normalize(means, dim=1)


def load_embedder(
    name: str | Path = DEFAULT_EMBEDDER, *, device: str | torch.device = "cpu"
) -> Embedder:
    """Open an embedder by alias, hub id or local folder."""
    id, folder = resolve(str(name), "embedder")
    target = open_device(device)
    embedder: SentenceEmbedder | StaticEmbedder
    with opening(id, "an embedder"):
        has_config = (folder / "config.json").exists()
        kind = _read(folder, "config.json").get("model_type") if has_config else None
        if (folder / "modules.json").exists() and kind != "model2vec":
            embedder = SentenceEmbedder(id, folder, target)
            is_exported = runtime_path(embedder.hash).exists()
            embed = embedder.embed_tokenized if is_exported else embedder.embed_by_torch
        else:
            embedder = StaticEmbedder(id, folder, target)
            embed = embedder.embed_tokenized
        vectors = embed(embedder.tokenize([_TRIAL]))
        if vectors.shape != (1, embedder.dimension) or not vectors.isfinite().all():
            raise ModelError(f"{id} gives vectors that are not numbers: fetch it again")
    remember(embedder, partial(load_embedder, lasting_name(name), device=device))
    return embedder


def _hash_files(folder: Path) -> str:
    paths = [*weight_files(folder), *(folder / name for name in _HASHED)]
    lines = [f"{path.relative_to(folder)} {file_hash(path)}" for path in paths if path.exists()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text("utf-8"))
