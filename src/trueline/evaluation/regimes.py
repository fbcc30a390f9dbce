"""An answer and how its question probes a method -> right or not, fluent or not.

The measures are those of knowledge editing (GRACE 2211.11031, SERAC 2206.06520, IKE 2305.12740,
DeCK 2405.11613): efficacy on the examples' own questions, generalisation on other wordings,
locality on questions that no example answers, and fluency of what is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from trueline.evaluation.fluency import (
    is_part,
    is_repeated,
    is_run_together,
    keeps_form,
    says_wrong_polarity,
    words_of,
)
from trueline.evaluation.metrics import is_right, rouge_l_sides
from trueline.evaluation.samples import Match, Probe
from trueline.examples.asked import Regime
from trueline.records import Example

_TOLD = 0.5  # share of a truthful answer's words, in order, from which on it is told
_FROM_ENTRY = 0.8  # share of an answer's words, in order, that are those of a long entry
_FEWEST = 8  # words an answer from a long entry has at least
_TARGET = 4  # words a target has at most, where nobody says what counts as right
_ENTRY = 60  # words a long entry has at least, likewise


def probe_scores(probe: Probe, text: str, is_cut: bool) -> dict[str, float | None]:
    """What an answer is worth in its regime; no score where there is nothing to score."""
    # A request for two sentences or a text may well be answered with both answers of a fact.
    is_brief = probe.regime in ("exact", "paraphrase", "double")
    answers = [example.answers for example in probe.meant] if is_brief else []
    scores = {
        "repeated": is_repeated(text),
        "joined": any(is_run_together(text, one) for one in answers or [()]),
        "cut": is_cut,
    }
    scores["fluent"] = not any(scores.values())
    if probe.meant:
        scores["right"] = all(says(text, one, probe.match) for one in probe.meant)
    if probe.check:
        scores["form"] = keeps_form(text, probe.check)
    if probe.polarity:
        scores["wrong_polarity"] = says_wrong_polarity(text, probe.polarity)
    return {name: float(flag) for name, flag in scores.items()}


def says(text: str, example: Example, match: Match) -> bool:
    """Whether an answer says what an example says, by one of four rules.

    wording: its words are those of a truthful answer and nearer to it than to a wrong one.
    told: it holds most of a truthful answer's words in order, and less of every wrong one.
    target: it holds a truthful answer whole, and beside it no wrong one.
    entry: at least 8 words, or as many as the entry has, and most of them are the entry's.
    """
    if match == "wording":
        return is_right(text, example.answers, example.wrong_answers)
    if match == "told":
        true, false = (
            max((rouge_l_sides(text, one)[1] for one in kind), default=0.0)
            for kind in (example.answers, example.wrong_answers)
        )
        return true >= _TOLD and true > false
    if match == "target":
        return any(_hits(words_of(text), one, example) for one in example.answers)
    length = len(words_of(text))
    return any(
        length >= min(_FEWEST, len(words_of(one)))
        and rouge_l_sides(text, one)[0] >= _FROM_ENTRY
        for one in example.answers
    )


def match_for(regime: Regime, examples: Sequence[Example]) -> Match:
    """The rule that suits the examples a question means, where nobody chose one."""
    if regime in ("styled", "double", "mid-text"):
        return "told"
    lengths = [len(words_of(answer)) for one in examples for answer in one.answers]
    if lengths and max(lengths) <= _TARGET:
        return "target"
    return "entry" if lengths and min(lengths) >= _ENTRY else "wording"


def _hits(said: Sequence[str], target: str, example: Example) -> bool:
    """Whether a target stands in what was said, and no wrong answer in the rest of it."""
    wanted = words_of(target)
    if not wanted or not is_part(wanted, said):
        return False
    rest, at = list[str](), 0
    while at < len(said):
        if tuple(said[at : at + len(wanted)]) == wanted:
            rest.append("")  # what stands before and behind is not one text
            at += len(wanted)
        else:
            rest.append(said[at])
            at += 1
    return not any(
        words and is_part(words, rest) for words in map(words_of, example.wrong_answers)
    )
