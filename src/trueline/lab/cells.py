"""A model, a benchmark and a variant -> the cells of a run, each with its own id."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueline.errors import SettingError
from trueline.files import file_hash, reason
from trueline.lab.plan import (
    BuildOptions,
    Control,
    Mode,
    Plan,
    Variant,
    default_build,
    settings_past_boundary,
)
from trueline.lab.results import CellLine, SpaceFacts, StopRule, plain, replace_line
from trueline.lab.samples import Benchmark, Sample, bare_letters
from trueline.methods import PLAIN, default_settings, settings_fields
from trueline.prompts import FilledPrompt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trueline.cluster import Cluster
    from trueline.engines.base import Engine
    from trueline.lab.judges import Judge
    from trueline.methods.base import Method
    from trueline.space.space import GroundingSpace


_PACKAGES = ("trueline", "torch", "transformers", "tokenizers", "numpy")
_OF_SPACES = ("onnxruntime", "faiss-cpu")  # what may embed and search, where it is installed
_OF_SCORES = ("rouge-score", "sacrebleu", "bert-score")
_BUILT = ("context", "window", "end", "embedder", "values", "dtype")
_NOT_IN_ID = (  # names and origins: hashes of weights, data and space stand for what they name
    *("kind", "cell", "model", "defaults", "counts", "ground_from", "draw", "rule"),
    *("is_plain", "is_instead", "has_own_prompt", "machine", "time"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One method with its settings on the samples of one benchmark, ready to run."""

    lm: Engine
    benchmark: Benchmark
    decoder: Method
    samples: tuple[tuple[int, Sample], ...]  # with their places in the benchmark
    head: CellLine  # what stands ahead of its results, without machine and time
    variant: Variant
    space: GroundingSpace | None = None

    @property
    def id(self) -> str:
        """A short hash of everything that shapes the results."""
        return self.head.cell


def cells_of(
    plan: Plan,
    lm: Engine,
    benchmark: Benchmark,
    variant: Variant,
    space: GroundingSpace | None,
) -> list[Cell]:
    """The cells of one variant: a task each, and where there is sampling a seed each."""
    from trueline.session import Session  # here, so that --help stays instant

    shared = {**benchmark.settings, **plan.shared_settings}
    suited = {n: x for n, x in shared.items() if n in settings_fields(variant.method)}
    settings = {**suited, **variant.settings}
    decoder = Session(lm, space).method(variant.method, settings, prompt=benchmark.prompt)
    found = []
    for task in plan.tasks:
        samples = tuple(
            (index, sample)
            for index, sample in enumerate(benchmark.test)
            if task == "generate" or sample.single or sample.multiple
        )
        is_sampled = task == "generate" and plan.temperature > 0
        for seed in plan.seeds if is_sampled else (None,):
            head = CellLine(
                cell="",
                seed=seed,
                samples=len(samples),
                defaults={**default_settings(variant.method), **suited, **_past(variant)},
                space=None if space is None else _space_facts(variant, space),
                versions=_versions(decoder, space, task),
                **_run_facts(plan, lm, task),
                **_method_facts(variant, decoder, benchmark),
                **_data_facts(plan, benchmark),
            )
            head = replace_line(head, cell=cell_id(head))
            found.append(Cell(lm, benchmark, decoder, samples, head, variant, space))
    return [cell for cell in found if cell.samples]


def _past(variant: Variant) -> dict[str, Any]:
    """The settings that make a control; they are nothing its user set."""
    if variant.control is not Control.BOUNDARY or variant.build is None:
        return {}
    return settings_past_boundary(variant.method, variant.build.context)


def cell_id(head: CellLine) -> str:
    """A short hash of everything that shapes the results of a cell."""
    try:
        facts = {name: x for name, x in plain(head).items() if name not in _NOT_IN_ID}
    except TypeError as error:
        raise SettingError(f"a setting of {head.method} is no plain value ({error})") from error
    if head.space is not None:
        facts["space"] = head.space.hash
    for name in ("control", "fidelity"):  # so that cells of before them keep their ids
        if not facts[name]:
            del facts[name]
    facts["versions"] = {n: x for n, x in head.versions.items() if n != "python"}
    return _hash(facts)


def grounding_space(
    lm: Engine,
    benchmark: Benchmark,
    options: BuildOptions,
    folder: Path,
    progress: Callable[[int, int], None] | None,
    on: Cluster | None = None,
) -> GroundingSpace:
    """The space of a benchmark, built once in a folder named by all that shapes it."""
    from trueline.examples import digest
    from trueline.space.build import build

    has_wrong = any(example.wrong_answers for example in benchmark.ground)
    options = replace(options, wrong=options.wrong and has_wrong)
    content = [
        lm.fingerprint,
        lm.tokenizer_hash,
        str(lm.dtype),
        digest(benchmark.ground),
        benchmark.prompt.hash,
        asdict(options),
    ]
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
    """A hash of what a method sees of its space: wrong answers count only where they are read.

    The names of model and embedder do not count either; their weights do.
    """
    from trueline.examples import digest

    recipe = asdict(space.recipe) | {"model": "", "embedder": "", "wrong": with_wrong}
    return _hash([recipe, digest(space.examples)])


def versions(module: str = "trueline", others: Sequence[str] = ()) -> dict[str, str]:
    """The versions of everything that computes, also of the package that brings a method.

    Of such a package the hash of its source counts too: whoever writes a method changes it more
    often than its version.
    """
    found = {name: text for name in (*_PACKAGES, *others) if (text := _version(name))}
    package = module.partition(".")[0]
    if package != "trueline":
        names = _distributions().get(package, ())
        found |= {name: _version(name) for name in names}
        found[f"{package} source"] = _source_hash(package)
    return found | {"python": platform.python_version()}


@cache
def _version(name: str) -> str:
    """The version of a package; empty where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@cache
def _distributions() -> Mapping[str, list[str]]:
    """The distributions of each package; looked up once, as it reads every one installed."""
    return packages_distributions()


def _source_hash(package: str) -> str:
    """A hash of the Python of a package; empty where it stands in no file."""
    file = getattr(sys.modules[package], "__file__", None)
    if file is None:
        return ""
    path = Path(file)
    sources = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    found = [(one.relative_to(path.parent).as_posix(), one, one.stat()) for one in sources]
    return _hash([(name, _hash_at(one, x.st_mtime_ns, x.st_size)) for name, one, x in found])


@cache
def _hash_at(path: Path, time: int, size: int) -> str:
    """The hash of a file as it was at a time; read again only where it was written since."""
    return file_hash(path)


def machine(on: Cluster | None = None) -> dict[str, Any]:
    """What the run stands on, without the name of the host."""
    import torch

    found = {
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    return found if on is None else found | {"on": "ray", "threads": on.threads}


def _run_facts(plan: Plan, lm: Engine, task: Mode) -> dict[str, Any]:
    """The model, and how answers are generated, which is nothing to the scoring of choices."""
    is_choice = task == "choose"
    return {
        "task": task,
        "batch_size": plan.batch_size,
        "max_new_tokens": None if is_choice else plan.max_new_tokens,
        "temperature": 0.0 if is_choice else float(plan.temperature),
        "stop": None if is_choice else StopRule(plan.stop, tuple(sorted(lm.stop_ids))),
        "model": lm.id,
        "fingerprint": lm.fingerprint,
        "tokenizer_hash": lm.tokenizer_hash,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "device": lm.device.type,
    }


def _method_facts(variant: Variant, decoder: Method, benchmark: Benchmark) -> dict[str, Any]:
    prompts = [benchmark.prompt.hash]
    if not decoder.needs.own_prompt:  # else it differs from question to question
        given = FilledPrompt(decoder.question_prompt, benchmark.test[0].question)
        prompts = [one.hash for one in decoder.inputs(given)]
    return {
        "method": variant.method,
        "control": variant.control,
        "is_instead": variant.is_instead,
        "is_plain": variant.method == PLAIN,
        "has_own_prompt": decoder.needs.own_prompt,
        "settings": decoder.settings(),
        "prompt_hashes": tuple(prompts),
    }


def _versions(decoder: Method, space: GroundingSpace | None, task: Mode) -> dict[str, str]:
    of_space = _OF_SPACES if space is not None else ()
    of_scores = _OF_SCORES if task == "generate" else ()
    return versions(type(decoder).__module__, (*of_space, *of_scores))


def _space_facts(variant: Variant, space: GroundingSpace) -> SpaceFacts:
    given, usual = variant.build, default_build(variant.method)
    build, default = ({name: getattr(one, name) for name in _BUILT} for one in (given, usual))
    return SpaceFacts(
        hash=space_hash(space, variant.needs_wrong),
        entries=space.info()["entries"],
        build=build,
        default_build=default,
        built={name: getattr(space.recipe, name) for name in _BUILT},
    )


def _data_facts(plan: Plan, benchmark: Benchmark) -> dict[str, Any]:
    layers = plan.bertscore_layers
    return {
        "benchmark": benchmark.name,
        "data_hash": benchmark.hash,
        "counts": dict(benchmark.counts),
        "ground_from": plan.ground_from,
        "ground": len(benchmark.ground),
        "test": len(benchmark.test),
        "draw": plan.draw,
        "rule": plan.rule,
        "bertscore": (Path(plan.bertscore).name, layers) if plan.bertscore else None,
        "bertscore_hash": _folder_hash(plan.bertscore) if plan.bertscore else "",
        "fidelity": plan.fidelity,
    }


@cache
def _folder_hash(folder: str) -> str:
    """A hash of the files of an encoder; read once a process, as its weights are."""
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.is_file())
        return _hash([(path.name, file_hash(path)) for path in files])
    except OSError as error:
        raise SettingError(f"{folder} cannot be read ({reason(error)})") from error


def _hash(content: object) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def model_of(plan: Plan, name: str) -> Engine:
    """Open a model as a plan wants it."""
    from trueline.session import open_session

    return open_session(
        [],
        model=name,
        engine=plan.engine,
        dtype=plan.dtype,
        device=plan.device,
        trust_remote_code=plan.trust_remote_code,
    ).lm


def benchmark_of(plan: Plan, name: str) -> Benchmark:
    """Read a benchmark as a plan wants it, its examples perhaps those of another one."""
    from trueline.examples import digest
    from trueline.lab.benchmarks import read_benchmark

    def read(name: str) -> Benchmark:
        return read_benchmark(
            name,
            data=plan.data,
            ground=plan.ground,
            test=None if plan.questions else plan.test,
            seed=plan.draw,
            rule=plan.rule,
            columns=plan.columns,
        )

    found = replace(_asked(read(name), plan.questions), layout=plan.prompts)
    if not found.test:
        raise SettingError(f"{name} has no sample to test on")
    if plan.ground_from in (None, name):
        return found
    other = read(plan.ground_from or name)
    content = f"{found.hash} {digest(other.ground)}"
    grounding = {n: count for n, count in other.counts.items() if n.startswith("ground")}
    testing = {n: count for n, count in found.counts.items() if not n.startswith("ground")}
    return replace(
        found,
        ground=other.ground,
        hash=sha256(content.encode()).hexdigest(),
        counts={**grounding, **testing},
    )


def _asked(benchmark: Benchmark, questions: Sequence[str]) -> Benchmark:
    """A benchmark with the named questions alone, as far as it has them."""
    from trueline.lab.benchmarks.tables import data_hash

    if not questions:
        return benchmark
    wanted = {bare_letters(question) for question in questions}
    test = tuple(one for one in benchmark.test if bare_letters(one.question) in wanted)
    if not test:
        raise SettingError(f"{benchmark.name} has none of the {len(questions)} questions asked")
    counts = {**benchmark.counts, "test used": len(test)}
    hashed = data_hash(benchmark.ground, test)
    return replace(benchmark, test=test, hash=hashed, counts=counts)


def judges_of(plan: Plan, models: dict[str, Engine]) -> list[Judge]:
    """Open the judges of a plan; those on this machine share its models, by name."""
    if not plan.judges:
        return []
    from trueline.lab.judges import Limits, open_judge

    own = ("max_tokens", "questions")  # not how hard a service is asked
    options: dict[str, Any] = {name: plan.judge[name] for name in own if name in plan.judge}
    limits = {name: value for name, value in plan.judge.items() if name not in own}
    options["limits"] = Limits(**limits)
    found = []
    for name in plan.judges:
        kind, _, model = name.partition(":")
        if kind == "local" and model:
            if model not in models:
                models[model] = model_of(plan, model)
            found.append(open_judge("local", **{**options, "lm": models[model]}))
        else:
            found.append(open_judge(name, **options))
    return found


def check_scorers(plan: Plan) -> None:
    """Open what scores texts: a missing extra or encoder shows before anything is run."""
    from trueline.lab.metrics import BertScore, bleu, rouge_l

    for score in (bleu, rouge_l):
        score("a", ["a"])
    if plan.bertscore is not None and plan.bertscore_layers is not None:
        encoder = (Path(plan.bertscore), plan.bertscore_layers, plan.bertscore_baseline)
        BertScore(*encoder).scores([], [])
