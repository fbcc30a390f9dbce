"""`trueline chat`: questions and answers in a terminal, with the evidence on request."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trueline.cli.options import (
    asking_options,
    method_named,
    methods_help,
    open_pair,
    settings_of,
)
from trueline.errors import TruelineError

if TYPE_CHECKING:
    from trueline.decoders import Decoder
    from trueline.models.language import LanguageModel
    from trueline.space.space import GroundingSpace

HELP = """\
A line is a question; each is asked on its own. A line that begins with / is a command:
  /method NAME      answer with another method: {methods}
  /set NAME VALUE   change a setting of the method, such as /set alpha 0.3
  /space FOLDER     open another grounding space, built with the same model
  /why              show which examples moved which token of the last answer
  /greedy           answer the last question again, without any method
  /help, /quit"""


@dataclass
class Chat:
    """What the conversation has come to."""

    lm: LanguageModel
    space: GroundingSpace
    name: str
    settings: dict[str, object]
    length: int
    question: str | None = None

    @property
    def method(self) -> Decoder:
        """The method that answers now."""
        return method_named(self.name, self.space, self.settings)

    def say(self, line: str) -> bool:
        """Do what a line asks for; False ends the chat."""
        if not line.startswith("/"):
            self.question = line
            self.answer(self.method)
            return True
        command, _, rest = line[1:].partition(" ")
        if command in ("quit", "exit", "q"):
            return False
        actions: dict[str, Callable[[str], None]] = {
            "method": self.switch,
            "set": self.change,
            "space": self.open,
            "why": lambda _: self.why(),
            "greedy": lambda _: self.plain(),
            "help": lambda _: tell(HELP.format(methods=methods_help())),
        }
        if command in actions:
            actions[command](rest.strip())
        else:
            tell(f"there is no /{command}; /help lists what there is")
        return True

    def answer(self, method: Decoder) -> None:
        """Stream the answer to the last question."""
        from trueline.generation import stream

        assert self.question is not None
        for piece in stream(self.lm, method, self.question, max_new_tokens=self.length):
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")

    def switch(self, name: str) -> None:
        """Answer with another method from now on."""
        method_named(name, self.space, {})
        self.name, self.settings = name, {}
        tell(f"method {name}")

    def change(self, text: str) -> None:
        """Change a setting of the method, if it takes that value."""
        settings = {**self.settings, **settings_of([text.replace(" ", "=", 1)])}
        method_named(self.name, self.space, settings)
        self.settings = settings
        tell(", ".join(f"{name} = {value}" for name, value in settings.items()))

    def open(self, folder: str) -> None:
        """Answer from another space from now on."""
        from trueline.space.storage import read_space

        space = read_space(folder)
        space.check_model(self.lm)
        self.space = space
        tell(f"{len(space):,} entries from {len(space.examples):,} examples")

    def why(self) -> None:
        """Explain the answer to the last question."""
        from trueline.generation import generate

        if self.question is None:
            tell("ask something first")
            return
        found = generate(
            self.lm, self.method, self.question, max_new_tokens=self.length, trace=True
        )
        tell(found.explain().text())

    def plain(self) -> None:
        """What the model says by itself."""
        from trueline.decoders import Greedy

        if self.question is None:
            tell("ask something first")
        else:
            self.answer(Greedy(self.space.prompt))


@click.command()
@click.option("--method", default="rad", show_default=True, help="How to answer at first.")
@asking_options
def chat(
    method: str,
    space: Path | None,
    model: str | None,
    dtype: str,
    device: str | None,
    trust_remote_code: bool,
    alpha: float | None,
    tau: float | None,
    sets: tuple[str, ...],
    max_new_tokens: int,
) -> None:
    """Ask questions in a terminal; /help shows how to switch method and space, and to ask why.

    \b
    Example:
      trueline chat --space facts.space
    """
    lm, grounding = open_pair(space, model, dtype, device, trust_remote_code)
    settings = settings_of(sets, alpha=alpha, tau=tau)
    talk = Chat(lm, grounding, method, settings, max_new_tokens)
    talk.method.check(lm)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  arrow keys and history at the prompt
    tell("ask a question, or /help")
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
            if line and not talk.say(line):
                return
        except EOFError:
            return
        except TruelineError as error:
            tell(f"Error: {error}")
        except KeyboardInterrupt:
            tell("\n(stopped; /quit leaves)")


def tell(text: str) -> None:
    """Say something that is not an answer."""
    click.echo(text, err=not sys.stdout.isatty())
