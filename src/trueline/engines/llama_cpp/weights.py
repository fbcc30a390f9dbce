"""A GGUF file in, the weights of llama.cpp out, held open while somebody reads with them."""

from __future__ import annotations

import ctypes
import weakref
from math import inf
from pathlib import Path

from trueline.engines.gguf_header import GgufHeader, read_gguf_header
from trueline.engines.llama_cpp.library import Library, open_library
from trueline.errors import ModelError

_REFUSED = {  # what llama.cpp says of a model: why it cannot be used
    "llama_model_has_encoder": "has an encoder, which trueline does not run",
    "llama_model_is_recurrent": "keeps a running state where trueline needs a cache of keys "
    "and values; models with attention in every layer work",
    "llama_model_is_hybrid": "keeps a running state in some layers, where trueline needs a "
    "cache of keys and values; models with attention in every layer work",
    "llama_model_is_diffusion": "writes all of its answer at once, and trueline goes token by "
    "token",
}


_MOST_LAYERS = 512  # what llama.cpp is built for


# From eight tokens at once on, llama.cpp multiplies weights of these formats (Q2_K to Q8_K) in
# another way, which rounds differently.
_K_FORMATS = range(10, 16)
_ALIKE = 7


class Weights:
    """A model of llama.cpp and its vocabulary."""

    def __init__(self, file: Path, label: str) -> None:
        self.file = file
        self.header: GgufHeader = read_gguf_header(file, label)
        _check_header(self.header, label)
        self.library: Library = open_library()
        self.pointer = self._load(label)
        call = self.library.call
        # Not at exit: threads may still read then, and the process gives it back anyway.
        free = self.library.function("llama_model_free")
        weakref.finalize(self, free, self.pointer).atexit = False
        self.vocab = ctypes.c_void_p(call("llama_model_get_vocab", self.pointer))
        self.vocabulary = int(call("llama_vocab_n_tokens", self.vocab))
        self.limit = int(call("llama_model_n_ctx_train", self.pointer))
        self.width = int(call("llama_model_n_embd", self.pointer))
        self.depth = int(call("llama_model_n_layer", self.pointer))
        kinds = {tensor.kind for tensor in self.header.tensors.values()}
        # So many rows at once have the logits that each has alone; None: any number.
        self.rows_alike = _ALIKE if kinds & set(_K_FORMATS) else None
        self._check(label)

    def _load(self, label: str) -> ctypes.c_void_p:
        library = self.library
        library.last_words()
        # In its own layout, llama.cpp multiplies Q4_K weights for one row in one way and
        # for several in another, which rounds differently: an answer would hang on the others.
        params = library.params("model", n_gpu_layers=0, use_extra_bufts=False)
        pointer = library.call("llama_model_load_from_file", str(self.file).encode(), params)
        said = library.last_words()
        if not pointer:
            raise ModelError(
                f"llama.cpp cannot open {label} ({said or 'it does not say why'}); fetch the "
                "model again, or take one whose architecture this llama.cpp knows"
            )
        return ctypes.c_void_p(pointer)

    def _check(self, label: str) -> None:
        call = self.library.call
        for question, why in _REFUSED.items():
            if call(question, self.pointer):
                raise ModelError(f"{label} {why}")
        if not call("llama_model_has_decoder", self.pointer):
            raise ModelError(f"{label} has no decoder: it embeds texts and writes none")
        for name in ("vocabulary", "limit", "width", "depth"):
            if getattr(self, name) < 1:
                raise ModelError(
                    f"the header of {label} gives it a {name} of {getattr(self, name)}; "
                    "fetch the model again"
                )


def _check_header(header: GgufHeader, label: str) -> None:
    """Refuse settings at which llama.cpp ends the process instead of saying what is wrong."""
    kind = header.settings.get("general.architecture")
    layers = header.settings.get(f"{kind}.block_count")
    if layers is not None and not (isinstance(layers, int) and 0 < layers <= _MOST_LAYERS):
        raise ModelError(
            f"the header of {label} gives it {layers} layers, and llama.cpp takes from 1 to "
            f"{_MOST_LAYERS}; fetch the model again"
        )
    for name in ("layer_norm_rms_epsilon", "layer_norm_epsilon"):
        value = header.settings.get(f"{kind}.attention.{name}", 0.0)
        if not (isinstance(value, float | int) and 0 <= value < inf):
            raise ModelError(
                f"the header of {label} gives it a {name} of {value}, which is no small "
                "number; fetch the model again"
            )
