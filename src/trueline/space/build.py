"""Examples in, a grounding space out; killed at any moment, the same call goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from trueline.cluster import Cluster
from trueline.embed import Embedder, load_embedder
from trueline.engines import DEFAULT_EMBEDDER
from trueline.engines.base import Engine
from trueline.errors import SettingError, SpaceFormatError, SpaceMismatchError
from trueline.examples import read_examples
from trueline.prompts import Prompt
from trueline.settings import check_values, plain
from trueline.space.content import Content, Recipe, utc_now
from trueline.space.folder import clear, clear_others, working
from trueline.space.making import cut_answers, head_of, make_segment, plan_hash
from trueline.space.passages import Passage
from trueline.space.segment import Part, Segment
from trueline.space.space import Examples, GroundingSpace, Now, read_space, space_of
from trueline.space.storage import check_vacant, commit, read_manifest
from trueline.space.windows import Context, Window
from trueline.space.worker import Worker
from trueline.types import OnProgress

Values = Literal["auto", "hidden", "logits"]
Dtype = Literal["auto", "float32", "float16"]


@dataclass(frozen=True, slots=True)
class _EntrySettings:
    """How entries are to be made."""

    context: Context | None
    window: Window = "all"
    end: bool = False
    wrong: bool = False
    values: Values = "auto"
    dtype: Dtype = "auto"

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        check_values(_EntrySettings, given)
        if isinstance(self.context, int) and self.context < 1:
            raise SettingError(f"context must be 1 or more, 'full' or None; got {self.context}")
        for field in fields(self)[1:]:
            if self.context is None and given[field.name] != field.default:
                raise SettingError(
                    f"{field.name}={given[field.name]!r} is about entries, and context=None "
                    "makes none; leave it out or give a context, such as 8"
                )


def build(
    lm: Engine | None,
    examples: Examples,
    *,
    context: Context | None = None,
    window: Window = "all",
    end: bool = False,
    prompt: Prompt | None = None,
    embedder: str | Path | Embedder = DEFAULT_EMBEDDER,
    values: Values = "auto",
    dtype: Dtype = "auto",
    wrong: bool = False,
    out: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    separator: str | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    on: str | Cluster | None = None,
    progress: OnProgress | None = None,
    now: Now = utc_now,
) -> GroundingSpace:
    """Embed the examples, which is all that corrective decoding needs: no model runs.

    With a context, such as 8 or "full", RAD's entries are made too: the model runs over every
    truthful answer, and what it predicts at each token is kept. With `wrong` the wrong answers
    become a second set, which RAD's beta subtracts. With `out` the space is also written there
    as it grows: killed at any moment, the same call resumes to the bytes of a build never
    interrupted. A space in that folder that this build would not make is replaced only with
    `overwrite`. With on="ray" the passes run on a Ray cluster, and give the same bytes.
    """
    settings = _EntrySettings(plain(context), window, end, wrong, values, dtype)
    read = read_examples(examples, columns=columns, separator=separator, limit=limit)
    if isinstance(embedder, (str, Path)):
        embedder = load_embedder(embedder, device="cpu" if lm is None else lm.device)
    recipe = Recipe(
        embedder=embedder.id, embedder_hash=embedder.hash, prompt=prompt or Prompt()
    )
    found: list[list[Passage]] = []
    if context is not None:
        if lm is None:
            raise SettingError("entries need a model: give one, or context=None for none")
        found = cut_answers(lm, read, recipe.prompt, wrong=wrong)
        if not all(found):
            raise SettingError("wrong=True asks for wrong answers, and no example has one")
        recipe = _recipe_of(lm, recipe, settings, head_of(lm, found))
    worker = Worker(lm, embedder, recipe)
    cluster = Cluster(address=on) if isinstance(on, str) else on
    run = map if cluster is None else cluster.map
    options: dict[str, Any] = {"found": found, "run": run, "progress": progress}
    if out is None:
        segment = make_segment(read, worker, **options)
        return space_of(_built(recipe, segment, now), embedder=embedder, now=now)
    folder, plan = Path(out), plan_hash(recipe, read)
    with working(folder, plan, is_build=True) as work:
        base = _state(folder)
        made = _standing(folder, plan, embedder, now)
        if made is None:
            if not overwrite:
                check_vacant(folder)
            segment = make_segment(read, worker, work=work, **options)
            content = _built(recipe, segment, now)
            state = commit(content, folder, base, work)
            made = space_of(content, folder=folder, state=state, embedder=embedder, now=now)
        clear(work)
    clear_others(folder)  # with the lock of builds free again
    return made


def _recipe_of(lm: Engine, shared: Recipe, settings: _EntrySettings, head: str) -> Recipe:
    """How the entries of a model are made."""
    kind = _value_kind(settings.values, head)
    return Recipe(
        embedder=shared.embedder,
        embedder_hash=shared.embedder_hash,
        prompt=shared.prompt,
        context=settings.context,
        window=settings.window,
        end=settings.end,
        wrong=settings.wrong,
        model=lm.id,
        model_fingerprint=lm.fingerprint,
        vocabulary=lm.vocabulary,
        tokenizer_hash=lm.tokenizer_hash,
        values=kind,
        head=head,
        dtype=_value_dtype(settings.dtype, kind),
        computed=str(lm.dtype).removeprefix("torch."),
    )


def _built(recipe: Recipe, segment: Segment, now: Now) -> Content:
    parts = (Part(segment),)
    return Content(recipe, parts).edited("build", parts, changed=len(parts[0]), time=now())


def _state(folder: Path) -> str | None:
    """The state of the folder that a build is to replace; None: none, or a damaged one."""
    try:
        return read_manifest(folder).state
    except SpaceFormatError:
        return None


def _standing(folder: Path, plan: str, embedder: Embedder, now: Now) -> GroundingSpace | None:
    """The space that stands there, if it is whole and has what this plan would make."""
    try:
        standing = read_space(folder, embedder=embedder, now=now)
        return standing if standing.plan == plan else None
    except (SpaceFormatError, SpaceMismatchError):  # none, damaged, or made otherwise
        return None


def _value_kind(values: Values, head: str) -> str:
    if values == "hidden" and head == "opaque":
        raise SettingError(
            "this model's head is of no known form: its hidden states do not give its logits; "
            "use values='auto' or 'logits'"
        )
    if values == "auto":
        return "logits" if head == "opaque" else "hidden"
    return values


def _value_dtype(dtype: Dtype, kind: str) -> str:
    """Half precision leaves the tokens as they are where states are kept (docs/speed.md)."""
    if dtype == "auto":
        return "float16" if kind == "hidden" else "float32"
    return dtype
