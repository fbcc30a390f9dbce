"""The application of a server: its routes, the model list, health, metrics and the page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from time import time

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trueline.engines.base import Engine
from trueline.explain.page import policy
from trueline.serve.access import AccessMiddleware, Keys, json_response
from trueline.serve.completions import Completions
from trueline.serve.engine import Service
from trueline.serve.metrics import Log
from trueline.serve.schemas import ChatBody, CompletionBody, Limits
from trueline.serve.spaces import FACTS, Catalog, SpaceEndpoints
from trueline.space import GroundingSpace

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def create_app(
    lm: Engine,
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
    """The server of a model and its spaces, for any ASGI server.

    `hosts` are the host names it answers to (None: any), `cors` the origins whose pages may
    call it. Its threads run from the start of the server to its end.
    """
    named = {FACTS: spaces} if isinstance(spaces, GroundingSpace) else spaces or {}
    catalog = Catalog(lm, named, name or Path(lm.id).name)
    service = Service(lm, limits or Limits(), log, logs_text=logs_text)
    info, edits = _Info(service, catalog), SpaceEndpoints(service, catalog)
    examples = "/v1/spaces/{name}/examples"
    text = files("trueline.serve").joinpath("page.html").read_text("utf-8")
    allowed = policy(text, "connect-src 'self'; frame-ancestors 'none'; ")
    headers = {"content-security-policy": allowed, "cache-control": "no-cache"}
    page = Response(text, headers=headers, media_type="text/html")
    chat = Completions(service, catalog, ChatBody)
    completions = Completions(service, catalog, CompletionBody)
    routes = [
        Route("/", page, methods=["GET"]),
        Route("/v1/models", info.models),
        Route("/v1/models/{name:path}", info.model),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/spaces", edits.list),
        Route(examples, edits.search),
        Route(examples, edits.add, methods=["POST"]),
        Route(examples, edits.remove, methods=["DELETE"]),
        Route("/health", info.health),
        Route("/ready", info.ready),
        Route("/metrics", info.metrics),
    ]
    paths = {route.path for route in routes}
    access = (keys or Keys(), hosts, paths, service.metrics, log)
    middleware = [Middleware(AccessMiddleware, *access)]
    if cors:
        others = Middleware(
            CORSMiddleware,
            allow_origins=list(cors),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type"],
            expose_headers=["x-trueline-covered", "x-trueline-method", "x-request-id"],
        )
        middleware.insert(0, others)
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=service.lifespan,
        exception_handlers={HTTPException: _pass_on},
    )
    app.state.service, app.state.catalog = service, catalog
    return app


async def _pass_on(request: Request, error: Exception) -> Response:
    """Leave Starlette's own errors to the middleware, which answers all errors."""
    raise error


class _Info:
    """The endpoints that describe the server itself."""

    def __init__(self, service: Service, catalog: Catalog) -> None:
        self._service, self._catalog, self._started = service, catalog, int(time())

    async def models(self, request: Request) -> Response:
        data = [self._model(name) for name in self._catalog.names]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        return json_response(self._model(request.path_params["name"]))

    def _model(self, name: str) -> dict[str, object]:
        method, space = self._catalog.resolve(name)
        about = {"object": "model", "created": self._started, "owned_by": "trueline"}
        return {"id": name, **about, "trueline": {"method": method, "space": space}}

    async def health(self, request: Request) -> Response:
        """Whether the engine works."""
        problem = self._service.engine.problem()
        return json_response({"status": problem or "ok"}, 503 if problem else 200)

    async def ready(self, request: Request) -> Response:
        """Whether requests are accepted, and which spaces cannot be read on disk."""
        service, spaces = self._service, self._catalog.spaces.values()
        problem = service.engine.problem() or ("draining" if service.is_draining else "")
        unreadable = [one.name for one in spaces if one.problem]
        body = {"status": problem or "ok", "unreadable_spaces": unreadable}
        return json_response(body, 503 if problem else 200)

    async def metrics(self, request: Request) -> Response:
        metrics = self._service.metrics
        for one in self._catalog.spaces.values():
            metrics.unreadable.labels(one.name).set(bool(one.problem))
        text = generate_latest(metrics.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)
