"""The C functions of llama.cpp, from one pinned build that is checked before use.

The parameter structs change between releases, and a wrong one crashes the process. So only one
release is accepted, and its defaults are compared at the offsets of the fields we know.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from trueline.errors import MissingExtraError, ModelError

_LONGEST = 1024  # bytes; no parameter struct is longer
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


# To take another release, change this and run the tests of the engine.
_PACKAGE, _VERSION = "xllamacpp", "2026.10.11549"
_FIELDS = {  # of each struct: offset, kind and default
    "model": {
        "n_gpu_layers": (16, "i", -1),
        "split_mode": (20, "i", 1),
        "load_mode": (24, "i", -1),
        "main_gpu": (32, "i", 0),
        "vocab_only": (72, "?", 0),
        "check_tensors": (73, "?", 0),
        "use_extra_bufts": (74, "?", 1),
    },
    "context": {
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
}
_LIBRARIES = (".so", ".pyd", ".dylib", ".dll")
_int, _bool, _size = ctypes.c_int32, ctypes.c_bool, ctypes.c_size_t
_text, _pair = ctypes.c_char_p, (Pointer, _int)
_SIGNATURES: tuple[tuple[Any, tuple[Any, ...], str], ...] = (  # result, arguments, functions
    (None, (), "backend_init"),
    (None, (Pointer, Pointer), "log_set"),
    (Params, (), "model_default_params context_default_params"),
    (Pointer, (_text, Params), "model_load_from_file"),
    (Pointer, (Pointer, Params), "init_from_model"),
    (None, (Pointer,), "model_free free"),
    (Pointer, (Pointer,), "model_get_vocab get_logits get_embeddings get_memory"),
    (_int, (Pointer,), "model_n_ctx_train model_n_embd model_n_layer"),
    (_bool, (Pointer,), "model_has_encoder model_has_decoder model_is_recurrent"),
    (_bool, (Pointer,), "model_is_hybrid model_is_diffusion"),
    (None, (Pointer, _int, _int), "set_n_threads"),
    (None, (Pointer, _bool), "set_embeddings memory_clear"),
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

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        self._functions: dict[str, Any] = {}
        for result, arguments, names in _SIGNATURES:
            for name in names.split():
                function = loaded[f"llama_{name}"]  # a new object, so that it may be set up
                function.restype, function.argtypes = result, arguments
                self._functions[f"llama_{name}"] = function
        for kind, fields in _FIELDS.items():
            params = self.params(kind)
            for name, (offset, form, default) in fields.items():
                if _KINDS[form].from_buffer(params, offset).value != default:
                    raise OSError(f"{name} of its {kind} parameters is not where it should be")
        self._messages: list[tuple[int, str]] = []  # level and text
        self._callback = _LogCallback(self._log)  # kept: the library calls it
        self.call("llama_log_set", ctypes.cast(self._callback, Pointer), None)
        self.call("llama_backend_init")

    def call(self, name: str, *arguments: Any) -> Any:
        return self._functions[name](*arguments)

    def params(self, kind: str, **values: int) -> Params:
        """A parameter struct with the library's defaults, but for these values."""
        params: Params = self.call(f"llama_{kind}_default_params")
        for name, value in values.items():
            offset, form, _ = _FIELDS[kind][name]
            _KINDS[form].from_buffer(params, offset).value = value
        return params

    def last_messages(self) -> str:
        """The errors of llama.cpp since the last call, or else its warnings, in one line."""
        worst = max((level for level, _ in self._messages), default=0)
        text = "".join(message for level, message in self._messages if level == worst)
        self._messages.clear()
        return text.replace("\n", "; ").strip("; ")[-_SHOWN:]

    # llama.cpp may log while the interpreter exits, when the names of this module are gone.
    def _log(self, level: int, text: bytes, _: Any, least: int = _WARNING) -> None:
        if level >= least:
            self._messages = [*self._messages[-20:], (level, text.decode("utf-8", "replace"))]


@cache
def open_library() -> Library:
    """The library of the installed package, checked once a process."""
    package = util.find_spec(_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise MissingExtraError(
            f"engine='llama.cpp' needs {_PACKAGE}: pip install 'trueline[llama]'"
        )
    version, folder = metadata.version(_PACKAGE), Path(package.submodule_search_locations[0])
    files = [path for path in sorted(folder.glob("*xllamacpp*.*")) if path.suffix in _LIBRARIES]
    try:
        if version != _VERSION:
            raise OSError("its parameter structs are not known to this release of trueline")
        if not files:
            raise OSError(f"{folder} holds no shared library")
        return Library(files[0])
    except (OSError, AttributeError) as error:  # also if it does not load or lacks a function
        raise ModelError(
            f"the llama.cpp inside {_PACKAGE} {version} cannot be used "
            f"({str(error)[:_SHOWN]}); install {_PACKAGE}=={_VERSION}"
        ) from error
