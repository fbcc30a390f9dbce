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

_LAZY = {  # public name -> where it lives, opened when first asked for: --help stays instant
    "AdaCAD": "trueline.methods.contrast",
    "CAD": "trueline.methods.contrast",
    "Corrective": "trueline.corrective.method",
    "DoLa": "trueline.methods.layers",
    "Instructive": "trueline.methods.contrast",
    "KATE": "trueline.methods.prompting",
    "KNNLM": "trueline.rad.method",
    "Lookup": "trueline.corrective.method",
    "Answer": "trueline.types",
    "Example": "trueline.types",
    "Greedy": "trueline.methods.prompting",
    "Sampling": "trueline.types",
    "GroundingSpace": "trueline.space",
    "LanguageModel": "trueline.engines.transformers.model",
    "Piece": "trueline.types",
    "Prompt": "trueline.prompts",
    "RAD": "trueline.rad.method",
    "SLED": "trueline.methods.layers",
    "TruelineError": "trueline.errors",
    "build": "trueline.space",
    "compare": "trueline.decode.generate",
    "generate": "trueline.decode.generate",
    "load": "trueline.engines",
    "merge": "trueline.space",
    "open": "trueline.space:read_space",
    "score": "trueline.decode.generate",
    "stream": "trueline.decode.generate",
}
__all__ = sorted(_LAZY)
__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"trueline has no {name!r}; it has {', '.join(__all__)}")
    module, _, attribute = _LAZY[name].partition(":")
    value = globals()[name] = getattr(import_module(module), attribute or name)
    return value


def __dir__() -> list[str]:
    return __all__
