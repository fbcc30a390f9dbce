"""Tokens a second: RAD against greedy, greedy against transformers, RAD against the paper."""

import sys
from itertools import pairwise

import torch
from measure import MODEL, interleaved, model, questions, rate, seconds, space
from paper import PaperDecoder
from transformers import AutoModelForCausalLM

import trueline as tl
from trueline.generation import _decode, _ending, _rows
from trueline.models.sources import resolve
from trueline.pick import Pick
from trueline.shortcuts import SHORTCUTS, without


def rates(quick):
    """RAD, greedy and transformers' own greedy, at batch 1 and 16, in float32 and bfloat16.

    RAD and greedy take turns token by token, so that whatever else slows the machine slows
    both. transformers' loop cannot be stopped between tokens: there whole answers take turns.
    """
    found = {}
    for dtype in ("float32",) if quick else ("float32", "bfloat16"):
        for batch in (1, 16):
            print(f"rates: {dtype}, batch {batch}", file=sys.stderr)
            length = 16 if quick or dtype == "bfloat16" else 64
            steps = _lockstep(dtype, batch, length, 1 if quick or batch > 1 else 3)
            rounds = (
                1 if quick else (8 if batch == 1 else 4) // (2 if dtype == "bfloat16" else 1)
            )
            whole = interleaved(_sides(dtype, batch, 16), rounds)
            found[f"{dtype}, batch {batch}"] = {
                "new_tokens": length,
                "tokens_per_second": {
                    name: round(batch * len(taken) / sum(taken), 1)
                    for name, taken in steps.items()
                },
                "rad_over_greedy": round(sum(steps["greedy"]) / sum(steps["rad"]), 3),
                "greedy_over_transformers": rate(whole, "greedy", "transformers"),
            }
    return found


def _lockstep(dtype, batch, length, answers):
    """The seconds of every token of greedy and RAD, prompts read included, by turns."""
    lm, methods = model(dtype), {"greedy": tl.Greedy(), "rad": tl.RAD(space())}
    times = {name: [] for name in methods}
    pick, ending = Pick(0.0, None, None, False, None), _ending(lm, (), ())
    for turn in range(answers + 1):
        loops = {
            name: _decode(
                lm, method, _rows(lm, method, questions(batch), length), pick, ending, False
            )
            for name, method in methods.items()
        }
        for place in range(2 if turn == 0 else length):
            order = loops if place % 2 else reversed(loops)
            for name in order:
                taken = seconds(lambda: next(loops[name]))
                if turn:  # the first turn opens what is needed
                    times[name].append(taken)
    return times


def _sides(dtype, batch, length):
    lm, asked, tokenizer = model(dtype), questions(batch), model().tokenizer
    plain = AutoModelForCausalLM.from_pretrained(
        resolve(MODEL, "language").folder, dtype=getattr(torch, dtype)
    ).eval()
    prompts = [tl.Prompt().encode(question, tokenizer) for question in asked]
    padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    exact = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False}
    options = {"max_new_tokens": length, "batch_size": batch}
    return {
        "greedy": lambda: tl.generate(lm, tl.Greedy(), asked, **options),
        "transformers": lambda: plain.generate(**padded, **exact),
    }


def paper(quick):
    """Answers of growing length by RAD, and by the procedure as the paper has it.

    It takes one row at a time, so sixteen questions take it sixteen times as long as one.
    """
    slow, rad = PaperDecoder(model(), space()), tl.RAD(space())
    (asked,) = questions(1)
    tl.generate(model(), rad, asked, max_new_tokens=4)
    slow.decode(asked, 1)
    found = {}
    for length in (16, 64) if quick else (16, 64, 256):
        options = {"max_new_tokens": length, "batch_size": 16}
        alone = seconds(lambda: tl.generate(model(), rad, asked, **options))
        together = seconds(lambda: tl.generate(model(), rad, questions(16), **options))
        tokens = []
        theirs = seconds(lambda: tokens.extend(slow.decode(asked, length)))
        mine = list(tl.generate(model(), rad, asked, max_new_tokens=length).token_ids)
        print(f"paper: {length} tokens, {theirs:.1f} s", file=sys.stderr)
        found[length] = {
            "paper_seconds": round(theirs, 2),
            "rad_seconds": round(alone, 2),
            "rad_seconds_for_16": round(together, 2),
            "times_as_fast_alone": round(theirs / alone, 1),
            "times_as_fast": round(16 * theirs / together, 1),
            "tokens_equal": mine == tokens,
        }
    return found


def shortcuts(quick):
    """RAD at batch 16 with each shortcut switched off in turn, against all of them on."""
    rad, asked = tl.RAD(space()), questions(16)
    options = {"max_new_tokens": 8 if quick else 16, "batch_size": 16}

    def run(*names):
        with without(*names) if names else without("index"):
            return tl.generate(model(), rad, asked, **options)

    sides = {"all on": run} | {
        f"without {name}": lambda name=name: run(name) for name in SHORTCUTS if name != "index"
    }
    times = interleaved(sides, 1 if quick else 2)
    tokens = [answer.token_ids for answer in run()]
    return {
        name: {
            "times_as_slow": rate(times, "all on", name),
            "tokens_equal": [answer.token_ids for answer in work()] == tokens,
        }
        for name, work in sides.items()
    }


def lengths(quick):
    """Milliseconds a token in answers of growing length, and behind a long prompt."""
    marks = (8, 16, 64) if quick else (8, 16, 64, 256, 1024)
    long = " ".join(questions(40))  # a prompt of some 600 tokens
    found = {}
    for name, method in {"greedy": tl.Greedy(), "rad": tl.RAD(space())}.items():
        marks = marks[:4] if name == "greedy" else marks  # the last is as long as all others

        def taken(asked, length, method=method):
            return seconds(lambda: tl.generate(model(), method, asked, max_new_tokens=length))

        taken(questions(1), 2)
        times = {mark: taken(questions(1), mark) for mark in marks}
        spans = pairwise(marks)
        found[name] = {
            f"tokens {low + 1} to {high}": round(
                1000 * (times[high] - times[low]) / (high - low), 1
            )
            for low, high in spans
        }
        first, more = taken([long], 1), taken([long], 33)
        found[name]["long prompt, tokens 2 to 33"] = round(1000 * (more - first) / 32, 1)
        print(f"lengths: {name} {found[name]}", file=sys.stderr)
    return found
