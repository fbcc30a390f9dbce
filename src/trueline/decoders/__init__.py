"""Decoding methods by name: a new one is a class and a line here."""

from collections.abc import Mapping
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
    check_settings(name, settings)
    first, *_ = fields(DECODERS[name])  # type: ignore[arg-type]
    try:
        given = space if first.name == "space" else space.prompt
        return DECODERS[name](given, **settings)  # type: ignore[call-arg]
    except TypeError as error:  # a text where a number belongs
        told = ", ".join(f"{setting}={value!r}" for setting, value in settings.items())
        raise SettingError(f"{name} does not take {told} ({error})") from error


def check_settings(name: str, settings: Mapping[str, object]) -> None:
    """Refuse a method that is none, or a setting it does not have."""
    if name not in DECODERS:
        raise SettingError(f"there is no method {name!r}; there are {', '.join(DECODERS)}")
    known = [field.name for field in fields(DECODERS[name])][1:]  # type: ignore[arg-type]
    for setting in settings:
        if setting not in known:
            raise SettingError(f"{name} has no setting {setting!r}; it has {', '.join(known)}")
