"""The shared library of llama.cpp in, its C functions out, once it is known to be right.

Its parameter structs change between releases, and a wrong one crashes the process. So only the
release of `BUILD` is accepted, and the defaults that the library itself gives are held
against what stands at the offsets there, and against the size of the structs.
"""

from __future__ import annotations

import ctypes
import platform
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from math import inf
from pathlib import Path
from typing import Any

from trueline.engines.weights import GgufHeader, read_gguf_header
from trueline.errors import MissingExtraError, ModelError

_LONGEST = 1024  # bytes that no parameter struct reaches
_CANARY = 0xA5  # what they are filled with before the library writes its defaults
_KINDS: dict[str, Any] = {"i": ctypes.c_int32, "?": ctypes.c_bool}
_SHOWN = 300  # characters of what llama.cpp says that an error repeats
Pointer = ctypes.c_void_p


class Params(ctypes.Structure):
    """A parameter struct, longer than any: what is passed by value may be too long."""

    _fields_ = (("bytes", ctypes.c_ubyte * _LONGEST),)


class Batch(ctypes.Structure):
    """llama_batch: tokens with their positions, their sequences, and whether to put out."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", Pointer),
        ("embd", Pointer),
        ("pos", Pointer),
        ("n_seq_id", Pointer),
        ("seq_id", Pointer),
        ("logits", Pointer),
    )


@dataclass(frozen=True)
class Layout:
    """A parameter struct: the offset, the kind and the default of the fields we know."""

    size: int
    fields: Mapping[str, tuple[int, str, int]]

    def set(self, params: Params, name: str, value: int) -> None:
        """Write one field."""
        offset, kind, _ = self.fields[name]
        _KINDS[kind].from_buffer(params, offset).value = value

    def wrong_fields(self, params: Params) -> list[str]:
        """The fields whose defaults are not what they should be."""
        return [
            name
            for name, (offset, kind, default) in self.fields.items()
            if _KINDS[kind].from_buffer(params, offset).value != default
        ]


@dataclass(frozen=True)
class Build:
    """A release of the package that carries llama.cpp, and its parameter structs."""

    version: str
    llama_version: str  # what llama_version() says
    model: Layout
    context: Layout


_MODEL = Layout(
    80,
    {
        "n_gpu_layers": (16, "i", -1),
        "split_mode": (20, "i", 1),
        "load_mode": (24, "i", -1),
        "main_gpu": (32, "i", 0),
        "vocab_only": (72, "?", 0),
        "check_tensors": (73, "?", 0),
        "use_extra_bufts": (74, "?", 1),
    },
)
_CONTEXT = Layout(
    168,
    {
        "n_ctx": (0, "i", 512),
        "n_batch": (4, "i", 2048),
        "n_ubatch": (8, "i", 512),
        "n_seq_max": (12, "i", 1),
        "n_outputs_max": (20, "i", 0),
        "n_outputs_max_per_seq": (24, "i", 1),
        "n_threads": (28, "i", 4),
        "n_threads_batch": (32, "i", 4),
        "rope_scaling_type": (40, "i", -1),
        "pooling_type": (44, "i", -1),
        "attention_type": (48, "i", -1),
        "flash_attn_type": (52, "i", -1),
        "type_k": (104, "i", 1),
        "type_v": (108, "i", 1),
        "embeddings": (136, "?", 0),
        "offload_kqv": (137, "?", 1),
        "no_perf": (138, "?", 1),
        "swa_full": (140, "?", 1),
        "kv_unified": (141, "?", 0),
    },
)
# Another release is taken once the engine's tests pass with it.
BUILD = Build("2026.10.11549", "0.6.0-dev", _MODEL, _CONTEXT)
_PACKAGE = "xllamacpp"
_LIBRARIES = (".so", ".pyd", ".dylib", ".dll")
_int, _bool, _float, _text = ctypes.c_int32, ctypes.c_bool, ctypes.c_float, ctypes.c_char_p
_uint, _size = ctypes.c_uint32, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, ...]] = {  # the result, then the arguments
    "llama_version": (_text,),
    "llama_log_set": (None, Pointer, Pointer),
    "llama_backend_init": (None,),
    "llama_model_load_from_file": (Pointer, _text, Params),
    "llama_model_free": (None, Pointer),
    "llama_model_get_vocab": (Pointer, Pointer),
    "llama_model_n_ctx_train": (_int, Pointer),
    "llama_model_n_embd": (_int, Pointer),
    "llama_model_n_layer": (_int, Pointer),
    "llama_model_has_encoder": (_bool, Pointer),
    "llama_model_has_decoder": (_bool, Pointer),
    "llama_model_is_recurrent": (_bool, Pointer),
    "llama_model_is_hybrid": (_bool, Pointer),
    "llama_model_is_diffusion": (_bool, Pointer),
    "llama_init_from_model": (Pointer, Pointer, Params),
    "llama_free": (None, Pointer),
    "llama_n_ctx": (_uint, Pointer),
    "llama_n_batch": (_uint, Pointer),
    "llama_n_ubatch": (_uint, Pointer),
    "llama_n_seq_max": (_uint, Pointer),
    "llama_n_threads": (_int, Pointer),
    "llama_n_threads_batch": (_int, Pointer),
    "llama_pooling_type": (_int, Pointer),
    "llama_set_n_threads": (None, Pointer, _int, _int),
    "llama_set_embeddings": (None, Pointer, _bool),
    "llama_batch_get_one": (Params, Pointer, _int),
    "llama_decode": (_int, Pointer, Batch),
    "llama_get_logits": (Pointer, Pointer),
    "llama_get_embeddings": (Pointer, Pointer),
    "llama_get_memory": (Pointer, Pointer),
    "llama_memory_clear": (None, Pointer, _bool),
    "llama_memory_seq_rm": (_bool, Pointer, _int, _int, _int),
    "llama_memory_seq_cp": (None, Pointer, _int, _int, _int, _int),
    "llama_memory_seq_pos_max": (_int, Pointer, _int),
    "llama_state_seq_get_size": (_size, Pointer, _int),
    "llama_state_seq_get_data": (_size, Pointer, Pointer, _size, _int),
    "llama_state_seq_set_data": (_size, Pointer, Pointer, _size, _int),
    "llama_vocab_type": (_int, Pointer),
    "llama_vocab_n_tokens": (_int, Pointer),
    "llama_vocab_get_text": (_text, Pointer, _int),
    "llama_vocab_get_attr": (_int, Pointer, _int),
    "llama_vocab_is_eog": (_bool, Pointer, _int),
    "llama_vocab_bos": (_int, Pointer),
    "llama_vocab_eos": (_int, Pointer),
    "llama_vocab_eot": (_int, Pointer),
    "llama_tokenize": (_int, Pointer, _text, _int, Pointer, _int, _bool, _bool),
    "llama_token_to_piece": (_int, Pointer, _int, Pointer, _int, _int, _bool),
}
_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, Pointer)
_WARNING = 3  # from this level on, what llama.cpp says is kept for errors


class Library:
    """The C functions of llama.cpp by name, and what it said last."""

    def __init__(self, path: Path, build: Build) -> None:
        self.build = build
        loaded = ctypes.CDLL(str(path))
        self._functions: dict[str, Any] = {}
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        self._said: list[tuple[int, str]] = []  # the level and the words
        self._listen = _LogCallback(self._hear)  # kept: the library calls it
        _check(self, loaded)
        self.call("llama_log_set", ctypes.cast(self._listen, Pointer), None)
        self.call("llama_backend_init")

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function that is not on the hot path."""
        return self._functions[name](*arguments)

    def function(self, name: str) -> Any:
        """A function that is called for every token."""
        return self._functions[name]

    def params(self, kind: str, **values: int) -> Params:
        """A parameter struct: the library's defaults, and some fields of ours."""
        layout: Layout = getattr(self.build, kind)
        params = _defaults(self, kind)
        for name, value in values.items():
            layout.set(params, name, value)
        return params

    def last_words(self) -> str:
        """The errors of llama.cpp since this was last asked, else its warnings, in one line."""
        level = max((level for level, _ in self._said), default=0)
        said = "".join(text for own, text in self._said if own == level)
        self._said.clear()
        return said.replace("\n", "; ").strip("; ")[-_SHOWN:]

    # Names of this module are gone while the interpreter ends, and llama.cpp may speak then.
    def _hear(self, level: int, text: bytes, _: Any, least: int = _WARNING) -> None:
        if level >= least:
            self._said = [*self._said[-20:], (level, text.decode("utf-8", "replace"))]


@cache
def open_library() -> Library:
    """The library of the installed package, checked once a process."""
    found = util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError(
            "engine='llama.cpp' needs xllamacpp: pip install 'trueline[llama]'"
        )
    version = metadata.version(_PACKAGE)
    if version != BUILD.version:
        raise ModelError(
            f"{_PACKAGE} {version} is installed, and its parameter structs are not known to "
            f"this release of trueline; install {_accepted()}"
        )
    folder = Path(next(iter(found.submodule_search_locations)))
    label = f"{_PACKAGE} {version}"
    files = [path for path in sorted(folder.glob("*xllamacpp*.*")) if path.suffix in _LIBRARIES]
    if not files:
        raise ModelError(f"{folder} holds no shared library; install {label} again")
    try:
        return Library(files[0], BUILD)
    except (OSError, AttributeError) as error:  # it does not load, or lacks a function
        raise ModelError(
            f"the llama.cpp inside {label} cannot be used ({str(error)[:_SHOWN]}); "
            f"install the release this one was made for: {_accepted()}"
        ) from error


def _check(library: Library, loaded: ctypes.CDLL) -> None:
    """Refuse a library that is not the one its layout was written for."""
    said, wanted = library.call("llama_version").decode(), library.build.llama_version
    problems = [] if said == wanted else [f"it calls itself {said}, not {wanted}"]
    for kind in ("model", "context"):
        layout: Layout = getattr(library.build, kind)
        own = loaded[f"llama_{kind}_default_params"]
        own.restype, own.argtypes = Params, ()
        library._functions[f"llama_{kind}_default_params"] = own
        problems += [
            f"{name} of its {kind} parameters is not where it should be"
            for name in layout.wrong_fields(_defaults(library, kind))
        ]
        size = _written(loaded, f"llama_{kind}_default_params")
        if size is not None and not layout.size - 8 < size <= layout.size:
            problems.append(f"its {kind} parameters have {size} bytes, not {layout.size}")
    problems += _batch_problems(library)
    if problems:
        raise ModelError(
            f"this llama.cpp is not the one trueline was made for ({'; '.join(problems)}); "
            f"install {_accepted()}"
        )


def _defaults(library: Library, kind: str) -> Params:
    found: Params = library.call(f"llama_{kind}_default_params")
    return found


def _written(loaded: ctypes.CDLL, name: str) -> int | None:
    """How many bytes a function writes where its struct goes; None: it cannot be told here.

    The address of a large result is a hidden first argument on x86-64, so the function can be
    handed a buffer that is full of canaries.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    fill = ctypes.CFUNCTYPE(None, Pointer)((name, loaded))
    buffer = (ctypes.c_ubyte * _LONGEST)(*[_CANARY] * _LONGEST)
    fill(ctypes.addressof(buffer))
    return len(bytes(buffer).rstrip(bytes([_CANARY])))


def _batch_problems(library: Library) -> list[str]:
    """Whether a batch that the library makes reads as ours."""
    tokens = (ctypes.c_int32 * 2)(3, 4)
    made = library.call("llama_batch_get_one", tokens, 2)
    batch = Batch.from_buffer(made)
    others = (batch.embd, batch.pos, batch.n_seq_id, batch.seq_id, batch.logits)
    if batch.n_tokens == 2 and batch.token == ctypes.addressof(tokens) and not any(others):
        return []
    return ["a batch of tokens is laid out in another way"]


def _accepted() -> str:
    return f"{_PACKAGE}=={BUILD.version}"


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
