"""The tree of errors that a user can cause; any other exception is a bug."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any


class TruelineError(Exception):
    """The root of every error a user can cause."""


class SettingError(TruelineError, ValueError):
    """An option has a value it cannot have."""


class ExampleError(TruelineError, ValueError):
    """Some examples cannot be used; the message lists every one of them."""


class ColumnError(ExampleError):
    """A file has other columns than those that are read; `guesses` are those to read."""

    def __init__(self, problem: str, guesses: Mapping[str, str]) -> None:
        super().__init__(f"{problem}; name the right ones: columns={dict(guesses)}")
        self.problem, self.guesses = problem, guesses


class ModelError(TruelineError):
    """A model, tokenizer or embedder cannot be opened or used."""


class UnknownModelError(ModelError):
    """No model has this name; the message lists the names there are."""


class DownloadError(ModelError):
    """A registry or hub did not give the weights."""


class SpaceError(TruelineError):
    """A grounding space cannot be used."""


class SpaceFormatError(SpaceError):
    """The space is damaged, unfinished or written by another release."""


class SpaceConflictError(SpaceError):
    """Another commit to the folder came first; nothing was changed."""


class SpaceMismatchError(SpaceError):
    """The space was built with another model, tokenizer, embedder or prompt."""


class ClusterError(TruelineError):
    """A cluster cannot be reached, or its workers cannot do the work."""


class MissingExtraError(TruelineError):
    """An optional part is not installed."""


class OutputError(TruelineError):
    """What a command printed could not be written: a closed stream, a full disk."""


def import_extra(name: str, what: str, extra: str) -> Any:
    """Import a module of an optional extra, which `what` needs."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs {name}: pip install 'trueline[{extra}]'"
        ) from error
