"""A plan and a name in it in; the model or the benchmark that is meant out."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from trueline.errors import SettingError
from trueline.evaluation.plan import Plan
from trueline.evaluation.samples import Benchmark

if TYPE_CHECKING:
    from trueline.models.language import LanguageModel


def model_of(plan: Plan, name: str) -> LanguageModel:
    """Open a model as a plan wants it."""
    from trueline.models.language import load

    return load(
        name,
        dtype=plan.dtype,
        device=plan.device,
        trust_remote_code=plan.trust_remote_code,
    )


def benchmark_of(plan: Plan, name: str) -> Benchmark:
    """Read a benchmark as a plan wants it, its examples perhaps those of another one."""
    from trueline.evaluation.benchmarks import read_benchmark
    from trueline.examples import digest

    def read(name: str) -> Benchmark:
        return read_benchmark(
            name,
            data=plan.data,
            ground=plan.ground,
            test=plan.test,
            seed=plan.draw,
            rule=plan.rule,
        )

    found = read(name)
    if not found.test:
        raise SettingError(f"{name} has no sample to test on")
    if plan.ground_from in (None, name):
        return found
    ground = read(plan.ground_from or name).ground
    content = f"{found.hash} {digest(ground)}"
    return replace(found, ground=ground, hash=sha256(content.encode()).hexdigest())
