"""Model names -> methods on spaces in their newest state; spaces and examples over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trueline.engines.base import Engine
from trueline.errors import SettingError, TruelineError
from trueline.methods import (
    DEFAULT,
    PLAIN,
    check_settings,
    make_method,
    method_class,
    method_names,
)
from trueline.methods.base import Method
from trueline.prompts import chat_turn
from trueline.serve.access import APIError, invalid, json_response, need_admin
from trueline.serve.engine import Service, run_in
from trueline.serve.schemas import NewExamples, read_body
from trueline.session import open_session
from trueline.space import GroundingSpace, read_space
from trueline.text import shown
from trueline.types import Example, Sampling

FACTS = "facts"  # the name of the shipped facts' space
_CACHED_METHODS = 64  # of each state of a space
_PAGE, _MAX_PAGE = 20, 200  # examples
_MAX_QUERY = 1000  # characters of a search


class ServedSpace:
    """A space in its newest readable state; running requests keep the state they began with."""

    def __init__(self, name: str, lm: Engine, space: GroundingSpace) -> None:
        self.name, self._lm, self._lock = name, lm, Lock()
        self.problem = ""  # why the folder cannot be read now
        self._set(space)

    def _set(self, space: GroundingSpace) -> None:
        self._space, self._make = space, _method_cache(self._lm, space)

    @property
    def space(self) -> GroundingSpace:
        """The newest state."""
        with self._lock:
            try:
                newest, self.problem = self._space.current(), ""
                if newest is not self._space:
                    self._set(newest)
            except (TruelineError, OSError) as error:  # gone or damaged: serve the last state
                self.problem = str(error)
            return self._space

    def method(self, name: str, settings: str) -> Method:
        """A method on the newest state; `settings` are JSON."""
        _ = self.space
        return self._make(name, settings)

    def edit(self, change: Callable[[GroundingSpace], GroundingSpace]) -> GroundingSpace:
        """Commit a change."""
        changed = change(self.space)
        with self._lock:
            self._set(changed)
        return changed

    def about(self) -> dict[str, Any]:
        """What clients are shown of it."""
        space = self.space
        return {
            "id": self.name,
            "object": "space",
            "examples": len(space),
            "entries": space.counts()["entries"],
            "embedder": space.embedder_id,
            "state": short_state(space),
            "is_readable": not self.problem,
        }


def short_state(space: GroundingSpace | None) -> str | None:
    """The last commit of a space."""
    return space.state.sha256[:12] if space is not None and space.state is not None else None


def _method_cache(lm: Engine, space: GroundingSpace | None) -> Callable[[str, str], Method]:
    """Name and settings in JSON -> method; equal ones are one object, decoded in one batch."""

    @lru_cache(_CACHED_METHODS)
    def make(name: str, settings: str) -> Method:
        method = make_method(name, space=space, settings=json.loads(settings))
        method.check(lm)
        return method

    return make


class Catalog:
    """The model names of a server.

    `model` is the plain model, `model+space` the default method on a space, `model+method` a
    method without a space, `model+space+method` any other.
    """

    def __init__(self, lm: Engine, spaces: Mapping[str, GroundingSpace], name: str) -> None:
        for part in (name, *spaces):
            is_short = part.isprintable() and 0 < len(part) <= 100
            if not is_short or {*part} & {*"+/"} or part in method_names():
                raise SettingError(
                    f"{shown(part)} cannot be part of a model name: 1 to 100 printable "
                    "characters without '+' and '/', and not the name of a method; choose "
                    "another name, as in --space NAME=FOLDER"
                )
        self.lm, self._plain_method = lm, _method_cache(lm, None)
        self.spaces = {key: ServedSpace(key, lm, space) for key, space in spaces.items()}
        # Each model name with its method and space, the most common first.
        self.names: dict[str, tuple[str, str | None]] = {
            **{f"{name}+{key}": (DEFAULT, key) for key in spaces},
            name: (PLAIN, None),
        }
        for method in method_names():
            needs = method_class(method).needs
            if not needs.space and method != PLAIN:
                self.names[f"{name}+{method}"] = method, None
            for key, space in spaces.items() if needs.space and method != DEFAULT else ():
                if needs.context in (None, space.info()["context"]):
                    self.names[f"{name}+{key}+{method}"] = method, key

    def resolve(
        self, model: str, method: str | None = None, space: str | None = None
    ) -> tuple[str, str | None]:
        """The method and the space of a request; those it names itself come first."""
        if model not in self.names:
            message = f"there is no model {shown(model)}; there are {', '.join(self.names)}"
            raise APIError(404, message, "model_not_found", "model")
        named_method, named_space = self.names[model]
        if space is not None:
            self.served(space)
            if named_space is None:
                named_method = DEFAULT
        method, space = method or named_method, space or named_space
        try:
            if not method_class(method).needs.space:
                return method, None
        except SettingError as error:
            raise APIError(400, str(error), "invalid_value", "trueline.method") from None
        if space is None and len(self.spaces) != 1:
            message = f"{method} needs a space; the spaces are: {', '.join(self.spaces)}"
            raise APIError(400, message, "missing_parameter", "trueline.space")
        return method, space or next(iter(self.spaces))

    def method(self, name: str, space: str | None, settings: Mapping[str, Any]) -> Method:
        """A method with its settings, which are checked one by one."""
        for key, value in settings.items():
            try:
                check_settings(name, {key: value})
            except SettingError as error:
                raise APIError(400, str(error), "invalid_value", f"trueline.{key}") from None
        make = self._plain_method if space is None else self.spaces[space].method
        return make(name, json.dumps(settings, sort_keys=True))

    def served(self, name: str) -> ServedSpace:
        """The space of a name."""
        if name not in self.spaces:
            message = f"there is no space {shown(name)}; there are: {', '.join(self.spaces)}"
            raise APIError(404, message, "space_not_found", "trueline.space")
        return self.spaces[name]


def open_spaces(
    model: str | None, given: Sequence[str], **options: Any
) -> tuple[Engine, dict[str, GroundingSpace]]:
    """Open a model and spaces, each FOLDER or NAME=FOLDER; without any, the shipped facts.

    `options` are those of `open_session`.
    """
    folders: dict[str, Path] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals:
            name, folder = Path(text).name.removesuffix(".space"), text
        if name in folders:
            raise SettingError(f"two spaces are called {name!r}; name one, as in x={folder}")
        folders[name] = Path(folder)
    first = next(iter(folders), FACTS)
    session = open_session([DEFAULT], model=model, space=folders.pop(first, None), **options)
    assert session.space is not None
    spaces = {first: session.space} | {key: read_space(one) for key, one in folders.items()}
    for space in spaces.values():
        method = make_method(DEFAULT, space=space)
        method.check(session.lm)
        trial = chat_turn(method.question_prompt, "Is it warm?")
        method.prepare(session.lm, trial, Sampling(trace=True))  # or the first request is slow
    return session.lm, spaces


class SpaceEndpoints:
    """The endpoints of spaces."""

    def __init__(self, service: Service, catalog: Catalog) -> None:
        self._service, self._catalog = service, catalog

    async def list(self, request: Request) -> Response:
        """The spaces and their sizes."""
        spaces = self._catalog.spaces.values()
        data = await run_in(self._service.space_thread, lambda: [one.about() for one in spaces])
        return json_response({"object": "list", "data": data})

    async def search(self, request: Request) -> Response:
        """A page of the examples that have all words of `q`."""
        words = {*request.query_params.get("q", "")[:_MAX_QUERY].casefold().split()}
        after = _number(request, "after", 0, 1 << 40)
        limit = _number(request, "limit", _PAGE, _MAX_PAGE)
        served = self._served(request)

        def find() -> dict[str, Any]:
            found: list[Example] = []
            at, examples = after, served.space.examples
            while at < len(examples) and len(found) < limit:
                one = examples[at]
                text = "\n".join((one.id, one.question, *one.answers, one.source)).casefold()
                if all(word in text for word in words):
                    found.append(one)
                at += 1
            following = at if at < len(examples) else None
            return {"object": "list", "data": found, "total": len(examples), "next": following}

        return json_response(await run_in(self._service.space_thread, find))

    async def add(self, request: Request) -> Response:
        """Add examples; with `replace`, they replace those with their ids."""
        need_admin(request.scope)
        body = await read_body(request, NewExamples, self._service.limits)
        if not body.examples:
            raise invalid("examples", "there are none")
        examples = [Example(**msgspec.structs.asdict(one)) for one in body.examples]

        def change(space: GroundingSpace) -> GroundingSpace:
            lm = None if space.entries is None else self._service.lm
            return (space.replace if body.replace else space.add)(examples, lm)

        changed = await self._edit(request, "replace" if body.replace else "add", change)
        ids = [one.id for one in changed.examples[-len(examples) :]]
        return json_response({**self._served(request).about(), "ids": ids}, 201)

    async def remove(self, request: Request) -> Response:
        """Remove the examples of `?id=...&id=...`."""
        need_admin(request.scope)
        ids = request.query_params.getlist("id")
        if not ids:
            raise APIError(400, "name what to remove: ?id=...", "missing_parameter", "id")
        await self._edit(request, "remove", lambda space: space.remove(ids))
        return json_response({**self._served(request).about(), "ids": ids})

    def _served(self, request: Request) -> ServedSpace:
        return self._catalog.served(request.path_params["name"])

    async def _edit(
        self, request: Request, name: str, change: Callable[[GroundingSpace], GroundingSpace]
    ) -> GroundingSpace:
        """Commit a change; in the engine's thread if the model has to read the examples."""
        served, service = self._served(request), self._service
        has_entries = served.space.entries is not None
        thread = service.engine.thread if has_entries else service.space_thread
        changed = await run_in(thread, partial(served.edit, change))
        request.scope["trueline.facts"] |= {"space": served.name, "edit": name}
        return changed


def _number(request: Request, name: str, default: int, limit: int) -> int:
    given = request.query_params.get(name, str(default))
    if not given.isascii() or not given.isdecimal() or len(given) > 13 or int(given) > limit:
        raise invalid(name, f"it must be a number up to {limit}")
    return int(given)
