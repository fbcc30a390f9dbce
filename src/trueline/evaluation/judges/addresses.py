"""The address of a service as a person writes it -> the one form in which it is compared."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from trueline.errors import SettingError

_PLAIN = re.compile(r"(https?)://[!-~]{1,500}", re.I)
_PORTS = {"http": 80, "https": 443}


def read_address(text: str, *, example: str, variable: str) -> str:
    """The address without what does not count: case of the host, the usual port, a last slash.

    A secret in an address would be printed with results; `variable` is where it should stand.
    """
    if any(sign in text for sign in "@?#\\"):
        raise SettingError(
            "the address of a judge holds a name, a password, a query or a mark, which would "
            f"be printed with results; write it like {example}, with the key in {variable}"
        )
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        if not (_PLAIN.fullmatch(text) and host and port != 0):
            raise ValueError("http:// or https:// and a host are wanted, in plain ASCII")
    except ValueError as error:
        raise SettingError(
            f"{text!r} is no address ({error}); write it like {example}"
        ) from None
    name = f"[{host}]" if ":" in host else host
    shown = "" if port in (None, _PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{name}{shown}{parts.path}".rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether an address is on this machine, so that nothing sent to it leaves it."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(url: str) -> bool:
    """Whether nobody on the way to an address can read what is sent to it."""
    return url.startswith("https://") or is_loopback(url)
