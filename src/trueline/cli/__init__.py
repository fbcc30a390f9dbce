"""The command line: one thin file a command; a user's error is one line and exit 1."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import click

from trueline import __version__
from trueline.cli.add import add
from trueline.cli.ask import ask
from trueline.cli.build import build
from trueline.cli.chat import chat
from trueline.cli.compact import compact
from trueline.cli.compare import compare
from trueline.cli.eval import evaluate
from trueline.cli.explain import explain
from trueline.cli.info import info
from trueline.cli.log import log
from trueline.cli.merge import merge
from trueline.cli.models import models
from trueline.cli.remove import remove
from trueline.cli.report import report
from trueline.cli.reproduce import reproduce
from trueline.cli.verify import verify
from trueline.errors import TruelineError


@click.group(
    context_settings={
        "auto_envvar_prefix": "TRUELINE",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 96,
    }
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


_SPACES = (models, build, add, remove, merge, compact, log, info, verify)
_ASKING = (ask, chat, compare, explain)
_EVALUATING = (evaluate, report, reproduce)
for command in (*_SPACES, *_ASKING, *_EVALUATING):
    cli.add_command(command)


def main() -> None:
    """Run a command; exit 1 with one line for what the user can mend, 130 when interrupted."""
    _spell_out()
    _settle_threads()
    try:
        cli.main(standalone_mode=False)
        sys.stdout.flush()
    except TruelineError as error:
        _stop(str(error), 1)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
    except click.UsageError as error:
        hint = f"\n(see `{error.ctx.command_path} --help`)" if error.ctx else ""
        _stop(error.format_message() + hint, 1)
    except click.ClickException as error:
        _stop(error.format_message(), 1)
    except (click.Abort, KeyboardInterrupt):
        _stop(
            "stopped; a build, an evaluation or a recipe goes on where it was when the same "
            "command is run again",
            130,
        )
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _spell_out() -> None:
    """Print signs that the encoding of our output has no code for by their number."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _settle_threads() -> None:
    """Let a thread of torch that waits for work give its core back after 0.3 ms, not 5 ms.

    The embedder needs that core. libgomp reads this once, when torch is imported; the process
    is ours alone, and what its user has set stands.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def _stop(message: str, code: int) -> None:
    click.echo(f"Error: {message}", err=True)
    sys.exit(code)
