"""A plan and a name in it in; the model, benchmark or judge that is meant out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueline.errors import SettingError
from trueline.evaluation.plan import Plan
from trueline.evaluation.samples import Benchmark, bare_letters

if TYPE_CHECKING:
    from trueline.engines.base import Engine
    from trueline.evaluation.judges import Judge


def model_of(plan: Plan, name: str) -> Engine:
    """Open a model as a plan wants it."""
    from trueline.session import open_session

    return open_session(
        [],
        model=name,
        dtype=plan.dtype,
        device=plan.device,
        trust_remote_code=plan.trust_remote_code,
    ).lm


def benchmark_of(plan: Plan, name: str) -> Benchmark:
    """Read a benchmark as a plan wants it, its examples perhaps those of another one."""
    from trueline.evaluation.benchmarks import read_benchmark
    from trueline.examples import digest

    def read(name: str) -> Benchmark:
        return read_benchmark(
            name,
            data=plan.data,
            ground=plan.ground,
            test=None if plan.questions else plan.test,
            seed=plan.draw,
            rule=plan.rule,
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
    from trueline.evaluation.benchmarks.pools import data_hash

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
    from trueline.evaluation.judges import Limits, open_judge

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
    from trueline.evaluation.metrics import BertScore, bleu, rouge_l

    for score in (bleu, rouge_l):
        score("a", ["a"])
    if plan.bertscore is not None and plan.bertscore_layers is not None:
        encoder = (Path(plan.bertscore), plan.bertscore_layers, plan.bertscore_baseline)
        BertScore(*encoder).scores([], [])
