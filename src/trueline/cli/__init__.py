"""The command line: one thin file a command; a user's error is one line and exit 1."""

from __future__ import annotations

import gc
import os
import re
import sys
import warnings

import click

from trueline import __version__
from trueline.cli import screen, spaces
from trueline.cli.ask import ask
from trueline.cli.audit import audit
from trueline.cli.chat import chat
from trueline.cli.compare import compare
from trueline.cli.eval import evaluate
from trueline.cli.explain import explain
from trueline.cli.models import models
from trueline.cli.options import check_texts
from trueline.cli.report import report, reproduce
from trueline.cli.serve import serve
from trueline.errors import TruelineError
from trueline.text import visible_line

_STRAY_BREAK = re.compile(r"\n(?!  |\(see `)")  # in a message: part of a name it quotes
_RESUMED = ("audit", "build", "eval", "reproduce")  # commands that keep what they have done
_OBJECTS_UNTIL_COLLECTION = 100_000


@click.group(
    context_settings={
        "auto_envvar_prefix": "TRUELINE",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 96,
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="trueline", message="%(prog)s %(version)s")
def cli() -> None:
    """Make a language model answer more truthfully while it decodes.

    \b
    trueline build facts.jsonl --out facts.space
    trueline ask --space facts.space "What happens if you swallow gum?"
    trueline compare --space facts.space "What happens if you swallow gum?"

    Retrieval-Augmented Decoding (RAD, arXiv 2508.02184), its six baselines and its experiments:

    \b
    trueline compare --methods greedy,rad "What happens if you swallow gum?"
    trueline reproduce --list

    Every option can also be set as TRUELINE_<COMMAND>_<OPTION>. Fetched models are kept in
    TRUELINE_HOME.
    """


_SPACES = (models, *spaces.COMMANDS)
_ANSWERING = (ask, chat, compare, explain, serve)
_MEASURING = (evaluate, report, reproduce, audit)
for command in (*_SPACES, *_ANSWERING, *_MEASURING):
    for param in command.params:
        param.callback = param.callback or check_texts
    command.short_help = command.get_short_help_str(500)  # not cut off
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
        warnings.showwarning = lambda warning, *_, **__: screen.note(
            f"note: {visible_line(str(warning))}"
        )
        try:
            screen.settle_streams()
            code = _run()
            screen.write("", flush=True)
        except TruelineError as error:
            code = _stop(str(error))
        except screen.ReaderLeftError:
            screen.discard(sys.stdout)
            code = 0
    if code:
        sys.exit(code)


def _run() -> int:
    """Run a command and return its exit code; what other libraries raise becomes one line."""
    words = sys.argv[1:] or ["--help"]
    try:
        cli.main(words, prog_name="trueline", standalone_mode=False)
    except click.UsageError as error:
        hint = f"\n(see `{error.ctx.command_path} --help`)" if error.ctx else ""
        return _stop(error.format_message() + hint)
    except click.ClickException as error:
        return _stop(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        running = next((word for word in words if word in cli.commands), "")
        hint = "; run the same command again, and it goes on where it was"
        return _stop("stopped" + hint * (running in _RESUMED), 130)
    except SystemExit as error:  # of click, where a pipe is broken
        if {"-h", "--help"} & {*words}:  # which click prints itself
            raise screen.ReaderLeftError from error
        return _stop("another process closed a pipe that is in use")
    except OSError as error:  # one that no other code expected
        return _stop(screen.one_line(error))
    return 0


def _stop(message: str, code: int = 1) -> int:
    """Print an error; only further lines of ours, which are indented, stay lines."""
    screen.note("Error: " + _STRAY_BREAK.sub(r"\\n", message))
    return code
