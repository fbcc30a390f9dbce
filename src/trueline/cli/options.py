"""Options that several commands share."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from trueline.decoders.base import Decoder
    from trueline.models.language import LanguageModel
    from trueline.space.space import GroundingSpace

DEFAULT_MODEL = "smollm2-135m"


def _all(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_WEIGHTS = (
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default="auto",
        show_default=True,
        help="auto: float32 on a CPU.",
    ),
    click.option("--device", help="cpu, cuda, mps; the best there is if left out."),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model."),
)
model_options = _all(
    click.option(
        "--model",
        default=DEFAULT_MODEL,
        show_default=True,
        help="Alias, hub id, folder or .gguf file.",
    ),
    *_WEIGHTS,
)
asking_options = _all(
    click.option(
        "--space",
        type=click.Path(path_type=Path),
        help="The grounding space; the shipped facts if left out.",
    ),
    click.option("--model", help="The model, if not the one the space names."),
    *_WEIGHTS,
    click.option("--alpha", type=float, help="RAD: weight of the retrieved logits.  [0.5]"),
    click.option("--tau", type=float, help="RAD: neighbors count above this cosine.  [0.7]"),
    click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any setting of a method, such as k=5, or dola.candidates=low for one of several.",
    ),
    click.option("--max-new-tokens", type=int, default=64, show_default=True),
)


def open_pair(
    space: Path | None,
    model: str | None,
    dtype: str,
    device: str | None,
    trust_remote_code: bool,
) -> tuple[LanguageModel, GroundingSpace]:
    """The space a command names and its model; the shipped facts by default."""
    from trueline.cli.screen import progress_bar
    from trueline.errors import ModelError, SpaceMismatchError
    from trueline.models.language import load
    from trueline.models.sources import home
    from trueline.space.build import build
    from trueline.space.storage import read_space

    options: dict[str, Any] = {
        "dtype": dtype,
        "device": device,
        "trust_remote_code": trust_remote_code,
    }
    if space is not None:
        grounding = read_space(space)
        try:
            return load(model or grounding.recipe.model, **options), grounding
        except ModelError as error:
            if model is not None:
                raise
            raise SpaceMismatchError(
                f"{space} was built with the model {grounding.recipe.model!r}, which cannot be "
                f"opened by that name; say where it is with --model ({error})"
            ) from error
    lm = load(model or DEFAULT_MODEL, **options)
    folder = home() / "spaces" / f"facts-{lm.fingerprint[:12]}.space"
    with progress_bar("building the space of the shipped facts", "entries") as progress:
        return lm, build(lm, "facts", out=folder, progress=progress)


def settings_of(
    sets: Sequence[str], *, alpha: float | None = None, tau: float | None = None
) -> dict[str, object]:
    """The settings that --set, --alpha and --tau give, by name."""
    from trueline.errors import SettingError

    settings: dict[str, object] = {}
    for text in sets:
        name, sign, value = text.partition("=")
        if not sign:
            raise SettingError(f"a setting is NAME=VALUE, such as alpha=0.3; got {text!r}")
        try:
            settings[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):  # plain words stand for themselves
            settings[name.strip()] = value.strip()
    given = {"rad.alpha": alpha, "rad.tau": tau}
    return {**settings, **{name: value for name, value in given.items() if value is not None}}


def method_named(
    name: str, space: GroundingSpace, settings: Mapping[str, object], *, alone: bool = True
) -> Decoder:
    """A method with the settings meant for it: its own, and those that name no method.

    Among several methods, a setting without a method's name goes to those that have it.
    """
    from dataclasses import fields

    from trueline.decoders import DECODERS, decoder_named

    mine = {}
    known = {field.name for field in fields(DECODERS[name])} if name in DECODERS else set()  # type: ignore[arg-type]
    for key, value in settings.items():
        method, dot, setting = key.rpartition(".")
        if method == name or (not dot and (alone or setting in known)):
            mine[setting] = value
    return decoder_named(name, space, **mine)


def methods_help() -> str:
    """The names of the methods."""
    from trueline.decoders import DECODERS

    return ", ".join(DECODERS)
