"""Keys of users and admins: made, read as hashes, and compared in constant time."""

from __future__ import annotations

import errno
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from trueline.errors import (
    ExampleError,
    SettingError,
    SpaceConflictError,
    SpaceError,
    TruelineError,
)
from trueline.files import read_text

Role = Literal["user", "admin"]
VARIABLES: Mapping[str, Role] = {"TRUELINE_API_KEY": "user", "TRUELINE_ADMIN_KEY": "admin"}
_SHORTEST = 20  # characters; a hash of a short key can be guessed back
_LINE = re.compile(r"(user|admin)\s+sha256:([0-9a-f]{64})(?:\s.*)?")


@dataclass(frozen=True, slots=True)
class Keys:
    """The hashes of the keys that open a server; with none of a role, it is open or shut."""

    hashes: tuple[tuple[Role, str], ...] = ()

    def has(self, role: Role) -> bool:
        """Whether there is a key of a role."""
        return any(own == role for own, _ in self.hashes)

    def role_of(self, key: str) -> Role | None:
        """Whose key it is; every hash is compared, so that time tells nothing."""
        given, found = key_hash(key), None
        for role, known in self.hashes:
            if hmac.compare_digest(given, known):
                found = role
        return found

    def also(self, role: Role, key: str) -> Keys:
        """The same and one more."""
        return Keys((*self.hashes, (role, key_hash(key))))


def key_hash(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def new_key(role: Role) -> tuple[str, str]:
    """A key that nobody can guess, and the line of a key file that lets it in."""
    if role not in get_args(Role):
        raise SettingError(f"a key is for a user or an admin, got {role!r}")
    key = f"tl-{role}-{secrets.token_urlsafe(32)}"
    return key, f"{role} sha256:{key_hash(key)}"


def read_keys(path: Path | None, environment: Mapping[str, str]) -> Keys:
    """The keys of a file of hashes and those of the environment; errors tell no key."""
    found = [] if path is None else _read_file(path)
    for variable, role in VARIABLES.items():
        if key := environment.get(variable):
            if len(key) < _SHORTEST:
                raise SettingError(
                    f"the key in {variable} has {len(key)} characters and needs {_SHORTEST}; "
                    f"make one with `trueline serve --new-key {role}`"
                )
            found.append((role, key_hash(key)))
    return Keys(tuple(found))


def _read_file(path: Path) -> list[tuple[Role, str]]:
    lines = read_text(path, "the key file").splitlines()
    found: list[tuple[Role, str]] = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line)) is None:
            raise SettingError(
                f"{path}:{number} is no key: a line is `user sha256:<64 hex digits>` or "
                "`admin sha256:<64 hex digits>`, as `trueline serve --new-key user` prints it"
            )
        found.append(("admin" if match[1] == "admin" else "user", match[2]))
    return found


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """A request that cannot be served, as its sender is told."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.code, self.param = code, param
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """What OpenAI calls such an error."""
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        return _KINDS.get(self.status, usual)

    def body(self) -> dict[str, Any]:
        """The error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def refusal_of(error: Exception) -> Refusal:
    """What a sender is told of an error; one that is not theirs is told of in the log alone."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, SettingError | ExampleError):
        return Refusal(400, str(error), code="invalid_value")
    if _is_for_want_of_room(error):
        return Refusal(
            507, "there is no room to write the change; nothing was changed", code="no_room"
        )
    if isinstance(error, SpaceConflictError):
        return Refusal(
            409, "another change of the space came first; try again", code="space_conflict"
        )
    if isinstance(error, SpaceError):
        return Refusal(
            503,
            "the space cannot be used as it is on disk; the server's log tells why",
            code="space_unavailable",
        )
    if isinstance(error, TruelineError):
        return Refusal(500, "the server is not set up for this; its log tells why")
    return Refusal(500, "something is wrong in the server; its log tells what")


def _is_for_want_of_room(error: BaseException | None) -> bool:
    """Whether a disk is full or cannot be written, at the bottom of an error."""
    if error is None:
        return False
    is_it = isinstance(error, OSError) and error.errno in _NO_ROOM
    return is_it or _is_for_want_of_room(error.__cause__)
