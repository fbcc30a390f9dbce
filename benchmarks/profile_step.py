"""The last step of RAD, part by part: what each takes of it."""

from functools import partial
from statistics import median
from time import perf_counter

from measure import model, questions, space

import trueline as tl
from trueline.decoders.base import Step
from trueline.engines.transformers.reading import Reading
from trueline.shortcuts import without


def profile(quick):
    """Milliseconds of a step's parts, at batch 1 and 16, beside a step of greedy."""
    return {f"batch {batch}": _parts(batch, 6 if quick else 20) for batch in (1, 16)}


def _parts(batch, steps):
    lm, rad, asked = model(), tl.RAD(space()), questions(batch)
    answers = tl.generate(lm, rad, asked, max_new_tokens=steps + 2, batch_size=batch)
    prompts = [[tl.Prompt().encode(question, lm.tokenizer)] for question in asked]
    plain = Reading(lm, prompts)
    beside = Reading(lm, prompts, aside=partial(rad.begin, lm))
    times = {}

    def timed(name, work):
        begun = perf_counter()
        done = work()
        times.setdefault(name, []).append(1000 * (perf_counter() - begun))
        return done

    for place in range(steps):
        tokens = [answer.token_ids[place] for answer in answers]
        timed("forward pass alone", lambda: plain.extend(tokens))
        timed("forward pass with that beside it", lambda: beside.extend(tokens))
        timed("embed and search alone", lambda: rad.look_up(lm, beside.contexts, beside.starts))
        timed("windows to text", lambda: lm.decode_all([c[-8:] for c in beside.contexts]))
        evidence = timed("weigh what was found", lambda: rad.retrieve(lm, beside.found))
        timed("sum of states", lambda: [rad._pull(found, batch) for found in evidence])
        logits = timed("head", lambda: lm.head(plain.states.hidden))
        timed("pick", lambda: logits.argmax(-1).tolist())
        step = Step(lm, beside.contexts, beside.starts, beside.states, lookup=beside.found)
        timed("adjust in all", lambda: rad.adjust(step))
        again = Step(lm, beside.contexts, beside.starts, beside.states, lookup=beside.found)
        with without("fusion"):
            timed("adjust, fused after the head", lambda: rad.adjust(again))
    return {name: round(median(taken[2:]), 2) for name, taken in times.items()}
