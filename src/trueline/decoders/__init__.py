"""Decoding methods by name: a new one is a class and a line here."""

from dataclasses import fields

from trueline.decoders.base import Decoder as Decoder
from trueline.decoders.cad import CAD as CAD
from trueline.decoders.dola import DoLa as DoLa
from trueline.decoders.greedy import Greedy as Greedy
from trueline.decoders.instructive import Instructive as Instructive
from trueline.decoders.kate import KATE as KATE
from trueline.decoders.knn_lm import KNNLM as KNNLM
from trueline.decoders.rad import RAD as RAD
from trueline.errors import SettingError
from trueline.space.space import GroundingSpace

DECODERS: dict[str, type[Decoder]] = {
    method.name: method for method in (Greedy, RAD, KNNLM, CAD, Instructive, DoLa, KATE)
}


def decoder_named(name: str, space: GroundingSpace, **settings: object) -> Decoder:
    """A method by its name, on a space or on the prompt of the space."""
    if name not in DECODERS:
        raise SettingError(f"there is no method {name!r}; there are {', '.join(DECODERS)}")
    known = [field.name for field in fields(DECODERS[name])]  # type: ignore[arg-type]
    if unknown := sorted(set(settings) - set(known)):
        raise SettingError(
            f"{name} has no setting {unknown[0]!r}; it has {', '.join(known[1:])}"
        )
    return DECODERS[name](space if "space" in known else space.prompt, **settings)  # type: ignore[call-arg]
