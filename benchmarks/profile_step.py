"""The last step of RAD, part by part: what each takes of it."""

from contextlib import nullcontext
from statistics import median
from time import perf_counter

from measure import model, questions, space

import trueline as tl
from trueline.decode.loop import Alongside
from trueline.methods.base import Rows, Step


def profile(quick):
    """Milliseconds of a step's parts, at batch 1 and 16, beside a step of greedy."""
    return {f"batch {batch}": _parts(batch, 6 if quick else 20) for batch in (1, 16)}


def _parts(batch, steps):
    lm, rad, asked = model(), tl.RAD(space()), questions(batch)
    answers = tl.generate(lm, rad, asked, max_new_tokens=steps + 2, batch_size=batch)
    contexts = [tl.Prompt().encode(question, lm.tokenizer) for question in asked]
    starts = [len(context) for context in contexts]
    plain, shared = lm.start(states=True), lm.start(states=True)
    plain.join(contexts)
    shared.join(contexts)
    times = {}

    def timed(name, work):
        begun = perf_counter()
        done = work()
        times.setdefault(name, []).append(1000 * (perf_counter() - begun))
        return done

    def with_lookup(tokens):
        work = Alongside([rad.prefetch(Rows(lm, contexts, starts))], lm.device)
        with nullcontext() if work.done is None else lm.leave_core(work.done):
            return shared.extend(tokens), work.results()[0]

    for index in range(steps):
        tokens = [answer.token_ids[index] for answer in answers]
        contexts = [[*context, token] for context, token in zip(contexts, tokens, strict=True)]
        rows = Rows(lm, contexts, starts)
        timed("forward pass alone", lambda: plain.extend(tokens))
        states, found = timed("forward pass with that beside it", lambda: with_lookup(tokens))
        timed("embed and search alone", lambda: rad.prefetch(rows)())
        timed("windows to text", lambda: lm.decode_all([c[-8:] for c in contexts]))
        evidence = timed("weigh what was found", lambda: rad.weighed(rows, found))
        timed("sum of states", lambda: [one.aggregated(is_state=True) for one in evidence])
        logits = timed("head", lambda: lm.head(states.hidden))
        timed("pick", lambda: logits.argmax(-1).tolist())
        timed("adjust in all", lambda: rad.adjust(Step(rows, states, fetched=found)))
    return {name: round(median(taken[2:]), 2) for name, taken in times.items()}
