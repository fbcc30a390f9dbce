"""Keys of users and admins: made, read as hashes, and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from trueline.errors import SettingError
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
