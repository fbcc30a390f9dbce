"""The C functions of llama.cpp, from one pinned build that is checked before use.

The parameter structs change between releases, and a wrong one crashes the process. So only the
release of `BUILD` is accepted, and its structs are compared with the library's: the size, and
the defaults at the offsets of the fields we use.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from trueline.errors import MissingExtraError, ModelError

_LONGEST = 1024  # bytes; no parameter struct is longer
_CANARY = 0xA5  # fills a struct before the library writes its defaults
_KINDS: dict[str, Any] = {"i": ctypes.c_int32, "?": ctypes.c_bool}
_SHOWN = 300  # characters of llama.cpp's messages that an error repeats
Pointer = ctypes.c_void_p


class Params(ctypes.Structure):
    """Any parameter struct: one that is passed by value may be too long."""

    _fields_ = (("bytes", ctypes.c_ubyte * _LONGEST),)


class Batch(ctypes.Structure):
    """llama_batch: tokens, their positions and sequences, and which outputs are wanted."""

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
    """A parameter struct: offset, kind and default of the fields we know."""

    size: int
    fields: Mapping[str, tuple[int, str, int]]

    def field(self, params: Params, name: str) -> Any:
        """A field as a C value that can be read and written."""
        offset, kind, _ = self.fields[name]
        return _KINDS[kind].from_buffer(params, offset)


@dataclass(frozen=True)
class Build:
    """A release of the package that contains llama.cpp, and its parameter structs."""

    version: str
    llama_version: str  # what llama_version() returns
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
# To take another release, change this and run the tests of the engine.
BUILD = Build("2026.10.11549", "0.6.0-dev", _MODEL, _CONTEXT)
_PACKAGE = "xllamacpp"
_LIBRARIES = (".so", ".pyd", ".dylib", ".dll")
_int, _uint, _bool, _size = ctypes.c_int32, ctypes.c_uint32, ctypes.c_bool, ctypes.c_size_t
_text, _pair = ctypes.c_char_p, (Pointer, _int)
_SIGNATURES: tuple[tuple[Any, tuple[Any, ...], str], ...] = (  # result, arguments, functions
    (_text, (), "version"),
    (None, (), "backend_init"),
    (None, (Pointer, Pointer), "log_set"),
    (Params, (), "model_default_params context_default_params"),
    (Pointer, (_text, Params), "model_load_from_file"),
    (Pointer, (Pointer, Params), "init_from_model"),
    (None, (Pointer,), "model_free free"),
    (Pointer, (Pointer,), "model_get_vocab get_logits get_embeddings get_memory"),
    (_int, (Pointer,), "model_n_ctx_train model_n_embd model_n_layer n_threads"),
    (_uint, (Pointer,), "n_ctx n_batch n_ubatch n_seq_max"),
    (_bool, (Pointer,), "model_has_encoder model_has_decoder model_is_recurrent"),
    (_bool, (Pointer,), "model_is_hybrid model_is_diffusion"),
    (None, (Pointer, _int, _int), "set_n_threads"),
    (None, (Pointer, _bool), "set_embeddings memory_clear"),
    (Params, _pair, "batch_get_one"),
    (_int, (Pointer, Batch), "decode"),
    (_bool, (Pointer, _int, _int, _int), "memory_seq_rm"),
    (None, (Pointer, _int, _int, _int, _int), "memory_seq_cp"),
    (_size, _pair, "state_seq_get_size"),
    (_size, (Pointer, Pointer, _size, _int), "state_seq_get_data state_seq_set_data"),
    (_int, (Pointer,), "vocab_type vocab_n_tokens vocab_bos vocab_eos vocab_eot"),
    (_text, _pair, "vocab_get_text"),
    (_int, _pair, "vocab_get_attr"),
    (_bool, _pair, "vocab_is_eog"),
    (_int, (Pointer, _text, _int, Pointer, _int, _bool, _bool), "tokenize"),
    (_int, (Pointer, _int, Pointer, _int, _int, _bool), "token_to_piece"),
)
_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, Pointer)
_WARNING = 3  # messages from this level on are kept for errors


class Library:
    """The C functions of llama.cpp by name, and its last messages."""

    def __init__(self, path: Path, build: Build) -> None:
        self.build = build
        loaded = ctypes.CDLL(str(path))
        self._functions: dict[str, Any] = {}
        for result, arguments, names in _SIGNATURES:
            for name in names.split():
                function = loaded[f"llama_{name}"]  # an object of our own: it may be set up
                function.restype, function.argtypes = result, arguments
                self._functions[f"llama_{name}"] = function
        _check(self, loaded)
        self._messages: list[tuple[int, str]] = []  # level and text
        self._callback = _LogCallback(self._log)  # kept: the library calls it
        self.call("llama_log_set", ctypes.cast(self._callback, Pointer), None)
        self.call("llama_backend_init")

    def call(self, name: str, *arguments: Any) -> Any:
        return self._functions[name](*arguments)

    def function(self, name: str) -> Any:
        """A function that is called for every token."""
        return self._functions[name]

    def params(self, kind: str, **values: int) -> Params:
        """A parameter struct with the library's defaults, but for these values."""
        layout: Layout = getattr(self.build, kind)
        params: Params = self.call(f"llama_{kind}_default_params")
        for name, value in values.items():
            layout.field(params, name).value = value
        return params

    def last_messages(self) -> str:
        """The errors of llama.cpp since the last call, or else its warnings, in one line."""
        worst = max((level for level, _ in self._messages), default=0)
        found = "".join(text for level, text in self._messages if level == worst)
        self._messages.clear()
        return found.replace("\n", "; ").strip("; ")[-_SHOWN:]

    # llama.cpp may log while the interpreter exits, when the names of this module are gone.
    def _log(self, level: int, text: bytes, _: Any, least: int = _WARNING) -> None:
        if level >= least:
            self._messages = [*self._messages[-20:], (level, text.decode("utf-8", "replace"))]


@cache
def open_library(build: Build = BUILD) -> Library:
    """The library of the installed package, checked once a process."""
    found = util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError(
            f"engine='llama.cpp' needs {_PACKAGE}: pip install 'trueline[llama]'"
        )
    version, accepted = metadata.version(_PACKAGE), f"{_PACKAGE}=={build.version}"
    folder = Path(next(iter(found.submodule_search_locations)))
    files = [path for path in sorted(folder.glob("*xllamacpp*.*")) if path.suffix in _LIBRARIES]
    try:
        if version != build.version:
            raise OSError("its parameter structs are not known to this release of trueline")
        if not files:
            raise OSError(f"{folder} holds no shared library")
        return Library(files[0], build)
    except (OSError, AttributeError) as error:  # also if it does not load or lacks a function
        raise ModelError(
            f"the llama.cpp inside {_PACKAGE} {version} cannot be used "
            f"({str(error)[:_SHOWN]}); install {accepted}"
        ) from error


def _check(library: Library, loaded: ctypes.CDLL) -> None:
    """Refuse a library whose structs are not those of its build."""
    build, problems = library.build, []
    if (version := library.call("llama_version").decode()) != build.llama_version:
        problems.append(f"it calls itself {version}, not {build.llama_version}")
    for kind in ("model", "context"):
        layout: Layout = getattr(build, kind)
        defaults = library.params(kind)
        problems += [
            f"{name} of its {kind} parameters is not where it should be"
            for name, (_, _, default) in layout.fields.items()
            if layout.field(defaults, name).value != default
        ]
        size = _written(loaded, f"llama_{kind}_default_params")
        if size is not None and not layout.size - 8 < size <= layout.size:
            problems.append(f"its {kind} parameters have {size} bytes, not {layout.size}")
    tokens = (ctypes.c_int32 * 2)(3, 4)
    batch = Batch.from_buffer(library.call("llama_batch_get_one", tokens, 2))
    others = (batch.embd, batch.pos, batch.n_seq_id, batch.seq_id, batch.logits)
    if batch.n_tokens != 2 or batch.token != ctypes.addressof(tokens) or any(others):
        problems.append("a batch of tokens is laid out in another way")
    if problems:
        raise OSError("; ".join(problems))


def _written(loaded: ctypes.CDLL, name: str) -> int | None:
    """The bytes that a function writes for the struct it returns; None if unknown here.

    On x86-64 the address of a large result is a hidden first argument, so the function can be
    given a buffer that is full of canaries.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    fill = ctypes.CFUNCTYPE(None, Pointer)((name, loaded))
    buffer = (ctypes.c_ubyte * _LONGEST)(*[_CANARY] * _LONGEST)
    fill(ctypes.addressof(buffer))
    return len(bytes(buffer).rstrip(bytes([_CANARY])))
