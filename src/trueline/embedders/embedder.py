"""Texts in, unit vectors out: sentence-transformers folders and static word vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from tokenizers import Tokenizer

from trueline.embedders.runtime import Runtime, open_runtime
from trueline.engines.sources import resolve
from trueline.engines.transformers.fingerprint import fingerprint
from trueline.engines.transformers.quiet import quiet
from trueline.errors import ModelError
from trueline.shortcuts import is_on

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BATCH = 64  # texts a forward pass
_FEW = 32  # texts that the runtime embeds


class Embedder(Protocol):
    """What turns a window of text into the key of an entry, or a query."""

    id: str
    hash: str  # of everything that shapes the vectors
    dimension: int

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors (texts, dimension), float32, in the order of the texts."""
        ...


class SentenceEmbedder:
    """An encoder with mean or first-token pooling, as sentence-transformers runs it."""

    def __init__(
        self, id: str, model: PreTrainedModel, tokenizer: Tokenizer, *, pooling: str, limit: int
    ) -> None:
        self.id, self.model, self.pooling = id, model.eval(), pooling
        self.dimension = int(model.config.hidden_size)
        self.tokenizer = tokenizer
        tokenizer.enable_truncation(limit)
        tokenizer.no_padding()
        self._pad = int(getattr(model.config, "pad_token_id", 0) or 0)
        parts = [fingerprint(model), tokenizer.to_str(), pooling]
        self.hash = hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors (texts, dimension), float32, in the order of the texts."""
        return self.begin(texts)()

    def begin(self, texts: Sequence[str]) -> Callable[[], torch.Tensor]:
        """Cut the texts into tokens; what is returned embeds them."""
        encoded = [
            item.ids for item in self.tokenizer.encode_batch([text.strip() for text in texts])
        ]
        # Many texts keep all cores of torch busy; the runtime has one, and no cost a call.
        if 0 < len(encoded) <= _FEW and is_on("runtime") and self._runtime is not None:
            return self._runtime.begin(encoded)
        return partial(self._embed, encoded)

    def _embed(self, encoded: list[list[int]]) -> torch.Tensor:
        """By torch; texts of like length share a pass."""
        order = sorted(range(len(encoded)), key=lambda place: len(encoded[place]))
        vectors = torch.empty(len(encoded), self.dimension, device=self.model.device)
        for start in range(0, len(order), _BATCH):
            places = order[start : start + _BATCH]
            vectors[places] = self._vectors([encoded[place] for place in places])
        return vectors

    def open(self) -> None:
        """Open its runtime, which may have to be exported first."""
        if is_on("runtime"):
            _ = self._runtime

    @cached_property
    def _runtime(self) -> Runtime | None:
        return open_runtime(self.model, self.hash, self.pooling, self._vectors)

    @torch.inference_mode()
    def _vectors(self, rows: list[list[int]]) -> torch.Tensor:
        """The unit vectors of some texts by torch: (texts, width)."""
        width, device = max(map(len, rows)), self.model.device
        ids = torch.tensor([row + [self._pad] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        ids, mask = ids.to(device), mask.to(device)
        states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        summed = states[:, 0] if self.pooling == "first" else (states * mask[..., None]).sum(1)
        return torch.nn.functional.normalize(summed, dim=1)


class StaticEmbedder:
    """The mean of fixed word vectors: a thousand times cheaper, blind to the order of words."""

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

    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors (texts, dimension); zero for a text without a known word."""
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        known = [[token for token in item.ids if token != self.unknown] for item in encoded]
        lengths = [len(ids) for ids in known]
        ids = torch.tensor([token for ids in known for token in ids], dtype=torch.long)
        starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
        device = self.vectors.device
        bags = torch.nn.functional.embedding_bag(
            ids.to(device), self.vectors, starts.to(device), mode="mean"
        )
        return torch.nn.functional.normalize(bags, dim=1)


def begin(embedder: Embedder, texts: Sequence[str]) -> Callable[[], torch.Tensor]:
    """Do what an embedder can do at once; what is returned does the rest."""
    if type(embedder) is SentenceEmbedder:  # one made from it may embed in another way
        return embedder.begin(texts)
    return partial(embedder.embed, texts)


def load_embedder(name: str | Path, *, device: str | torch.device = "cpu") -> Embedder:
    """Open an embedder by alias, hub id or local folder."""
    source = resolve(str(name), "embedder")
    try:
        if (source.folder / "modules.json").exists() and not _is_static(source.folder):
            return _sentence_embedder(source.id, source.folder, torch.device(device))
        return _static_embedder(source.id, source.folder, torch.device(device))
    except ModelError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        raise ModelError(
            f"{source.id} cannot be opened as an embedder ({type(error).__name__}: {reason})"
        ) from error


def _sentence_embedder(id: str, folder: Path, device: torch.device) -> SentenceEmbedder:
    from transformers import AutoModel

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
            "trueline runs encoders with mean or first-token pooling, such as all-minilm-l6-v2"
        )
    settings = _read(folder / "sentence_bert_config.json")
    with quiet():
        model = AutoModel.from_pretrained(folder, dtype=torch.float32).to(device)
    limit = int(settings.get("max_seq_length") or model.config.max_position_embeddings)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    mode = "mean" if "mean" in modes[0] else "first"
    return SentenceEmbedder(id, model, tokenizer, pooling=mode, limit=limit)


def _static_embedder(id: str, folder: Path, device: torch.device) -> StaticEmbedder:
    from safetensors.torch import load_file

    tensors = [t for t in load_file(folder / "model.safetensors").values() if t.dim() == 2]
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
