"""The folder of an encoder in, a BERTScore scorer out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trueline.engines.transformers.opening import check_folder
from trueline.engines.transformers.quiet import quiet
from trueline.engines.weights import opening
from trueline.errors import import_extra


def open_bert_scorer(folder: str, layers: int) -> Any:
    """Open an encoder with bert-score, which is built on transformers."""
    scorer_class = import_extra("bert_score", "BERTScore", "eval").BERTScorer
    with opening(folder, f"an encoder with its tokenizer, for BertScore's layer {layers}"):
        check_folder(Path(folder), "encoder")  # which bert-score then opens itself
        kind = json.loads((Path(folder) / "config.json").read_text("utf-8"))["model_type"]
        if "t5" in folder and kind not in ("t5", "mt5"):  # it would get random weights
            raise ValueError("bert-score takes a path with 't5' in it for a T5; rename it")
        with quiet():
            scorer = scorer_class(model_type=folder, num_layers=layers, use_fast_tokenizer=True)
    # A tokenizer that names no limit would let a long text run past the last position. A model
    # of relative positions (T5) has no last one.
    if limit := getattr(scorer._model.config, "max_position_embeddings", None):
        scorer._tokenizer.model_max_length = min(scorer._tokenizer.model_max_length, limit)
    return scorer
