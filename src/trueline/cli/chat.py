"""`trueline chat`: questions and answers in a terminal, with the evidence on request."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from trueline.cli.options import (
    Asking,
    asking_options,
    check_names,
    methods_named,
    settings_of,
)
from trueline.errors import TruelineError

if TYPE_CHECKING:
    from trueline.decoders.base import Decoder
    from trueline.engines.transformers.language import LanguageModel
    from trueline.space.space import GroundingSpace

HELP = """\
A line is a question; each is asked on its own. A line that begins with / is a command:
  /method NAME      greedy, rad, knn-lm, cad, id, dola or kate
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
        return methods_named([self.name], self.space, self.settings)[self.name]

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
            "help": lambda _: tell(HELP),
        }
        if command in actions:
            actions[command](rest.strip())
        else:
            tell(f"there is no /{command}; /help lists what there is")
        return True

    def answer(self, method: Decoder) -> None:
        """Stream the answer to the last question."""
        from trueline.cli.screen import printable
        from trueline.generation import stream

        assert self.question is not None
        for piece in stream(self.lm, method, self.question, max_new_tokens=self.length):
            sys.stdout.write(printable(piece.text))
            sys.stdout.flush()
        sys.stdout.write("\n")

    def switch(self, name: str) -> None:
        """Answer with another method from now on."""
        check_names([name], {})
        self.name, self.settings = name, {}
        tell(f"method {name}")

    def change(self, text: str) -> None:
        """Change a setting of the method, if it takes that value."""
        settings = {**self.settings, **settings_of([text.replace(" ", "=", 1)])}
        check_names([self.name], settings)
        methods_named([self.name], self.space, settings)
        self.settings = settings
        tell(", ".join(f"{name} = {value}" for name, value in settings.items()))

    def open(self, folder: str) -> None:
        """Answer from another space from now on."""
        from trueline.space.space import read_space

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
        from trueline.decoders.greedy import Greedy

        if self.question is None:
            tell("ask something first")
        else:
            self.answer(Greedy(self.space.prompt))


@click.command()
@click.option("--method", default="rad", show_default=True, help="How to answer at first.")
@asking_options
def chat(method: str, asking: Asking) -> None:
    """Ask questions in a terminal; /help shows how to switch method and space, and to ask why.

    \b
    Example:
      trueline chat --space facts.space
    """
    lm, space, methods = asking.open([method])
    methods[method].check(lm)
    settings = settings_of(asking.sets, alpha=asking.alpha, tau=asking.tau)
    talk = Chat(lm, space, method, settings, asking.max_new_tokens)
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
