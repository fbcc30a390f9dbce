"""Language models that answer more truthfully while they decode (arXiv 2508.02184)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trueline.corrective.method import Corrective as Corrective
    from trueline.corrective.method import Lookup as Lookup
    from trueline.decode.generate import compare as compare
    from trueline.decode.generate import generate as generate
    from trueline.decode.generate import score as score
    from trueline.decode.generate import stream as stream
    from trueline.engines import load as load
    from trueline.engines.transformers.model import LanguageModel as LanguageModel
    from trueline.errors import TruelineError as TruelineError
    from trueline.methods.contrast import CAD as CAD
    from trueline.methods.contrast import AdaCAD as AdaCAD
    from trueline.methods.contrast import Instructive as Instructive
    from trueline.methods.layers import SLED as SLED
    from trueline.methods.layers import DoLa as DoLa
    from trueline.methods.prompting import KATE as KATE
    from trueline.methods.prompting import Greedy as Greedy
    from trueline.prompts import Prompt as Prompt
    from trueline.rad.method import KNNLM as KNNLM
    from trueline.rad.method import RAD as RAD
    from trueline.space import GroundingSpace as GroundingSpace
    from trueline.space import build as build
    from trueline.space import merge as merge
    from trueline.space import read_space as open  # noqa: F401
    from trueline.types import Answer as Answer
    from trueline.types import Example as Example
    from trueline.types import Piece as Piece
    from trueline.types import Sampling as Sampling

_MODULES = {  # where the public names live; opened when first used: --help stays instant
    "corrective.method": "Corrective Lookup",
    "decode.generate": "compare generate score stream",
    "engines": "load",
    "engines.transformers.model": "LanguageModel",
    "errors": "TruelineError",
    "methods.contrast": "AdaCAD CAD Instructive",
    "methods.layers": "DoLa SLED",
    "methods.prompting": "Greedy KATE",
    "prompts": "Prompt",
    "rad.method": "KNNLM RAD",
    "space": "GroundingSpace build merge open",
    "types": "Answer Example Piece Sampling",
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_LAZY)
__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"trueline has no {name!r}; it has {', '.join(__all__)}")
    module = import_module(f"trueline.{_LAZY[name]}")
    value = globals()[name] = getattr(module, "read_space" if name == "open" else name)
    return value


def __dir__() -> list[str]:
    return __all__
