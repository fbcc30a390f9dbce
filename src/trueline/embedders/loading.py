"""A name in, an embedder out: a sentence-transformers folder or static word vectors."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from trueline.embedders.base import Embedder, Tokenized
from trueline.embedders.sentence import SentenceEmbedder
from trueline.embedders.static import StaticEmbedder
from trueline.engines import DEFAULT_EMBEDDER
from trueline.engines.devices import open_device
from trueline.engines.encoders import open_encoder
from trueline.engines.origins import lasting_name, remember
from trueline.engines.sources import resolve
from trueline.engines.weights import WEIGHTS, opening
from trueline.errors import ModelError

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
