"""Language models that answer more truthfully while they decode (arXiv 2508.02184)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trueline.comparison import compare as compare
    from trueline.decoders.adacad import AdaCAD as AdaCAD
    from trueline.decoders.cad import CAD as CAD
    from trueline.decoders.corrective import Corrective as Corrective
    from trueline.decoders.dola import DoLa as DoLa
    from trueline.decoders.greedy import Greedy as Greedy
    from trueline.decoders.instructive import Instructive as Instructive
    from trueline.decoders.kate import KATE as KATE
    from trueline.decoders.knn_lm import KNNLM as KNNLM
    from trueline.decoders.lookup import Lookup as Lookup
    from trueline.decoders.rad import RAD as RAD
    from trueline.decoders.sled import SLED as SLED
    from trueline.engines import load as load
    from trueline.engines.transformers.language import LanguageModel as LanguageModel
    from trueline.errors import TruelineError as TruelineError
    from trueline.generation import generate as generate
    from trueline.generation import stream as stream
    from trueline.prompts import Prompt as Prompt
    from trueline.records import Answer as Answer
    from trueline.records import Example as Example
    from trueline.records import GenerateOptions as GenerateOptions
    from trueline.records import Piece as Piece
    from trueline.scoring import score as score
    from trueline.space.build import build as build
    from trueline.space.space import GroundingSpace as GroundingSpace
    from trueline.space.space import merge as merge
    from trueline.space.space import read_space as open  # noqa: F401

_LAZY = {  # public name -> where it lives, opened when first asked for: --help stays instant
    "AdaCAD": "trueline.decoders.adacad",
    "CAD": "trueline.decoders.cad",
    "Corrective": "trueline.decoders.corrective",
    "DoLa": "trueline.decoders.dola",
    "Instructive": "trueline.decoders.instructive",
    "KATE": "trueline.decoders.kate",
    "KNNLM": "trueline.decoders.knn_lm",
    "Lookup": "trueline.decoders.lookup",
    "Answer": "trueline.records",
    "Example": "trueline.records",
    "Greedy": "trueline.decoders.greedy",
    "GenerateOptions": "trueline.records",
    "GroundingSpace": "trueline.space.space",
    "LanguageModel": "trueline.engines.transformers.language",
    "Piece": "trueline.records",
    "Prompt": "trueline.prompts",
    "RAD": "trueline.decoders.rad",
    "SLED": "trueline.decoders.sled",
    "TruelineError": "trueline.errors",
    "build": "trueline.space.build",
    "compare": "trueline.comparison",
    "generate": "trueline.generation",
    "load": "trueline.engines",
    "merge": "trueline.space.space",
    "open": "trueline.space.space:read_space",
    "score": "trueline.scoring",
    "stream": "trueline.generation",
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
