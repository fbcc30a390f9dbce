"""A question to a judge -> what it answered before, from one SQLite file all can share."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trueline.engines.model_cache import home
from trueline.errors import TruelineError

_LOCK_SECONDS = 60.0  # seconds to wait for another thread or process that writes
_TABLE = """CREATE TABLE IF NOT EXISTS responses (
    key TEXT PRIMARY KEY, judge TEXT NOT NULL, text TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL, answer_tokens INTEGER NOT NULL, time TEXT NOT NULL
) WITHOUT ROWID"""

_COLUMNS = "key, judge, text, prompt_tokens, answer_tokens, time"


@dataclass(frozen=True, slots=True)
class Response:
    """What a judge wrote, and how many tokens were counted for it."""

    text: str
    prompt_tokens: int = 0
    answer_tokens: int = 0


def key_of(judge: str, model: str, prompt: str, parameters: Mapping[str, Any]) -> str:
    """A name of exactly this question to exactly this judge."""
    parts = json.dumps([judge, model, prompt, dict(parameters)], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()


class ResponseCache:
    """Responses by key, on disk; every write is done when it returns.

    Each call opens the file anew, so threads, forks and other processes can share it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = Path(path) if path is not None else home() / "judge-cache.sqlite"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                self.path.touch(0o600)  # what SQLite writes beside it gets the same permissions
            elif not self.path.is_file():
                raise OSError("it is no regular file")
            self._prepare()
            if self.path.stat().st_mode & 0o007:  # questions and answers may be private
                with suppress(PermissionError):  # the file of somebody who shares it
                    self.path.chmod(0o600)
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error

    def read(self, keys: Iterable[str]) -> dict[str, Response]:
        """The responses that are known among these keys."""
        query = "SELECT text, prompt_tokens, answer_tokens FROM responses WHERE key = ?"
        with self._open() as connection:
            found = {key: connection.execute(query, (key,)).fetchone() for key in keys}
        rows = {key: row for key, row in found.items() if row is not None}
        for key, row in rows.items():
            if tuple(map(type, row)) != (str, int, int) or min(row[1:]) < 0:
                raise self._unusable(f"the row with the key {key} is damaged")
        return {key: Response(*row) for key, row in rows.items()}

    def write(self, key: str, judge: str, response: Response) -> None:
        """Keep a response for good; one that is there already stays."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        counts = (response.prompt_tokens, response.answer_tokens)
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "INSERT OR IGNORE INTO responses VALUES (?, ?, ?, ?, ?, ?)",
                (key, judge, response.text, *counts, time),
            )

    def _prepare(self) -> None:
        """Make the table if it is missing; an error if it is not ours or cannot be written."""
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
            if tables and ("responses",) not in tables:
                raise self._unusable("it is a database of another program")
            connection.execute(_TABLE)
            connection.execute(f"SELECT {_COLUMNS} FROM responses LIMIT 0")
            connection.execute("PRAGMA user_version = 1")  # fails where nothing can be written
            connection.execute("COMMIT")

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            opened = sqlite3.connect(self.path, timeout=_LOCK_SECONDS, isolation_level=None)
            with closing(opened) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception | str) -> TruelineError:
        return TruelineError(
            f"{self.path} cannot be used as the judges' cache ({error}); "
            "name another file, or move this one away"
        )
