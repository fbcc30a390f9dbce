"""`trueline chat`: a conversation in a terminal, with the sources on request."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from trueline.cli.options import ENTRIES, AnswerOptions, answer_options, method_option
from trueline.cli.screen import (
    AnswerWriter,
    one_line,
    progress_bar,
    read_line,
    tell,
    text_width,
)
from trueline.errors import OutputError, TruelineError
from trueline.methods import PLAIN, names_in_words
from trueline.session import entries_for, needs_entries
from trueline.settings import read_settings
from trueline.text import counted, visible_line

if TYPE_CHECKING:
    from trueline.methods.base import Method
    from trueline.prompts import ModelInput
    from trueline.session import Session
    from trueline.space import GroundingSpace
    from trueline.types import Answer

HELP = """\
A line is a question; the model sees those before it, with their answers. A line that begins
with / is a command:
  /new              begin a new conversation
  /method NAME      {methods}
  /set NAME VALUE   change a setting of the method, such as /set threshold 0.8
  /space FOLDER     open another grounding space
  /why              show which examples were in scope for the last question, and which of
                    them moved which token of the answer
  /plain            answer the last question again, without any method
  /help, /quit"""


@dataclass
class Chat:
    """The state of a conversation; a method `do_x` is the command /x."""

    session: Session
    options: AnswerOptions
    name: str  # of the method
    settings: dict[str, object]  # of the method
    turns: list[tuple[str, str]] = field(default_factory=list)  # questions and their answers
    answer: Answer | None = None  # the last one, with its trace

    @property
    def prompt(self) -> str:
        """The method and the space, shown before a line."""
        space = self.session.space
        name = "no space" if space is None else "the shipped facts"
        if space is not None and space.folder is not None and not self.session.is_shipped:
            name = space.folder.name
        return f"{self.name}, {name}> "

    def run(self, line: str) -> None:
        """Answer a question or carry out a command."""
        self.session = self.session.current()  # the space may have been edited meanwhile
        if not line.startswith("/"):
            method = self.session.method(self.name, self.settings)
            self.answer = self._write(method, self._input(line, self.turns))
            self.turns.append((line, self.answer.text))
            return
        command, _, rest = line[1:].partition(" ")
        if action := getattr(self, f"do_{command}", None):
            action(rest.strip())
        else:
            tell(f"there is no /{command}; /help lists the commands")

    def do_new(self, _: str) -> None:
        self.turns.clear()
        self.answer = None
        tell("a new conversation")

    def do_method(self, name: str) -> None:
        if not self.session.is_shipped and self.session.space is not None:
            space = self._with_entries(self.session.space, name)
            if space is not self.session.space:
                self.session = self.session.on(space)
        self.session.method(name)
        self.name, self.settings = name, {}
        tell(f"method {name}")

    def do_set(self, text: str) -> None:
        settings = {**self.settings, **read_settings([text.replace(" ", "=", 1)])}
        self.session.method(self.name, settings)
        self.settings = settings
        tell(", ".join(f"{name} = {value}" for name, value in settings.items()))

    def do_space(self, folder: str) -> None:
        from trueline.space import read_space

        space = read_space(folder, embedder=self.options.embedder)
        for name in {*self.session.methods, self.name}:
            space = self._with_entries(space, name)
        self.session = self.session.on(space)
        tell(counted(len(space), "example"))

    def do_why(self, _: str) -> None:
        if self.answer is None:
            tell("ask something first")
        else:
            tell(self.answer.explain().text(text_width()))

    def do_plain(self, _: str) -> None:
        if self.turns:
            given = self._input(self.turns[-1][0], self.turns[:-1])
            self._write(self.session.method(PLAIN), given)
        else:
            tell("ask something first")

    def do_help(self, _: str) -> None:
        tell(HELP.format(methods=names_in_words()))

    def do_quit(self, _: str) -> None:
        raise EOFError

    do_exit = do_q = do_quit

    def _with_entries(self, space: GroundingSpace, name: str) -> GroundingSpace:
        """The space, with entries if the method needs them; they are built if missing."""
        if not needs_entries(name):
            return space
        with progress_bar(ENTRIES, "") as progress:
            return entries_for(space, self.session.lm, progress=progress)

    def _input(self, question: str, earlier: list[tuple[str, str]]) -> ModelInput:
        from trueline.prompts import chat_turn

        method = self.session.method(self.name, self.settings)
        return chat_turn(method.question_prompt, question, earlier)

    def _write(self, method: Method, given: ModelInput) -> Answer:
        """Stream an answer; return it with its trace, which /why shows."""
        from trueline.decode.generate import stream
        from trueline.explain.text import short_source_lines

        writer, sampling = AnswerWriter(), self.options.sampling
        for piece in stream(self.session.lm, method, given, trace=True, **sampling):
            writer.write(piece.text)
        writer.end()
        for line in short_source_lines(piece):
            tell(f"  ({visible_line(line)})", "dim")
        assert piece.answer is not None  # on the last piece
        return piece.answer


@click.command()
@method_option("How to answer at first.")
@answer_options
def chat(method: str, options: AnswerOptions) -> None:
    """Talk to a model in a terminal; /help shows how to switch method and space, and ask why.

    \b
    Example:
      trueline chat --space facts.space
    """
    session = options.open([method])
    session.methods[method].check(session.lm)
    talk = Chat(session, options, method, session.methods[method].settings())
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  arrow keys and history at the prompt
    tell("ask a question, or /help")
    while True:
        try:
            if line := read_line(talk.prompt).strip():
                talk.run(line)
        except EOFError:
            return
        except OutputError:
            raise
        except TruelineError as error:
            tell(f"Error: {error}")
        except OSError as error:
            tell(f"Error: {one_line(error)}")
        except KeyboardInterrupt:
            tell("\n(stopped; /quit leaves)")
