"""Run a small encoder on ONNX Runtime: exported from torch once, then kept in the cache."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from trueline.engines.fetch import home
from trueline.engines.models import IMPORTING
from trueline.files import replacing

TokenRows = list[list[int]]  # the token ids of several texts
_log = logging.getLogger(__name__)
_TOLERANCE = 1e-5  # of a value of a unit vector
_SAMPLE = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]  # what a runtime is checked on


class Runtime:
    """An exported encoder: token ids and mask (texts, tokens) -> vectors (texts, d)."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the other cores are for the language model
        # Its extended optimizations, which fuse layer norms, are 5 % slower on 16 windows.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def run(self, inputs: Mapping[str, np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(self._session.run(None, dict(inputs))[0])


def pad_rows(rows: TokenRows, pad: int) -> dict[str, np.ndarray]:
    """Ids (texts, tokens), padded on the right, and a mask with 1 where a token counts."""
    ids = np.full((len(rows), max(map(len, rows))), pad, np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return {"ids": ids, "mask": mask}


def runtime_path(name: str) -> Path:
    """The file of an exported encoder in the cache."""
    return home() / "runtimes" / f"{name[:32]}.onnx"


def open_runtime(name: str, make: Callable[[], torch.nn.Module], *, pad: int) -> Runtime | None:
    """The exported encoder of that name; `make` gives the torch module if it is not there yet.

    None if packages are missing, or if the export fails or gives other vectors than torch; a
    line in the log gives the reason.
    """
    path = runtime_path(name)
    packages = ["onnxruntime", *(() if path.exists() else ("onnx", "onnxscript"))]
    if missing := [package for package in packages if find_spec(package) is None]:
        _warn_once(
            f"the embedder runs on torch, without {', '.join(missing)}; for a faster one: "
            "pip install 'trueline[fast]'"
        )
        return None
    for is_cached in [True, False] if path.exists() else [False]:
        try:
            if not is_cached:
                _export(make(), path, pad_rows(_SAMPLE, pad))
            return Runtime(path)
        except Exception as error:  # those of ONNX Runtime have no class in common
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            if is_cached:
                _log.info("%s is damaged (%s) and made anew", path, reason)
            else:
                _warn_once(f"the embedder runs on torch, not on ONNX Runtime ({reason})")
    return None


def _export(module: torch.nn.Module, path: Path, sample: Mapping[str, np.ndarray]) -> None:
    """Write the graph with its weights as one file, if it gives the vectors of torch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = {0: torch.export.Dim("texts", max=8192), 1: torch.export.Dim("tokens", max=8192)}
    inputs = tuple(map(torch.from_numpy, sample.values()))
    with torch.inference_mode():
        expected = module(*inputs)
    with IMPORTING, _errors_only("torch.onnx"), _errors_only("transformers"):
        program = torch.onnx.export(
            module,
            inputs,
            input_names=tuple(sample),
            dynamic_shapes=(sizes, sizes),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        with replacing(path) as scratch:
            program.save(str(scratch), external_data=False)
            vectors = Runtime(scratch).run(sample)
            torch.testing.assert_close(vectors, expected, rtol=0, atol=_TOLERANCE)


@contextmanager
def _errors_only(name: str) -> Iterator[None]:
    """Show no warnings, and only errors of a logger."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


@cache
def _warn_once(text: str) -> None:
    _log.warning(text)
