"""Decoding methods by name: a new one is a class and a line here."""

from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

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
    given = space if first.name == "space" else space.prompt
    return DECODERS[name](given, **settings)  # type: ignore[call-arg]


def check_settings(name: str, settings: Mapping[str, object]) -> None:
    """Refuse a method that is none, a setting it does not have, or a value of another type."""
    if name not in DECODERS:
        raise SettingError(f"there is no method {name!r}; there are {', '.join(DECODERS)}")
    known = [field.name for field in fields(DECODERS[name])][1:]  # type: ignore[arg-type]
    hints = get_type_hints(DECODERS[name])
    for setting, value in settings.items():
        if setting not in known:
            raise SettingError(f"{name} has no setting {setting!r}; it has {', '.join(known)}")
        if not _fits(value, hints[setting]):
            raise SettingError(f"{name} does not take {setting} = {value!r}")


def _fits(value: object, hint: object) -> bool:
    """Whether a value is of a type; a whole number is also a float, and true is no number."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return isinstance(value, str)  # which texts it takes, the method says itself
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(
            _fits(item, get_args(hint)[0]) for item in value
        )
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint
