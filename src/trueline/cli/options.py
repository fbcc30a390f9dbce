"""Options that several commands share, and what they open."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.errors import ModelError, SettingError, SpaceMismatchError

if TYPE_CHECKING:
    from trueline.decoders.base import Decoder
    from trueline.engines.transformers.language import LanguageModel
    from trueline.space.space import GroundingSpace

DEFAULT_MODEL = "smollm2-135m"


class Spelled(click.Option):
    """An option whose variable is spelled like its flag, whatever its parameter is called."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """TRUELINE_<COMMAND>_<FLAG>, if it is set."""
        flag = self.opts[0].lstrip("-").replace("-", "_").upper()
        return os.environ.get(f"{ctx.auto_envvar_prefix}_{flag}") or None


def _all(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


json_option = click.option(
    "--json", "as_json", cls=Spelled, is_flag=True, help="Print JSON instead of text."
)
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


@dataclass(frozen=True, slots=True)
class Asking:
    """What every command that answers is told: the space, the model, the settings."""

    space: Path | None
    model: str | None
    embedder: str | None
    dtype: str
    device: str | None
    trust_remote_code: bool
    alpha: float | None
    tau: float | None
    sets: tuple[str, ...]
    max_new_tokens: int

    def open(
        self, names: Sequence[str]
    ) -> tuple[LanguageModel, GroundingSpace, dict[str, Decoder]]:
        """The model, the space and the methods; mistakes show before a model is opened."""
        from trueline.engines.transformers.language import load
        from trueline.space.space import read_space

        settings = settings_of(self.sets, alpha=self.alpha, tau=self.tau)
        check_names(names, settings)
        options: dict[str, Any] = {
            "dtype": self.dtype,
            "device": self.device,
            "trust_remote_code": self.trust_remote_code,
        }
        if self.space is None:
            lm = load(self.model or DEFAULT_MODEL, **options)
            space = _shipped_space(lm)
            return lm, space, methods_named(names, space, settings)
        space = read_space(self.space, embedder=self.embedder)
        methods = methods_named(names, space, settings)
        try:
            return (
                load(self.model or space.recipe.model or DEFAULT_MODEL, **options),
                space,
                methods,
            )
        except ModelError as error:
            if self.model is not None:
                raise
            raise SpaceMismatchError(
                f"{self.space} was built with the model {space.recipe.model!r}, which cannot "
                f"be opened by that name; say where it is with --model ({error})"
            ) from error


_ASKING = _all(
    click.option(
        "--space",
        type=click.Path(path_type=Path),
        help="The grounding space; the shipped facts if left out.",
    ),
    click.option("--model", help="The model, if not the one the space names."),
    click.option("--embedder", help="The embedder, if not the one the space names."),
    *_WEIGHTS,
    click.option("--alpha", type=float, help="RAD: weight of the retrieved logits.  [0.5]"),
    click.option("--tau", type=float, help="RAD: neighbors count above this cosine.  [0.7]"),
    click.option(
        "--set",
        "sets",
        cls=Spelled,
        multiple=True,
        metavar="NAME=VALUE",
        help="Any setting of a method, such as k=5, or dola.candidates=low for one of several.",
    ),
    click.option("--max-new-tokens", type=int, default=64, show_default=True),
)


def asking_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of `Asking`, handed to the command as one `asking`."""
    names = [field.name for field in fields(Asking)]

    @functools.wraps(command)
    def gathered(**given: Any) -> None:
        command(asking=Asking(**{name: given.pop(name) for name in names}), **given)

    decorated: Callable[..., None] = _ASKING(gathered)
    return decorated


def settings_of(
    sets: Sequence[str], *, alpha: float | None = None, tau: float | None = None
) -> dict[str, object]:
    """The settings that --set, --alpha and --tau give, by name."""
    settings: dict[str, object] = {}
    for text in sets:
        name, sign, value = text.partition("=")
        if not sign:
            raise SettingError(f"a setting is NAME=VALUE, such as alpha=0.3; got {text!r}")
        word = {"true": "True", "false": "False", "none": "None"}.get(value.strip().lower())
        try:
            settings[name.strip()] = ast.literal_eval(word or value.strip())
        except (ValueError, SyntaxError):  # plain words stand for themselves
            settings[name.strip()] = value.strip()
    given = {"rad.alpha": alpha, "rad.tau": tau}
    return {**settings, **{name: value for name, value in given.items() if value is not None}}


def check_names(names: Sequence[str], settings: Mapping[str, object]) -> None:
    """Refuse methods that are none, and settings that none of the methods has."""
    from trueline.decoders import check_settings, method_names

    if not names:
        raise SettingError(f"name a method: {', '.join(method_names())}")
    for name in names:
        check_settings(name, {})
    for key, value in settings.items():
        method, dot, setting = key.rpartition(".")
        if dot:
            check_settings(method, {})
            if method not in names:
                raise SettingError(f"{key} is set, but {method} is not asked for")
        takers = [name for name in names if key in _meant_for(name, settings)]
        for name in takers or [method or names[0]]:
            check_settings(name, {setting: value})


def methods_named(
    names: Sequence[str], space: GroundingSpace, settings: Mapping[str, object]
) -> dict[str, Decoder]:
    """Methods by name, each with the settings meant for it."""
    from trueline.decoders import make_method

    return {
        name: make_method(
            name,
            space=space,
            settings={
                key.rpartition(".")[2]: settings[key] for key in _meant_for(name, settings)
            },
        )
        for name in names
    }


def _meant_for(name: str, settings: Mapping[str, object]) -> list[str]:
    """The settings a method takes: those under its name, and those under none that it has."""
    from trueline.decoders import settings_fields

    known = settings_fields(name)
    return [
        key
        for key in settings
        if key.rpartition(".")[2] in known and key.rpartition(".")[0] in (name, "")
    ]


def _shipped_space(lm: LanguageModel) -> GroundingSpace:
    """The space of the shipped facts for a model, built once and kept in the cache."""
    from filelock import FileLock

    from trueline.cli.screen import progress_bar
    from trueline.engines.sources import home
    from trueline.space.build import build

    spaces = home() / "spaces"
    spaces.mkdir(parents=True, exist_ok=True)
    folder = spaces / f"facts-{lm.fingerprint[:12]}.space"
    label = "building the space of the shipped facts"
    with FileLock(spaces / ".lock"), progress_bar(label, "entries") as progress:
        return build(lm, "facts", wrong=True, out=folder, progress=progress)
