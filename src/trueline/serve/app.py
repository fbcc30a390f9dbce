"""A model and spaces in, the application of a server out; importing it starts nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from time import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trueline.engines.base import Engine
from trueline.explain.page import digest
from trueline.serve.access import Keys, Refusal
from trueline.serve.catalog import SHIPPED, Catalog
from trueline.serve.completions import Completions
from trueline.serve.metrics import METRICS_TYPE, Log
from trueline.serve.schemas import Limits
from trueline.serve.service import Front, Service, json_bytes
from trueline.serve.spaces import Spaces
from trueline.space import GroundingSpace


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
    text = files("trueline.serve").joinpath("page.html").read_text("utf-8")
    style, script = (
        digest(text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0])
        for tag in ("style", "script")
    )
    return text, (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def create_app(
    lm: Engine | Catalog,
    spaces: GroundingSpace | Mapping[str, GroundingSpace] | None = None,
    *,
    name: str | None = None,
    limits: Limits | None = None,
    keys: Keys | None = None,
    hosts: Collection[str] | None = LOOPBACK,
    cors: Sequence[str] = (),
    log: Log = lambda facts: None,
    logs_text: bool = False,
) -> Starlette:
    """The server of a model and spaces by name, for any ASGI server to run.

    `hosts` are the names it answers to (None: any), `cors` the origins whose pages may call it.
    The engine's thread begins with the server and ends with it.
    """
    if isinstance(lm, Catalog):
        catalog = lm
    else:
        named = {SHIPPED: spaces} if isinstance(spaces, GroundingSpace) else dict(spaces or {})
        catalog = Catalog(lm, named, name or Path(lm.id).name)
    service = Service(catalog, limits or Limits(), keys or Keys(), log, logs_text=logs_text)
    routes = _routes(service)
    paths = {route.path for route in routes}
    middleware = [Middleware(Front, service=service, hosts=hosts, routes=paths)]
    if cors:
        middleware.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=list(cors),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["authorization", "content-type"],
                expose_headers=["x-trueline-covered", "x-trueline-method", "x-request-id"],
            ),
        )
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=service.lifespan,
        exception_handlers={HTTPException: _not_there},
    )
    app.state.service = service
    return app


def _routes(service: Service) -> list[Route]:
    spaces, watched = Spaces(service), _Watched(service)
    examples = "/v1/spaces/{name}/examples"
    return [
        Route("/", page_response),
        Route("/v1/models", watched.models),
        Route("/v1/models/{name:path}", watched.model),
        Route("/v1/chat/completions", Completions(service, "chat"), methods=["POST"]),
        Route("/v1/completions", Completions(service, "completion"), methods=["POST"]),
        Route("/v1/spaces", spaces.list),
        Route(examples, spaces.examples),
        Route(examples, spaces.add, methods=["POST"]),
        Route(examples, spaces.remove, methods=["DELETE"]),
        Route("/health", watched.health),
        Route("/ready", watched.ready),
        Route("/metrics", watched.metrics),
    ]


class _Watched:
    """The endpoints that tell of the server itself."""

    def __init__(self, service: Service) -> None:
        self._service, self._begun = service, int(time())

    async def models(self, request: Request) -> Response:
        """Every model name."""
        names = await self._service.apart(self._service.catalog.names)
        data = [self._model(name, *names[name]) for name in names]
        return Response(json_bytes({"object": "list", "data": data}), media_type=_JSON)

    async def model(self, request: Request) -> Response:
        """One model name."""
        name = request.path_params["name"]
        names = await self._service.apart(self._service.catalog.names)
        if name not in names:
            self._service.catalog.resolve(name, None, None)  # says what there is
        return Response(json_bytes(self._model(name, *names[name])), media_type=_JSON)

    def _model(self, name: str, method: str, space: str | None) -> dict[str, object]:
        told = {"method": method, "space": space}
        return {
            "id": name,
            "object": "model",
            "created": self._begun,
            "owned_by": "trueline",
            "trueline": told,
        }

    async def health(self, request: Request) -> Response:
        """Whether the engine lives: 200, or 503 where it is dead or stuck."""
        trouble = self._service.engine.trouble()
        body = {"status": trouble or "ok"}
        return Response(json_bytes(body), 503 if trouble else 200, media_type=_JSON)

    async def ready(self, request: Request) -> Response:
        """Whether requests are taken on; spaces that cannot be read on disk are named."""
        service = self._service
        trouble = service.engine.trouble() or ("draining" if service.is_draining else "")
        spaces = service.catalog.spaces.values()
        body = {
            "status": trouble or "ok",
            "unreadable_spaces": [one.name for one in spaces if one.trouble],
        }
        return Response(json_bytes(body), 503 if trouble else 200, media_type=_JSON)

    async def metrics(self, request: Request) -> Response:
        """The figures, for Prometheus."""
        self._service.refresh_gauges()
        return Response(self._service.watch.text(), media_type=METRICS_TYPE)


_JSON = "application/json"


async def _not_there(request: Request, error: Exception) -> Response:
    """What Starlette itself refuses, in the shape of all refusals."""
    assert isinstance(error, HTTPException)
    words = {404: "there is nothing under this path", 405: "the path takes another method"}
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    told = words.get(error.status_code, "the request cannot be served")
    refusal = Refusal(error.status_code, told, code=code)
    return Response(json_bytes(refusal.body()), refusal.status, error.headers, _JSON)
