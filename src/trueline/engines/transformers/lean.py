"""Transformers and torch without what only training, sharding and compiling need: a fast start.

To open a model transformers imports SciPy (losses), torch's distributed tensors and torch's
compiler, which together take longer than torch itself. In a process of our own nothing of them
is ever called. They stay away only there: somebody else's process may train.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module, metadata
from operator import eq
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from trueline.shortcuts import is_on

_UNUSED = ("is_scipy_available", "is_torch_distributed_available")  # asked before an import
_COMPILER = ("torch._dynamo", "torch._dynamo._trace_wrapped_higher_order_op")
_SHAPES = "torch.fx.experimental.symbolic_shapes"
_ASKED = ("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious")
_OF_KNOWN_SHAPES: dict[
    str, Callable[..., bool]
] = {  # what its functions come to where every size is a number
    **dict.fromkeys(_ASKED, bool),
    "is_nested_int": lambda _: False,
    "sym_eq": eq,
}
_lock = RLock()  # every thread sees the stand-ins, and transformers' imports go in circles
_is_own = False  # whether this process is ours alone


def claim_process() -> None:
    """Say that nothing but trueline runs in this process."""
    global _is_own
    _is_own = True


@contextmanager
def lean() -> Iterator[None]:
    """Import transformers, or open a model with it, without its unused parts."""
    with _lock:
        is_here = _COMPILER[0] in sys.modules  # the compiler itself, or what stands in for it
        if is_here or not _is_own or not is_on("imports"):
            yield
            return
        _import_once()
        with _stand_in_for_compiler(), _no_values_without_memory():
            yield


@contextmanager
def whole() -> Iterator[None]:
    """Do what needs torch's compiler, such as exporting an encoder."""
    with _lock:
        yield


@cache
def _import_once() -> None:
    """Import transformers, and let it think that some packages are not there."""
    with _quick_distributions():
        from transformers import utils
        from transformers.utils import import_utils

    for module in (utils, import_utils):
        for name in _UNUSED:
            if hasattr(module, name):
                setattr(module, name, lambda: False)
    # It lists its models twice, once by their folder's name and once by a file's in it.
    scan = getattr(import_utils, "create_import_structure_from_path", None)
    if scan is not None:
        import_utils.create_import_structure_from_path = lambda path: scan(_folder(path))


@contextmanager
def _quick_distributions() -> Iterator[None]:
    """Let transformers look up who distributes a package without reading what all install."""
    find_all = metadata.packages_distributions
    metadata.packages_distributions = lambda: _Distributions(find_all)
    try:
        yield
    finally:
        metadata.packages_distributions = find_all


class _Distributions(dict[str, list[str]]):
    """The distributions of each package; those that share its name are found at once."""

    def __init__(self, find_all: Callable[[], Mapping[str, list[str]]]) -> None:
        super().__init__()
        self._find_all = find_all

    def get(self, package: str, default: Any = None) -> Any:
        try:
            metadata.distribution(package)
        except metadata.PackageNotFoundError:
            if not self:
                self.update(self._find_all())
            return super().get(package, default)
        return [package]


def _folder(path: str | Path) -> Path:
    return Path(path).parent if Path(path).is_file() else Path(path)


@contextmanager
def _stand_in_for_compiler() -> Iterator[None]:
    """Let functions be marked for torch's compiler without importing it."""
    import torch

    is_busy = [True]
    stand_ins: dict[str, ModuleType] = {
        name: _StandIn(name, lambda: bool(is_busy)) for name in _COMPILER
    }
    if _SHAPES not in sys.modules:
        stand_ins[_SHAPES] = _KnownShapes(_SHAPES)
    sys.modules.update(stand_ins)
    torch._dynamo = stand_ins[_COMPILER[0]]
    try:
        yield
    finally:
        is_busy.clear()
        torch.__dict__.pop("_dynamo", None)  # torch imports the real one when it is asked for
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


@contextmanager
def _no_values_without_memory() -> Iterator[None]:
    """Make models without memory as torch would, less the two steps that would import SymPy.

    Weights that are about to be read are not drawn, and positions are counted on the CPU.
    """
    import torch
    from torch.nn import init

    draw, count = init.normal_, torch.arange

    def drawn(tensor: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        return tensor if tensor.is_meta else draw(tensor, *given, **options)

    def counted(*given: Any, **options: Any) -> torch.Tensor:
        return count(*given, **{"device": "cpu", **options})

    init.normal_, torch.arange = drawn, counted
    try:
        yield
    finally:
        init.normal_, torch.arange = draw, count


class _StandIn(ModuleType):
    """A module whose functions leave what they mark as it is, and are the real ones later."""

    __path__: list[str] = []  # it has modules in it  # noqa: RUF012

    def __init__(self, name: str, is_busy: Callable[[], bool]) -> None:
        super().__init__(name)
        self._is_busy = is_busy

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*given: Any, **options: Any) -> Any:
            if not self._is_busy():
                return getattr(import_module(self.__name__), name)(*given, **options)
            marked = next(iter(given), None)
            return (lambda function: function) if marked is None else marked

        return call


class _KnownShapes(ModuleType):
    """What torch asks of shapes that may be symbols, which import SymPy; ours are numbers."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _OF_KNOWN_SHAPES:
            return _OF_KNOWN_SHAPES[name]
        if sys.modules.get(self.__name__) is self:  # asked for something else: the real one
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)
