"""`trueline chat`: a conversation in a terminal, with the sources on request."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from trueline.cli.options import ENTRIES, AnswerOptions, answer_options, method_option
from trueline.cli.screen import (
    AnswerWriter,
    one_line,
    progress_bars,
    read_line,
    tell,
    text_width,
)
from trueline.errors import OutputError, TruelineError
from trueline.methods import PLAIN, make_method, names_in_words
from trueline.settings import read_settings
from trueline.text import counted, visible_line

if TYPE_CHECKING:
    from trueline.methods.base import Method
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
_NO_ANSWER = "there is no answer yet; write a question first"


class Chat:
    """The state of a conversation; a method `do_x` is the command /x."""

    def __init__(self, session: Session, options: AnswerOptions, name: str) -> None:
        self.lm, self.space, self.options = session.lm, session.space, options
        self.method = session.methods[name]
        self.turns: list[tuple[str, str]] = []  # questions and their answers
        self.answer: Answer | None = None  # the last one, with its trace

    @property
    def prompt(self) -> str:
        """The method and the space, shown before a line."""
        from trueline.session import is_shipped

        name = "no space" if self.space is None else "a space in memory"
        if self.space is not None and self.space.folder is not None:
            name = "the shipped facts" if is_shipped(self.space) else self.space.folder.name
        return f"{self.method.name}, {name}> "

    def run(self, line: str) -> None:
        """Answer a question or carry out a command."""
        command, _, rest = line[1:].partition(" ")
        if not line.startswith("/"):
            if self.space is not None and (newest := self.space.current()) is not self.space:
                self.use(self.method.name, newest, self.method.settings())
            self.answer = self.write(self.method, line, self.turns)
            self.turns.append((line, self.answer.text))
        elif action := getattr(self, f"do_{command}", None):
            action(rest.strip())
        else:
            tell(f"there is no /{command}; /help lists the commands")

    def use(
        self, name: str, space: GroundingSpace | None, settings: dict[str, object] | None = None
    ) -> None:
        """Go on with a method on a space; entries that it needs are built."""
        from trueline.session import space_for

        with progress_bars("") as progress:
            space = space_for([name], self.lm, space, progress=partial(progress, ENTRIES))
        method = make_method(name, space=space, settings=settings)
        method.check(self.lm)
        self.method, self.space = method, space

    def do_new(self, _: str) -> None:
        self.turns.clear()
        self.answer = None
        tell("a new conversation")

    def do_method(self, name: str) -> None:
        self.use(name, self.space)
        tell(f"method {name}")

    def do_set(self, text: str) -> None:
        settings = read_settings([text.replace(" ", "=", 1)])
        self.use(self.method.name, self.space, {**self.method.settings(), **settings})
        tell(", ".join(f"{name} = {x}" for name, x in self.method.settings().items()))

    def do_space(self, folder: str) -> None:
        from trueline.space import read_space

        space = read_space(folder, embedder=self.options.parts["embedder"])
        self.use(self.method.name, space, self.method.settings())
        tell(counted(len(space), "example"))

    def do_why(self, _: str) -> None:
        tell(self.answer.explain().text(text_width()) if self.answer else _NO_ANSWER)

    def do_plain(self, _: str) -> None:
        if not self.turns:
            tell(_NO_ANSWER)
            return
        *earlier, (question, _) = self.turns
        self.write(make_method(PLAIN, space=self.space), question, earlier)

    def do_help(self, _: str) -> None:
        tell(HELP.format(methods=names_in_words()))

    def do_quit(self, _: str) -> None:
        raise EOFError

    do_exit = do_q = do_quit

    def write(self, method: Method, question: str, earlier: list[tuple[str, str]]) -> Answer:
        """Stream an answer; return it with its trace, which /why shows."""
        from trueline.decode.generate import stream
        from trueline.explain.text import source_lines
        from trueline.prompts import chat_turn

        given = chat_turn(self.method.question_prompt, question, earlier)
        writer = AnswerWriter()
        for piece in stream(self.lm, method, given, trace=True, **self.options.sampling):
            writer.write(piece.text)
        writer.end()
        for line in source_lines(piece, is_short=True):
            tell(f"  ({visible_line(line)})", "dim")
        assert piece.answer is not None  # on the last piece
        return piece.answer


@click.command()
@method_option("How to answer at first.")
@answer_options
def chat(method: str, **given: Any) -> None:
    """Talk to a model in a terminal; /help shows how to switch method and space, and ask why.

    \b
    Example:
      trueline chat --space facts.space
    """
    options = AnswerOptions(given)
    session = options.open([method])
    session.methods[method].check(session.lm)
    talk = Chat(session, options, method)
    with suppress(ImportError):
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
        except (TruelineError, OSError) as error:
            tell(f"Error: {one_line(error) if isinstance(error, OSError) else error}")
        except KeyboardInterrupt:
            tell("\n(stopped; /quit leaves)")
