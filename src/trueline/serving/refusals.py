"""An error in, OpenAI's error object out; nothing in it tells of this machine."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from trueline.errors import (
    ExampleError,
    SettingError,
    SpaceConflictError,
    SpaceError,
    TruelineError,
)

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
