"""Spaces over HTTP: what they hold, examples added and removed while answers are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trueline.errors import ExampleError
from trueline.serve.access import Refusal
from trueline.serve.catalog import ServedSpace
from trueline.serve.schemas import NewExamples, parse
from trueline.serve.service import Service, json_bytes, need_admin, read_body
from trueline.space import GroundingSpace
from trueline.types import Example

_SHOWN, _MOST = 20, 200  # examples of one page: usually, and at most
_LONGEST = 1000  # characters of a search


class Spaces:
    """The endpoints of spaces."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, request: Request) -> Response:
        """The spaces and their sizes."""
        spaces = self._service.catalog.spaces.values()
        data = await self._service.on_spaces(lambda: [_about(one) for one in spaces])
        return _json({"object": "list", "data": data})

    async def examples(self, request: Request) -> Response:
        """The examples of a space that hold all words of `q`, a page of them."""
        served = self._served(request)
        query = request.query_params.get("q", "")[:_LONGEST]
        after = _number(request, "after", 0, 1 << 40)
        limit = _number(request, "limit", _SHOWN, _MOST)
        found = await self._service.on_spaces(
            partial(_search, served, query.casefold().split(), after, limit)
        )
        return _json(found)

    async def add(self, request: Request) -> Response:
        """Add examples; with `replace`, in the place of those of their ids."""
        need_admin(request.scope)
        served = self._served(request)
        body = parse(await read_body(request, self._service.limits), NewExamples)
        if not body.examples:
            raise Refusal(
                400, "examples: there is none", code="invalid_value", param="examples"
            )
        examples = [_example(one) for one in body.examples]
        edit = "replace" if body.replace else "add"

        def change(space: GroundingSpace) -> GroundingSpace:
            lm = None if space.entries is None else self._service.catalog.lm
            changed: GroundingSpace = getattr(space, edit)(examples, lm)
            return changed

        made = await self._edit(served, change)
        held = [made.examples[-n] for n in range(len(examples), 0, -1)]
        request.scope["trueline.record"].facts |= {"space": served.name, "edit": edit}
        return _json({**_about(served), "ids": [one.id for one in held]}, 201)

    async def remove(self, request: Request) -> Response:
        """Remove the examples of some ids: `?id=...&id=...`."""
        need_admin(request.scope)
        served = self._served(request)
        ids = request.query_params.getlist("id")
        if not ids:
            raise Refusal(
                400, "name what to remove: ?id=...", code="missing_parameter", param="id"
            )
        await self._edit(served, lambda space: space.remove(ids))
        request.scope["trueline.record"].facts |= {"space": served.name, "edit": "remove"}
        return _json({**_about(served), "ids": ids})

    async def _edit(
        self, served: ServedSpace, change: Callable[[GroundingSpace], GroundingSpace]
    ) -> GroundingSpace:
        """Commit a change; where the model has to read the examples, between two steps."""
        work = partial(served.edit, change)
        if served.space.entries is None:
            return await self._service.on_spaces(work)
        return await self._service.with_model(work)

    def _served(self, request: Request) -> ServedSpace:
        name = request.path_params["name"]
        catalog = self._service.catalog
        if name not in catalog.spaces:
            raise catalog.no_space(name)
        return catalog.spaces[name]


def _about(served: ServedSpace) -> dict[str, Any]:
    space = served.space
    return {
        "id": served.name,
        "object": "space",
        "examples": len(space),
        "entries": space.counts()["entries"],
        "embedder": space.embedder_id,
        "state": None if space.state is None else space.state.sha256[:12],
        "is_readable": not served.trouble,
    }


def _search(served: ServedSpace, words: list[str], after: int, limit: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    at, examples = after, served.space.examples
    while at < len(examples) and len(found) < limit:
        if _holds(examples[at], words):
            found.append(asdict(examples[at]))
        at += 1
    return {
        "object": "list",
        "data": found,
        "total": len(examples),
        "next": at if at < len(examples) else None,
    }


def _holds(example: Example, words: list[str]) -> bool:
    if not words:
        return True
    texts = (example.id, example.question, *example.answers, example.source)
    text = "\n".join(texts).casefold()
    return all(word in text for word in words)


def _example(given: Any) -> Example:
    try:
        return Example(
            given.question, given.answers, given.wrong_answers, given.id, given.source
        )
    except ExampleError as error:
        raise Refusal(400, str(error), code="invalid_value", param="examples") from None


def _number(request: Request, name: str, usual: int, most: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return usual
    if not given.isascii() or not given.isdecimal() or len(given) > 12 or int(given) > most:
        raise Refusal(
            400, f"{name} must be a number up to {most}", code="invalid_value", param=name
        )
    return int(given)


def _json(value: object, status: int = 200) -> Response:
    return Response(json_bytes(value), status, media_type="application/json")
