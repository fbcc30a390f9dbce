"""Options that several commands share, and how the texts of settings are read."""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trueline.decoders import DEFAULT, names_in_words
from trueline.engines import DEFAULT_MODEL
from trueline.errors import SettingError

if TYPE_CHECKING:
    from trueline.session import Session


class FlagEnvvarOption(click.Option):
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
    "--json", "as_json", cls=FlagEnvvarOption, is_flag=True, help="Print JSON instead of text."
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


def method_option(help: str = "") -> Callable[[Any], Any]:
    """--method, with the methods there are in its help."""
    return click.option(
        "--method",
        default=DEFAULT,
        show_default=True,
        help=help or f"{names_in_words()}.",
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

    @property
    def settings(self) -> dict[str, object]:
        """The settings that --set, --alpha and --tau give, by name."""
        given = {"alpha": self.alpha, "tau": self.tau}
        named = {name: value for name, value in given.items() if value is not None}
        return {**read_settings(self.sets), **named}

    def open(self, names: Sequence[str]) -> Session:
        """The model, the space and the methods of these names."""
        from trueline.cli.screen import progress_bar
        from trueline.records import GenerateOptions

        GenerateOptions(max_new_tokens=self.max_new_tokens)  # refused before anything is opened
        if not names:
            raise SettingError(f"name a method: {names_in_words()}")
        if sys.stderr.isatty():
            click.echo("opening the model ...", err=True)
        from trueline.session import open_session  # takes a while: behind the line above

        with progress_bar("building the space of the shipped facts", "entries") as progress:
            return open_session(
                names,
                model=self.model,
                space=self.space,
                embedder=self.embedder,
                settings=self.settings,
                dtype=self.dtype,
                device=self.device,
                trust_remote_code=self.trust_remote_code,
                progress=progress,
            )


_ASKING = _all(
    click.option(
        "--space",
        type=click.Path(path_type=Path),
        help="The grounding space; the shipped facts if left out.",
    ),
    click.option("--model", help="The model, if not the one the space names."),
    click.option("--embedder", help="The embedder, if not the one the space names."),
    *_WEIGHTS,
    click.option("--alpha", type=float, help="Weight of what is retrieved, as --set alpha=..."),
    click.option(
        "--tau", type=float, help="Neighbors count above this cosine, as --set tau=..."
    ),
    click.option(
        "--set",
        "sets",
        cls=FlagEnvvarOption,
        multiple=True,
        metavar="NAME=VALUE",
        help="Any setting of a method, such as k=5, or METHOD.k=5 for one of several.",
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


def read_settings(texts: Sequence[str]) -> dict[str, object]:
    """Settings by name from texts such as `alpha=0.3`, each value as Python would read it."""
    settings: dict[str, object] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise SettingError(f"a setting is NAME=VALUE, such as alpha=0.3; got {text!r}")
        word = {"true": "True", "false": "False", "none": "None"}.get(value.strip().lower())
        try:
            settings[name.strip()] = ast.literal_eval(word or value.strip())
        except (ValueError, SyntaxError):  # plain words stand for themselves
            settings[name.strip()] = value.strip()
    return settings
