"""An encoder of torch in, the same one on ONNX Runtime out: exported once, then kept."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from trueline.engines.fetch import home
from trueline.engines.weights import IMPORTING
from trueline.files import replacing


class Encoder(Protocol):
    """What gives a state for every token; it is also a torch module, so it can be exported."""

    width: int  # of a state
    limit: int | None  # tokens it can read at most
    pad_id: int

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        ...

    @property
    def word_vectors(self) -> torch.Tensor:
        """The vectors that token ids begin with: (vocabulary, width)."""
        ...

    def fingerprint(self) -> str:
        """A hash of its weights and settings."""
        ...

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids (rows, tokens), and a mask with 1 where one counts -> (rows, tokens, width)."""
        ...


def open_encoder(folder: Path, device: torch.device) -> Encoder:
    """Open the encoder of a folder in float32."""
    from trueline.engines.transformers.open import open_encoder

    return open_encoder(folder, device)


def open_bert_scorer(folder: str, layers: int) -> Any:
    """A scorer of bert-score on the encoder in a folder."""
    from trueline.engines.transformers import open as bert_scorer

    return bert_scorer.open_bert_scorer(folder, layers)


TokenRows = list[list[int]]  # the token ids of several texts
Inputs = Mapping[str, np.ndarray]  # a padded batch of texts, for a runtime


EmbedBatch = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # ids and mask -> vectors
_log = logging.getLogger(__name__)
_TOLERANCE = 1e-5  # how far a value of a vector may be off, in multiples of the largest one
_SAMPLE = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]


class _NoRuntimeError(Exception):
    """Why an embedder has to stay on torch."""


# What an exporter meets: an operation it does not know (RuntimeError, ValueError, TypeError), a
# full disk (OSError).
_EXPORT_ERRORS: tuple[type[Exception], ...] = (
    _NoRuntimeError,
    RuntimeError,
    ValueError,
    TypeError,
    OSError,
    ImportError,
)
_DAMAGE: tuple[type[Exception], ...] = (_NoRuntimeError,)


class Runtime:
    """The unit vectors of texts, by one call for a padded batch."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the core the language model leaves it
        # Its extended fusions are 5 % slower on 16 windows: the norms of layers.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def run(self, inputs: Inputs) -> torch.Tensor:
        """The unit vectors of a padded batch: (texts, width)."""
        found: Any = self._session.run(None, dict(inputs))[0]
        return torch.from_numpy(found)


def pad_rows(rows: TokenRows, pad: int) -> Inputs:
    """Token ids (texts, tokens), padded on the right, and 1 where a token counts."""
    ids = np.full((len(rows), max(map(len, rows))), pad, np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return {"ids": ids, "mask": mask}


def runtime_path(name: str) -> Path:
    """Where the runtime of an embedder is kept, by the embedder's hash."""
    return home() / "runtimes" / f"{name[:32]}.onnx"


def open_runtime(encoder: Encoder, name: str, embed: EmbedBatch) -> Runtime | None:
    """The runtime of an embedder, kept in the cache under a name; None where there is none.

    There is none without the packages, on another device than a CPU, or if the exported model
    does not give the vectors of the one it was made from. A line in the log says why.
    """
    if encoder.device.type != "cpu":
        return None
    path = runtime_path(name)
    if packages := _missing("onnxruntime", *(() if path.exists() else ("onnx", "onnxscript"))):
        _say_once(
            f"the embedder runs on torch, without {', '.join(packages)}; for a faster one: "
            "pip install 'trueline[fast]'"
        )
        return None
    try:
        return _open(encoder, path, embed)
    except _EXPORT_ERRORS + _load_errors() as error:
        reason = (str(error).splitlines() or [""])[0]
        _say_once(
            "the embedder runs on torch, since ONNX Runtime cannot take it over "
            f"({type(error).__name__.lstrip('_')}: {reason})"
        )
        return None


def _open(encoder: Encoder, path: Path, embed: EmbedBatch) -> Runtime:
    """The kept runtime; a new one where there is none or a damaged one."""
    sample = pad_rows(_SAMPLE, encoder.pad_id)
    ids, mask = (torch.from_numpy(array) for array in sample.values())
    with torch.inference_mode():
        expected = embed(ids, mask)
    if path.exists():
        try:
            return _checked(Runtime(path), sample, expected)
        except _DAMAGE + _load_errors() as error:
            _log.info("%s is damaged (%s) and made anew", path, error)
    _export(encoder, path, embed, (ids, mask))
    return _checked(Runtime(path), sample, expected)


def _checked(runtime: Runtime, sample: Inputs, expected: torch.Tensor) -> Runtime:
    found = runtime.run(sample)
    is_close = found.shape == expected.shape and bool(
        (found - expected).abs().max() <= _TOLERANCE * expected.abs().max()
    )
    if not is_close:
        raise _NoRuntimeError("it gives other vectors than torch")
    return runtime


def _export(
    encoder: Encoder, path: Path, embed: EmbedBatch, sample: tuple[torch.Tensor, ...]
) -> None:
    """Write the graph and its weights as one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = {0: torch.export.Dim("texts", max=8192), 1: torch.export.Dim("tokens", max=8192)}
    with IMPORTING, _quiet_exporter():
        program = torch.onnx.export(
            _Exported(encoder, embed),
            sample,
            input_names=("ids", "mask"),
            dynamic_shapes=(sizes, sizes),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        with replacing(path) as scratch:
            program.save(str(scratch), external_data=False)


class _Exported(torch.nn.Module):
    """What turns a padded batch into unit vectors, as a module that holds its weights."""

    def __init__(self, encoder: Encoder, embed: EmbedBatch) -> None:
        super().__init__()
        self.encoder, self._embed = encoder, embed

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self._embed(ids, mask)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Show errors only while an encoder is exported: of the exporter, and of what it runs."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _missing(*packages: str) -> list[str]:
    """Which of these packages are not installed."""
    return [name for name in packages if find_spec(name) is None]


def _load_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises over a file it cannot use; they have no class in common."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = "Fail InvalidArgument InvalidGraph InvalidProtobuf NoSuchFile NotImplemented"
    return tuple(getattr(state, name) for name in (*names.split(), "RuntimeException"))


@cache
def _say_once(text: str) -> None:
    _log.warning(text)
