"""Tokens a second: RAD against greedy, greedy against transformers, RAD against the paper."""

import sys
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch
from measure import MODEL, model, questions, rate, seconds, space
from paper import PaperDecoder
from transformers import AutoModelForCausalLM

import trueline as tl
from trueline.decode.generate import make_request
from trueline.decode.loop import Decoding
from trueline.engines.models import resolve
from trueline.types import Sampling


def rates(quick):
    """RAD, greedy and transformers' own greedy, at batch 1 and 16, in float32 and bfloat16.

    The three take turns token by token, so that whatever else slows the machine slows all; the
    ratios are medians over answers.
    """
    found = {}
    for dtype in ("float32",) if quick else ("float32", "bfloat16"):
        for batch in (1, 16):
            is_slow = dtype == "bfloat16" and batch > 1  # where there is no arithmetic for it
            length = 8 if quick else 16 if is_slow else 64
            answers = 1 if quick or is_slow else 2 if batch > 1 else 5
            taken = _by_turns(dtype, batch, length, answers)
            found[f"{dtype}, batch {batch}"] = {
                "new_tokens": length,
                "answers": answers,
                "tokens_per_second": {
                    name: round(batch * length / median(times), 1)
                    for name, times in taken.items()
                },
                "rad_over_greedy": rate(taken, "rad", "greedy"),
                "greedy_over_transformers": rate(taken, "greedy", "transformers"),
            }
            print(f"rates: {dtype}, batch {batch} {found}", file=sys.stderr)
    return found


def _by_turns(dtype, batch, length, answers):
    """The seconds of every answer of each side, its prompt included."""
    tokenizer, asked = model().tokenizer, questions(batch)
    theirs = AutoModelForCausalLM.from_pretrained(
        resolve(MODEL, "language").folder, dtype=getattr(torch, dtype)
    ).eval()
    prompts = [tl.Prompt().encode(question, tokenizer) for question in asked]
    padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    taken = {"transformers": [], "greedy": [], "rad": []}
    for count in (2, *[length] * answers):
        turns = Turns(_loops(dtype, asked, count))
        exact = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        theirs.generate(**padded, **exact, streamer=turns)
        if count == length:  # the first turn opens what is needed
            for name, times in turns.times.items():
                taken[name].append(sum(times))
    return taken


def _loops(dtype, asked, length):
    """Our loop over the same questions, by method; it stops behind every token."""
    lm, methods = model(dtype), {"greedy": tl.Greedy(), "rad": tl.RAD(space())}
    return {name: _steps(lm, method, asked, length) for name, method in methods.items()}


def _steps(lm, method, asked, length):
    """The rows of a batch behind every token."""
    method.check(lm)
    decoding, options = (
        Decoding(lm, max_rows=len(asked)),
        Sampling(max_new_tokens=length),
    )
    for index, question in enumerate(asked):
        decoding.submit(make_request(lm, method, question, options, index=index))
    return iter(decoding.step, [])


class Turns:
    """What transformers hands its tokens to; before it goes on, each of our loops has a turn."""

    def __init__(self, loops):
        """Nothing is timed before the prompt comes in."""
        self._loops, self._begun = loops, None
        self.times = {name: [] for name in ("transformers", *loops)}

    def put(self, _):
        """The prompt, then every token."""
        now = perf_counter()
        if self._begun is not None:
            self.times["transformers"].append(now - self._begun)
            turn = len(self.times["transformers"])
            for name in self._loops if turn % 2 else reversed(self._loops):
                self.times[name].append(seconds(lambda: next(self._loops[name])))
        self._begun = perf_counter()

    def end(self):
        """Nothing is left to do."""


def paper(quick):
    """Answers of growing length by RAD, and by the procedure as the paper has it.

    It takes one row at a time, so sixteen questions take it sixteen times as long as one. The
    sides take turns token by token.
    """
    marks, found = (16,) if quick else (16, 64, 256), {}
    slow = PaperDecoder(model(), space())
    _against_paper(slow, 2)  # opens what is needed
    times, is_equal = _against_paper(slow, marks[-1])
    for mark in marks:
        taken = {name: sum(steps[:mark]) for name, steps in times.items()}
        found[mark] = {
            "paper_seconds": round(taken["paper"], 2),
            "rad_seconds": round(taken["rad"], 2),
            "rad_seconds_for_16": round(taken["together"], 2),
            "times_as_fast_alone": round(taken["paper"] / taken["rad"], 1),
            "times_as_fast": round(16 * taken["paper"] / taken["together"], 1),
            "tokens_equal": is_equal,
        }
        print(f"paper: {mark} tokens {found[mark]}", file=sys.stderr)
    return found


def _against_paper(slow, length):
    """The seconds of every token of each side, and whether one question's tokens are equal."""
    (asked,) = questions(1)
    sides = {
        "paper": slow.steps(asked),
        "rad": _loops("float32", [asked], length)["rad"],
        "together": _loops("float32", questions(16), length)["rad"],
    }
    times, last, theirs = {name: [] for name in sides}, {}, []
    for _ in range(length):
        for name, side in sides.items():
            times[name].append(seconds(lambda: last.update({name: next(side)})))
        theirs.append(last["paper"])
    return times, theirs == last["rad"][0].tokens


def lengths(quick):
    """Milliseconds a token in answers of growing length, and behind a long prompt: medians.

    Greedy and RAD take turns token by token, as far as greedy goes.
    """
    marks = (8, 16, 32) if quick else (8, 16, 64, 256, 1024)
    goes = {"greedy": marks[-1] if quick else marks[-2], "rad": marks[-1]}
    _token_times(questions(1), dict.fromkeys(goes, 2))  # opens what is needed
    times = _token_times(questions(1), goes)
    behind = _token_times([" ".join(questions(40))], dict.fromkeys(goes, 33))  # some 600 tokens
    found = {}
    for name, taken in times.items():
        found[name] = {
            f"tokens {low + 1} to {high}": round(1000 * median(taken[low:high]), 1)
            for low, high in pairwise(marks)
            if high <= goes[name]
        }
        found[name]["long prompt, tokens 2 to 33"] = round(1000 * median(behind[name][1:]), 1)
        print(f"lengths: {name} {found[name]}", file=sys.stderr)
    return found


def _token_times(asked, goes):
    """The seconds of every token of greedy and of RAD, each as far as it goes."""
    times = {name: [] for name in goes}
    loops = _loops("float32", asked, max(goes.values()))
    for turn in range(max(goes.values())):
        for name, loop in loops.items():
            if turn < goes[name]:
                times[name].append(seconds(lambda: next(loop)))
    return times
