"""The command line: one thin file a command; a user's error is one line and exit 1."""

from __future__ import annotations

import gc
import os
import re
import sys
import warnings
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

import click

from trueline import __version__
from trueline.cli import spaces
from trueline.cli.ask import ask
from trueline.cli.chat import chat
from trueline.cli.compare import compare
from trueline.cli.eval import evaluate
from trueline.cli.explain import explain
from trueline.cli.models import models
from trueline.cli.options import check_texts
from trueline.cli.report import report, reproduce
from trueline.cli.screen import (
    ReaderLeftError,
    discard,
    flush,
    note,
    one_line,
    settle_streams,
    show,
)
from trueline.cli.serve import serve
from trueline.errors import OutputError, TruelineError
from trueline.text import visible_line

_STRAY_BREAK = re.compile(r"\n(?!  |\(see `)")  # in a message: part of a name it quotes
_LONGEST = 500  # characters of a message of click, which may quote a long command line
_LIKELY = 0.7  # likeness of two names from which on one may be the other, mistyped
_RESUMED = ("build", "eval", "reproduce")  # commands that keep what they have done
_OBJECTS_UNTIL_COLLECTION = 100_000


class _Group(click.Group):
    """The group of all commands; click itself would exit with 1 where a pipe is broken."""

    def make_context(self, *given: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*given, **options)
        except BrokenPipeError as error:  # click prints --help
            raise ReaderLeftError from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            if {"-h", "--help"} & {*sys.argv}:
                raise ReaderLeftError from error
            raise OutputError("another process closed a pipe that is in use") from error


@click.group(
    cls=_Group,
    context_settings={
        "auto_envvar_prefix": "TRUELINE",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 96,
    },
)
@click.version_option(__version__, prog_name="trueline", message="%(prog)s %(version)s")
def cli() -> None:
    """Make a language model answer more truthfully while it decodes.

    \b
    trueline build facts.jsonl --out facts.space
    trueline ask --space facts.space "What happens if you swallow gum?"
    trueline compare --space facts.space "What happens if you swallow gum?"

    Every option can also be set as TRUELINE_<COMMAND>_<OPTION>. Fetched models are kept in
    TRUELINE_HOME.
    """


_SPACES = (models, *spaces.COMMANDS)
_ANSWERING = (ask, chat, compare, explain, serve)
_MEASURING = (evaluate, report, reproduce)
for command in (*_SPACES, *_ANSWERING, *_MEASURING):
    for param in command.params:
        param.callback = param.callback or check_texts
    command.short_help = command.get_short_help_str(_LONGEST)  # not cut off
    cli.add_command(command)


def main() -> None:
    """Run a command; exit 1 after an error that the user can mend, 130 when interrupted."""
    # Garbage is collected rarely, as the millions of objects that imports make are not garbage.
    # A thread of torch that waits for work gives its core back after 0.3 ms, not 5 ms, since
    # the embedder needs it; libgomp reads this once, when torch is imported.
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTION, 20, 100)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = _run()
            flush()
        except TruelineError as error:
            code = _stop(str(error))
        except ReaderLeftError:
            discard(sys.stdout)
            code = 0
    if code:
        sys.exit(code)


def _run() -> int:
    """Run a command and return its exit code; what other libraries raise becomes one line."""
    settle_streams()
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        show(error.format_message())
    except click.UsageError as error:
        hint = f"\n(see `{error.ctx.command_path} --help`)" if error.ctx else ""
        text = _usage_message(error)
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST - 100]} ... {text[-95:]}"
        return _stop(text + hint)
    except click.ClickException as error:
        return _stop(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        running = next((word for word in sys.argv[1:] if word in cli.commands), "")
        hint = "; run the same command again, and it goes on where it was"
        return _stop("stopped" + hint * (running in _RESUMED), 130)
    except OSError as error:  # one that no other code expected
        return _stop(one_line(error))
    return 0


def _usage_message(error: click.UsageError) -> str:
    """What is wrong with a command line; of the names that click finds near, the likely one."""
    given = getattr(error, "option_name", None) or getattr(error, "command_name", None)
    near: Sequence[str] = getattr(error, "possibilities", None) or ()
    if not given or not near:
        return error.format_message()
    typed = given.lstrip("-")

    def likeness(name: str) -> float:
        bare = name.lstrip("-")
        is_part = typed in bare.split("-") or bare.startswith(typed) or typed.startswith(bare)
        is_swapped = sorted(typed) == sorted(bare)  # aks and ask: a likeness of 2/3
        return SequenceMatcher(None, typed, bare).ratio() + (is_part or is_swapped)

    best = max(near, key=likeness)
    meant = f" Did you mean {best!r}?" if likeness(best) >= _LIKELY else ""
    return error.message + meant


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    note(f"note: {visible_line(str(message))}")


def _stop(message: str, code: int = 1) -> int:
    """Print an error; only further lines of ours, which are indented, stay lines."""
    note("Error: " + _STRAY_BREAK.sub(r"\\n", message))
    return code
