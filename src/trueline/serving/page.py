"""The playground: one page, served with a policy that lets nothing else in."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from trueline.explain.page import digest


async def page_response(request: Request) -> Response:
    """The page at `/`."""
    text, policy = _page()
    headers = {
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "x-frame-options": "DENY",
    }
    return Response(text, headers=headers, media_type="text/html")


@cache
def _page() -> tuple[str, str]:
    """The page, and the policy: its own style and script by their hashes, its own server."""
    text = files("trueline.serving").joinpath("page.html").read_text("utf-8")
    style, script = (
        digest(text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0])
        for tag in ("style", "script")
    )
    return text, (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
