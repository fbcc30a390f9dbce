"""A model and spaces in, model names and methods out; spaces move on while requests run."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from trueline.engines.base import Engine
from trueline.errors import SettingError, SpaceConflictError, TruelineError
from trueline.methods import (
    DEFAULT,
    PLAIN,
    check_settings,
    make_method,
    method_class,
    method_names,
)
from trueline.methods.base import Method
from trueline.prompts import FilledPrompt
from trueline.serve.access import Refusal
from trueline.session import Session, open_session
from trueline.space.space import GroundingSpace, read_space
from trueline.text import shown
from trueline.types import OnProgress, Sampling

SHIPPED = "facts"  # the name of the shipped facts' space
_KEPT = 64  # methods with settings of their own that a space keeps
_TRIES = 5  # commits by others that an edit waits out
_JOINT = "+"  # between the parts of a model name


class ServedSpace:
    """A space by its name, always in its newest state that can be read."""

    def __init__(self, name: str, lm: Engine, space: GroundingSpace) -> None:
        self.name = name
        self.trouble = ""  # why the folder cannot be read now; the last good state is served
        self._session = Session(lm, space)
        self._methods: OrderedDict[str, Method] = OrderedDict()
        self._lock = Lock()

    @property
    def space(self) -> GroundingSpace:
        """The newest state; requests that run keep theirs."""
        with self._lock:
            return self._current()

    def method(self, name: str, settings: Mapping[str, Any]) -> Method:
        """A method on the newest state; equal settings are one object, so one batch."""
        with self._lock:
            self._current()
            session = self._session
            return _kept(self._methods, session.lm, session.method, name, settings)

    def edit(self, change: Callable[[GroundingSpace], GroundingSpace]) -> GroundingSpace:
        """Commit a change; where another process came first, on top of what it did."""
        for _ in range(_TRIES):
            space = self.space
            try:
                made = change(space)
            except SpaceConflictError:
                continue
            with self._lock:
                self._move(self._session.on(made))
            return made
        raise SpaceConflictError(f"others change {self.name} faster than it can be read")

    def _current(self) -> GroundingSpace:
        try:
            moved = self._session.current()
            self.trouble = ""
        except (TruelineError, OSError) as error:  # gone or damaged: serve what was read
            self.trouble = str(error)
            moved = self._session
        if moved is not self._session:
            self._move(moved)
        assert self._session.space is not None
        return self._session.space

    def _move(self, session: Session) -> None:
        self._session, self._methods = session, OrderedDict()


class Catalog:
    """All that can be asked for by name: the plain model, and methods with or without a space.

    `model` is the plain one, `model+space` the usual method on a space, `model+method` a method
    that needs none, `model+space+method` any other.
    """

    def __init__(self, lm: Engine, spaces: Mapping[str, GroundingSpace], name: str) -> None:
        self.lm, self.name = lm, name
        for given in (name, *spaces):
            _check_name(given)
        self.spaces = {key: ServedSpace(key, lm, space) for key, space in spaces.items()}
        self._plain: OrderedDict[str, Method] = OrderedDict()
        self._lock = Lock()

    def names(self) -> dict[str, tuple[str, str | None]]:
        """Every model name with its method and space, the usual ones first."""
        found: dict[str, tuple[str, str | None]] = {}
        for space in self.spaces:
            found[_JOINT.join((self.name, space))] = DEFAULT, space
        found[self.name] = PLAIN, None
        for method in method_names():
            needs = method_class(method).needs
            if not needs.space and method != PLAIN:
                found[_JOINT.join((self.name, method))] = method, None
            for key, served in self.spaces.items():
                if needs.space and method != DEFAULT and _fits(served.space, needs.context):
                    found[_JOINT.join((self.name, key, method))] = method, key
        return found

    def resolve(
        self, model: str, method: str | None, space: str | None
    ) -> tuple[str, str | None]:
        """The method and the space a request means; what it says itself goes first."""
        known = self.names()
        if model not in known:
            raise Refusal(
                404,
                f"there is no model {shown(model)}; there are {', '.join(known)}",
                code="model_not_found",
                param="model",
            )
        named_method, named_space = known[model]
        if space is not None and space not in self.spaces:
            raise self.no_space(space)
        if space is not None and method is None and named_space is None:
            method = DEFAULT  # a space was named, so it is meant to speak
        wanted, where = method or named_method, space or named_space
        needs = _of_request(lambda: method_class(wanted).needs, "trueline.method")
        if not needs.space:
            return wanted, None
        if where is None and len(self.spaces) == 1:
            where = next(iter(self.spaces))
        if where is None:
            raise Refusal(
                400,
                f"{wanted} needs a space; there are {', '.join(self.spaces) or 'none'}",
                code="missing_parameter",
                param="trueline.space",
            )
        return wanted, where

    def method(self, name: str, space: str | None, settings: Mapping[str, Any]) -> Method:
        """A method as a request means it; its settings are refused by name."""
        for key, value in settings.items():
            _of_request(lambda: check_settings(name, {key: value}), f"trueline.{key}")  # noqa: B023
        if space is not None:
            return self.spaces[space].method(name, settings)
        with self._lock:
            return _kept(self._plain, self.lm, make_method, name, settings)

    def no_space(self, name: str) -> Refusal:
        """What is said of a space that is none."""
        return Refusal(
            404,
            f"there is no space {shown(name)}; there are {', '.join(self.spaces) or 'none'}",
            code="space_not_found",
            param="trueline.space",
        )


def open_catalog(
    model: str | None,
    spaces: Sequence[str],
    *,
    name: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    progress: OnProgress | None = None,
) -> Catalog:
    """Open a model and spaces, each FOLDER or NAME=FOLDER; without any, the shipped facts."""
    folders = _named_folders(spaces)
    first = next(iter(folders.values()), None)
    session = open_session(
        [DEFAULT], model=model, space=first, dtype=dtype, device=device, progress=progress
    )
    assert session.space is not None
    opened = dict.fromkeys(list(folders)[:1] or [SHIPPED], session.space)
    for key, folder in list(folders.items())[1:]:
        opened[key] = read_space(folder)
    for space in opened.values():
        usual = make_method(DEFAULT, space=space)
        usual.check(session.lm)
        # Or the first request would wait for all to open.
        usual.prepare(
            session.lm, FilledPrompt(usual.question_prompt, "Is it warm?"), Sampling(trace=True)
        )
    return Catalog(session.lm, opened, name or Path(model or session.lm.id).name)


def _kept(
    kept: OrderedDict[str, Method],
    lm: Engine,
    make: Callable[..., Method],
    name: str,
    settings: Mapping[str, Any],
) -> Method:
    """A method that was made before, or a new one; the longest unused is forgotten."""
    key = json.dumps([name, settings], sort_keys=True, default=str)
    if key not in kept:
        made = make(name, settings=settings)
        made.check(lm)
        kept[key] = made
    kept.move_to_end(key)
    while len(kept) > _KEPT:
        kept.popitem(last=False)
    return kept[key]


def _named_folders(spaces: Iterable[str]) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for given in spaces:
        key, sign, folder = given.partition("=")
        path = Path(folder if sign else given)
        key = key if sign else path.name.removesuffix(".space")
        _check_name(key)
        if key in folders:
            raise SettingError(f"two spaces are called {key!r}; name one, as in other={path}")
        folders[key] = path
    return folders


def _check_name(name: str) -> None:
    """Refuse a name that a model name could not carry, or that stands for a method."""
    if not name or _JOINT in name or not name.isprintable() or "/" in name or len(name) > 100:
        raise SettingError(
            f"{shown(name)} cannot be part of a model name: no blank name, no {_JOINT!r}, no "
            "'/', 100 characters at most; give another, as in --space NAME=FOLDER"
        )
    if name in method_names():
        raise SettingError(
            f"{name!r} is the name of a method; call the space something else, as in "
            "--space NAME=FOLDER"
        )


def _fits(space: GroundingSpace, context: object) -> bool:
    """Whether a space has the entries a method needs, if it needs any."""
    return context is None or space.recipe.context == context


def _of_request(check: Callable[[], Any], param: str) -> Any:
    try:
        return check()
    except SettingError as error:
        raise Refusal(400, str(error), code="invalid_value", param=param) from None
