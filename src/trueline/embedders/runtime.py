"""An encoder of torch in, the same one on ONNX Runtime out: exported once, then kept."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trueline.embedders.base import Pack, TokenRows
from trueline.engines.encoders import Encoder
from trueline.engines.model_cache import home
from trueline.files import replacing

EmbedRows = Callable[[TokenRows], torch.Tensor]  # token ids -> unit vectors (texts, width)

_log = logging.getLogger(__name__)
_TOLERANCE = 1e-5  # how far a value of a vector may be off, in multiples of the largest one
_PACK_TOKENS = 256  # read as one row: more, and attention between texts costs more than pads
_SAMPLE = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]
_INPUTS = ("ids", "positions", "owners", "counted")


class _NoRuntimeError(Exception):
    """Why an embedder has to stay on torch."""


# What an exporter meets: an encoder without positions (TypeError) or with too few (IndexError),
# an operation it does not know (RuntimeError, ValueError), a full disk (OSError).
_EXPORT_ERRORS: tuple[type[Exception], ...] = (
    _NoRuntimeError,
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    OSError,
    ImportError,
)


class Runtime:
    """The unit vectors of texts, without pads and with one call a pack."""

    def __init__(self, path: Path, packer: _Packer) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the core the language model leaves it
        # Its extended fusions are 5 % slower on 16 windows: the norms of layers.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._packer = packer

    def pack(self, rows: TokenRows) -> tuple[Pack, ...]:
        """Make texts the inputs of as few calls as fit; this part is Python."""
        return tuple(
            dict(zip(_INPUTS, self._packer(batch), strict=True)) for batch in _batches(rows)
        )

    def run(self, packs: tuple[Pack, ...]) -> torch.Tensor:
        """The unit vectors of packed texts (texts, width); this part is not."""
        found: list[Any] = [self._session.run(None, pack)[0] for pack in packs]
        return torch.from_numpy(found[0] if len(found) == 1 else np.concatenate(found))


@dataclass(frozen=True)
class _Packer:
    """Puts texts one behind the other."""

    first: int  # the position of a text's first token
    pooling: str  # which of its tokens make a text's vector: `first`, or all of them (`mean`)

    def __call__(self, rows: TokenRows) -> tuple[np.ndarray, ...]:
        """All ids in one row, their positions, the text of each, and whether it counts."""
        ids = np.array([[token for row in rows for token in row]], np.int64)
        indices = np.array([[index for row in rows for index in range(len(row))]], np.int64)
        owners = np.array([number for number, row in enumerate(rows) for _ in row], np.int64)
        counted = owners == np.arange(len(rows))[:, None]  # (texts, tokens)
        if self.pooling == "first":
            counted &= indices == 0
        return ids, indices + self.first, owners, counted.astype(np.float32)


def open_runtime(encoder: Encoder, name: str, pooling: str, embed: EmbedRows) -> Runtime | None:
    """The runtime of an embedder, kept in the cache under a name; None where there is none.

    There is none without the packages, on another device than a CPU, or if the exported model
    does not give the vectors of the one it was made from. A line in the log says why.
    """
    if encoder.device.type != "cpu":
        return None
    path = home() / "runtimes" / f"{name[:32]}-vectors.onnx"
    if packages := _missing("onnxruntime", *(() if path.exists() else ("onnx", "onnxscript"))):
        _say_once(
            f"the embedder runs on torch, without {', '.join(packages)}; for a faster one: "
            "pip install 'trueline[fast]'"
        )
        return None
    trouble = _EXPORT_ERRORS + _load_errors()
    try:
        return _open(encoder, path, pooling, embed(_SAMPLE))
    except trouble as error:
        reason = (str(error).splitlines() or [""])[0]
        _say_once(
            "the embedder runs on torch, since ONNX Runtime cannot take it over "
            f"({type(error).__name__.lstrip('_')}: {reason})"
        )
        return None


def _open(encoder: Encoder, path: Path, pooling: str, expected: torch.Tensor) -> Runtime:
    """The kept runtime; a new one where there is none or a damaged one."""
    packer = _find_packer(encoder, pooling, expected)
    if path.exists():
        damage: tuple[type[Exception], ...] = (_NoRuntimeError, *_load_errors())
        try:
            return _checked(Runtime(path, packer), expected)
        except damage as error:
            _log.info("%s is damaged (%s) and made anew", path, error)
    _export(encoder, path, packer)
    return _checked(Runtime(path, packer), expected)


def _checked(runtime: Runtime, expected: torch.Tensor) -> Runtime:
    if not _is_close(runtime.run(runtime.pack(_SAMPLE)), expected):
        raise _NoRuntimeError("it gives other vectors than torch")
    return runtime


@torch.no_grad()
def _find_packer(encoder: Encoder, pooling: str, expected: torch.Tensor) -> _Packer:
    """How an encoder is given several texts in one row."""
    for first in encoder.first_positions:
        packer = _Packer(first, pooling)
        if _is_close(_PackedEncoder(encoder)(*_sample_inputs(packer)), expected):
            return packer
    raise _NoRuntimeError("the encoder does not read texts one behind the other")


def _sample_inputs(packer: _Packer) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(array) for array in packer(_SAMPLE))


def _export(encoder: Encoder, path: Path, packer: _Packer) -> None:
    """Write the graph and its weights as one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tokens, texts = torch.export.Dim("tokens", max=8192), torch.export.Dim("texts", max=8192)
    with _quiet_exporter():
        program = torch.onnx.export(
            _PackedEncoder(encoder),
            _sample_inputs(packer),
            input_names=_INPUTS,
            dynamic_shapes=({1: tokens}, {1: tokens}, {0: tokens}, {0: texts, 1: tokens}),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        with replacing(path) as scratch:
            program.save(str(scratch), external_data=False)


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


class _PackedEncoder(torch.nn.Module):
    """An encoder that reads texts one behind the other, each seeing itself alone."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        owners: torch.Tensor,
        counted: torch.Tensor,
    ) -> torch.Tensor:
        """(1, tokens) twice, (tokens,) and (texts, tokens) -> (texts, width)."""
        far = torch.finfo(torch.float32).min
        mask = torch.where(owners[:, None] == owners, 0.0, far)[None, None]
        states = self.encoder(ids, mask, positions)  # (1, tokens, width)
        return torch.nn.functional.normalize(counted @ states[0], dim=1)


def _batches(rows: TokenRows) -> Iterator[TokenRows]:
    """As many rows at a time as make a pack, in their order."""
    batch: TokenRows = []
    for row in rows:
        if batch and sum(map(len, batch)) + len(row) > _PACK_TOKENS:
            yield batch
            batch = []
        batch.append(row)
    yield batch


def _is_close(vectors: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((vectors - expected).abs().max() <= _TOLERANCE * expected.abs().max())


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
