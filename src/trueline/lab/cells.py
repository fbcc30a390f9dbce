"""A plan, a model and a benchmark -> the cells of a run, each with its own id."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueline.engines import load
from trueline.errors import SettingError
from trueline.examples import digest
from trueline.files import file_hash
from trueline.lab import results
from trueline.lab.benchmarks.tables import Benchmark, Sample, bare_letters
from trueline.lab.plan import (
    BUILD,
    SAMPLING,
    BuildOptions,
    Control,
    Plan,
    Variant,
    default_build,
)
from trueline.methods import PLAIN, default_settings, make_method, settings_fields
from trueline.prompts import chat_turn
from trueline.types import Sampling

if TYPE_CHECKING:
    from trueline.cluster import Cluster
    from trueline.engines.base import Engine
    from trueline.lab.judges import Judge
    from trueline.methods.base import Method
    from trueline.space import GroundingSpace


_PACKAGES = ("trueline", "torch", "transformers", "tokenizers", "numpy")
_OF_SPACES = ("onnxruntime", "faiss-cpu")  # what may embed and search, where it is installed
_OF_SCORES = ("rouge-score", "sacrebleu", "bert-score")


@dataclass(frozen=True, slots=True)
class Cell:
    """One method with its settings on the samples of one benchmark, ready to run."""

    lm: Engine
    benchmark: Benchmark
    method: Method
    samples: tuple[tuple[int, Sample], ...]  # with their places in the benchmark
    head: results.CellLine  # without machine and time
    sampling: Sampling  # without the seed
    encoder: tuple[Path, int, str | None] | None  # of BERTScore, as in the plan

    @property
    def id(self) -> str:
        return self.head.cell


def cells_of(
    plan: Plan,
    lm: Engine,
    benchmark: Benchmark,
    variant: Variant,
    space: GroundingSpace | None,
) -> list[Cell]:
    """The cells of one variant: one for each task, and for each seed if tokens are drawn."""
    neutral = {"neutral": False} if plan.confidence == "arithmetic-raw" else {}
    known, name, given = settings_fields(variant.method), variant.method, plan.sampling
    suited = {n: x for n, x in {**benchmark.settings, **neutral}.items() if n in known}
    settings = {**suited, **variant.settings}
    method = make_method(name, space=space, prompt=benchmark.prompt, settings=settings)
    if variant.control is Control.BOUNDARY:  # part of the name of the control
        suited["from_step"] = settings["from_step"]
    prompts = [benchmark.prompt.hash]
    if not method.needs.own_prompt:  # otherwise it differs from question to question
        filled = chat_turn(method.question_prompt, benchmark.test[0].question)
        prompts = [one.hash for one in method.inputs(filled)]
    stored = results.DecodingPart.__struct_fields__
    options = {n: getattr(given, n) for n in SAMPLING if n not in stored}
    stop = results.StopRule(given.stop_strings, tuple(sorted(lm.stop_ids)))
    cells, encoder, facts = [], plan.encoder, None
    if space is not None:
        build, usual, built = variant.build, default_build(name), space.info()
        facts = results.SpaceFacts(
            hash=space_hash(space, variant.needs_wrong),
            entries=built["entries"],
            build={option: getattr(build, option) for option in BUILD},
            default_build={option: getattr(usual, option) for option in BUILD},
            built={option: built.get(option) for option in BUILD},
        )
    for task in plan.tasks:
        is_generated = task == "generate"  # choices are scored; nothing is decoded for them
        samples = tuple(
            (index, sample)
            for index, sample in enumerate(benchmark.test)
            if is_generated or sample.single or sample.multiple
        )
        packages = _OF_SPACES * (space is not None) + _OF_SCORES * is_generated
        for seed in plan.seeds if is_generated and given.is_sampled else (None,):
            head = results.CellLine(
                cell="",
                # The model
                model=lm.id,
                fingerprint=lm.fingerprint,
                tokenizer_hash=lm.tokenizer_hash,
                dtype=str(lm.dtype).removeprefix("torch."),
                device=lm.device.type,
                # The data
                benchmark=benchmark.name,
                data_hash=benchmark.hash,
                samples=len(samples),
                counts=dict(benchmark.counts),
                ground=len(benchmark.ground),
                test=len(benchmark.test),
                ground_from=plan.ground_from,
                draw=plan.draw,
                rule=plan.rule,
                bertscore=encoder and (encoder[0].name, encoder[1]),
                bertscore_hash=_encoder_hash(encoder[0]) if encoder else "",
                # Decoding
                task=task,
                seed=seed,
                batch_size=plan.batch_size,
                fidelity=plan.fidelity,
                max_new_tokens=given.max_new_tokens if is_generated else None,
                temperature=float(given.temperature) if is_generated else 0.0,
                stop=stop if is_generated else None,
                sampling={n: x for n, x in options.items() if is_generated and x is not None},
                # The method
                method=name,
                control=variant.control,
                is_instead=variant.is_instead,
                is_plain=name == PLAIN,
                has_own_prompt=method.needs.own_prompt,
                settings=method.settings(),
                defaults={**default_settings(name), **suited},
                prompt_hashes=tuple(prompts),
                space=facts,
                versions=versions(type(method).__module__, packages),
            )
            head = results.replace_line(head, cell=cell_id(head))
            cells.append(Cell(lm, benchmark, method, samples, head, given, encoder))
    return [cell for cell in cells if cell.samples]


def cell_id(head: results.CellLine) -> str:
    """A short hash of the four parts of a cell.

    Names do not count: hashes of weights, data and space stand for what they name.
    """
    facts = {name: getattr(head, name) for name in results.MethodPart.__struct_fields__}
    del facts["cell"]
    for name in ("control", "fidelity", "sampling"):  # only if they are not the usual ones
        if not facts[name]:
            del facts[name]
    facts["space"] = head.space and head.space.hash
    facts["versions"] = {n: x for n, x in head.versions.items() if n != "python"}
    return _hash(results.plain(facts))


def grounding_space(
    lm: Engine,
    benchmark: Benchmark,
    options: BuildOptions,
    folder: Path,
    progress: Callable[[int, int], None] | None,
    on: Cluster | None = None,
) -> GroundingSpace:
    """The space of a benchmark, built once in a folder named by all that shapes it."""
    from trueline.space import build

    has_wrong = any(example.wrong_answers for example in benchmark.ground)
    options = replace(options, wrong=options.wrong and has_wrong)
    content: list[Any] = [lm.fingerprint, lm.tokenizer_hash, str(lm.dtype)]
    content += [digest(benchmark.ground), benchmark.prompt.hash, asdict(options)]
    name = "".join(sign if sign.isalnum() else "-" for sign in Path(benchmark.name).name)
    return build(
        lm,
        benchmark.ground,
        prompt=benchmark.prompt,
        out=folder / f"{name}-{_hash(content)}.space",
        on=on,
        progress=progress,
        **asdict(options),
    )


def space_hash(space: GroundingSpace, with_wrong: bool) -> str:
    """A hash of what a method sees of its space: wrong answers count only if it reads them.

    The names of model and embedder do not count; their weights do.
    """
    made = space.made_with() | {"embedder": ""}
    if made["entries"] is not None:
        made["entries"] |= {"model": "", "wrong": with_wrong}
    return _hash([made, digest(space.examples)])


def versions(module: str = "trueline", others: Sequence[str] = ()) -> dict[str, str]:
    """The versions of everything that computes, and of the source of a method's package.

    Its hash stands for its version: who writes a method changes it more often.
    """
    found = {name: text for name in (*_PACKAGES, *others) if (text := _version(name))}
    package = module.partition(".")[0]
    if package != "trueline":
        path = Path(getattr(sys.modules[package], "__file__", None) or "")
        sources = path.parent.rglob("*.py") if path.name == "__init__.py" else [path]
        found[f"{package} source"] = _files_hash(path.parent, sources) if path.name else ""
    return found | {"python": platform.python_version()}


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@cache
def _encoder_hash(folder: Path) -> str:
    """A hash of the files of an encoder, read once a process."""
    return _files_hash(folder, (path for path in folder.iterdir() if path.is_file()))


def _files_hash(folder: Path, paths: Iterable[Path]) -> str:
    return _hash([(x.relative_to(folder).as_posix(), file_hash(x)) for x in sorted(paths)])


def _hash(content: object) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def machine(on: Cluster | None = None) -> dict[str, Any]:
    """The machine of a run, without its name."""
    import torch

    found = {
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    return found if on is None else found | {"on": "ray", "threads": on.threads}


def model_of(plan: Plan, name: str) -> Engine:
    return load(
        name,
        engine=plan.engine,
        dtype=plan.dtype,
        device=plan.device,
        trust_remote_code=plan.trust_remote_code,
    )


def benchmark_of(plan: Plan, name: str) -> Benchmark:
    """Read a benchmark for a plan, perhaps with the examples of another one."""
    from trueline.lab.benchmarks import data_hash, read_benchmark

    read = partial(
        read_benchmark,
        data=None if plan.data is None else Path(plan.data),
        ground=plan.ground,
        test=None if plan.questions else plan.test,
        seed=plan.draw,
        rule=plan.rule,
        columns=plan.columns,
    )
    benchmark = replace(read(name), layout=plan.prompts)
    if plan.questions:
        wanted = set(map(bare_letters, plan.questions))
        test = tuple(one for one in benchmark.test if bare_letters(one.question) in wanted)
        counts = {**benchmark.counts, "test used": len(test)}
        hash = data_hash(benchmark.ground, test)
        benchmark = replace(benchmark, test=test, hash=hash, counts=counts)
    if not benchmark.test:
        raise SettingError(
            f"{name} has no sample to test on that fits the plan; change `test` or `questions`"
        )
    if plan.ground_from is None or plan.ground_from == name:
        return benchmark
    other = read(plan.ground_from)
    content = f"{benchmark.hash} {digest(other.ground)}"
    hash = hashlib.sha256(content.encode()).hexdigest()
    counts = {n: count for n, count in other.counts.items() if n.startswith("ground")}
    counts |= {n: x for n, x in benchmark.counts.items() if not n.startswith("ground")}
    return replace(benchmark, ground=other.ground, hash=hash, counts=counts)


def judges_of(plan: Plan, models: dict[str, Engine]) -> list[Judge]:
    """Open the judges of a plan; local ones share its models, by name."""
    from trueline.lab.judges import Limits, open_judge

    own = ("max_tokens", "questions")  # not how fast a service gets requests
    options = {name: x for name, x in plan.judge.items() if name in own}
    options["limits"] = Limits(**{n: x for n, x in plan.judge.items() if n not in own})
    judges = []
    for name in plan.judges:
        kind, _, model = name.partition(":")
        if kind == "local" and model:
            models[model] = models.get(model) or model_of(plan, model)
            judges.append(open_judge("local", **options, lm=models[model]))
        else:
            judges.append(open_judge(name, **options))
    return judges
