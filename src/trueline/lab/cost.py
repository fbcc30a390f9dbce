"""What a run will cost before it runs: answers, tokens, judge calls, dollars and hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from trueline.engines.models import ALIASES
from trueline.lab.benchmarks import BENCHMARKS
from trueline.lab.cells import benchmark_of, model_of
from trueline.lab.judges.questions import price_of, questions_for
from trueline.lab.paper.recipes import paper
from trueline.lab.plan import Plan
from trueline.methods import PLAIN, make_method

CALL = (300, 3)  # tokens of a question to a judge and of its reply, about
_PROBED = 16  # tokens
Price = tuple[float, float]  # dollars for a million tokens, read and written
Rate = Callable[[Plan, str], float | None]  # tokens a second of a model here


@dataclass(frozen=True, slots=True)
class Cost:
    """What one model on one benchmark costs; hours and tokens are an upper bound."""

    model: str
    benchmark: str
    answers: int  # of the methods, plain decoding included
    control_answers: int  # of controls, and of baselines that the plan does not name
    tokens: int  # if every answer is as long as it may be
    judge_calls: int  # that leave this machine or run a model
    dollars: float | None  # None: the price of a judge is not known
    hours: float | None  # None: the model is not here, so its speed was not measured


def costs_of(
    plans: Sequence[Plan], *, price: Price | None = None, rate: Rate = lambda *_: None
) -> list[Cost]:
    """What plans cost, a line for each model and benchmark; `price` is that of every judge."""
    found, speeds = [], dict[str, float | None]()
    for plan in plans:
        speeds |= {model: rate(plan, model) for model in plan.models if model not in speeds}
        own = [one for one in plan.variants if not one.control and not one.is_instead]
        seeds = len(plan.seeds) if plan.sampling.is_sampled else 1
        for benchmark in plan.benchmarks:
            samples = _count(plan, benchmark) * seeds
            answers, others = samples * len(own), samples * (len(plan.variants) - len(own))
            tokens = (answers + others) * plan.sampling.max_new_tokens
            task = BENCHMARKS[benchmark].task if benchmark in BENCHMARKS else "question"
            asked = len(questions_for(task)) * (answers + others)
            judges = [name for name in plan.judges if name != "offline"]
            dollars = [_dollars(name, asked, price) for name in judges]
            for model in plan.models:
                speed = speeds[model]
                found.append(
                    Cost(
                        model,
                        benchmark,
                        answers,
                        others,
                        tokens,
                        asked * len(judges),
                        None if None in dollars else sum(filter(None, dollars)),
                        None if speed is None else tokens / speed / 3600,
                    )
                )
    return found


def _count(plan: Plan, benchmark: str) -> int:
    """The questions of a benchmark; of the paper's, which may not be here, its number."""
    known = paper().tests.get(benchmark)
    if plan.data is None and known is not None:
        return min(known, plan.test or known)
    return len(benchmark_of(plan, benchmark).test)


def _dollars(judge: str, calls: int, price: Price | None) -> float | None:
    kind, _, model = judge.partition("@")[0].partition(":")
    if kind == "local":
        return 0.0
    if price is not None:
        return calls * sum(n * one for n, one in zip(CALL, price, strict=True)) / 1e6
    one = price_of(model or paper().judges.get(kind, ""), *CALL)
    return None if one is None else calls * one


def measured_rate(plan: Plan, model: str) -> float | None:
    """Tokens a second of plain decoding in batches of the plan; None: it is not here."""
    from trueline.decode.generate import generate

    is_here = ALIASES[model].is_cached if model in ALIASES else Path(model).exists()
    if not is_here:  # a look at the cost fetches nothing
        return None
    plain = make_method(PLAIN)
    lm, questions = model_of(plan, model), ["Are bats blind?"] * plan.batch_size
    generate(lm, plain, questions[:1], max_new_tokens=1)  # warms up
    start = perf_counter()
    answers = generate(lm, plain, questions, max_new_tokens=_PROBED, stop=())
    return sum(len(one.token_ids) for one in answers) / (perf_counter() - start)
