"""An answer, its references and its regime, or scores of candidates -> scores from 0 to 1.

The measures of the regimes are those of knowledge editing (GRACE 2211.11031, SERAC 2206.06520,
IKE 2305.12740, DeCK 2405.11613): efficacy on the examples' own questions, generalisation on
other wordings, locality on questions that no example answers, and fluency of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trueline.errors import SettingError, import_extra
from trueline.examples import Regime
from trueline.explain.summary import entropy_quartiles
from trueline.lab.samples import Match, Probe
from trueline.lab.statistics import as_columns, average_ranks
from trueline.types import Example

_ALIKE = 0.5  # ROUGE-L from which on two texts say the same
Score = Callable[[str, Sequence[str]], float]  # of an answer against references
_TOLD = 0.5  # share of a truthful answer's words, in order, from which on it is told
_FROM_ENTRY = 0.8  # share of an answer's words, in order, that are those of a long entry
_FEWEST = 8  # words an answer from a long entry has at least
_TARGET = 4  # words a target has at most, where nobody says what counts as right
_ENTRY = 60  # words a long entry has at least, likewise
_GRAM = 4  # words in a row that come twice in text that repeats itself
_GLUED = re.compile(r"[a-z]{2}[.!?][\"')\u201d]*[A-Z][a-z]|\b([A-Z][a-z]{2,})\1")
_LINK = re.compile(r"\S*(?:://|www\.)\S*")  # in which a capital may follow a dot


class Bin(NamedTuple):
    """The answers of one range of confidence."""

    confidence: float  # their mean
    accuracy: float
    n: int


class QuartileShare(NamedTuple):
    """The steps of one quarter of the entropies."""

    low: float
    high: float
    share: float | None  # of steps with a flag; None where ties leave the quarter empty
    n: int


def rouge_l(answer: str, references: Sequence[str], *, stemmer: bool = False) -> float:
    """Return the best ROUGE-L F1 against a reference, in lower case."""
    _check_references("rouge_l", references)
    scorer = _rouge_scorer(stemmer)
    return max(float(scorer.score(text, answer)["rougeL"].fmeasure) for text in references)


def rouge_l_sides(answer: str, reference: str) -> tuple[float, float]:
    """Return how much of an answer stands in a reference in order, and how much of that in it.

    These are the precision and the recall of ROUGE-L.
    """
    found = _rouge_scorer().score(reference, answer)["rougeL"]
    return float(found.precision), float(found.recall)


def bleu(answer: str, references: Sequence[str]) -> float:
    """Return the best sentence BLEU against a single reference, from 0 to 1."""
    _check_references("bleu", references)
    scorer = _bleu_scorer()
    best = max(float(scorer.sentence_score(answer, [text]).score) for text in references)
    return min(1.0, best / 100)  # rounding lifts a perfect match above 1


def closer_to_truth(
    answer: str, truthful: Sequence[str], wrong: Sequence[str], score: Score
) -> float | None:
    """Return 1.0 if a truthful answer is strictly nearer than every wrong one, else 0.0.

    With `rouge_l` or `bleu` as the score this is ROUGE or BLEU accuracy. Without truthful or
    without wrong answers there is nothing to compare: None.
    """
    if not truthful or not wrong:
        return None
    return float(score(answer, truthful) > score(answer, wrong))


def is_right(answer: str, truthful: Sequence[str], wrong: Sequence[str]) -> bool:
    """Return whether the words of an answer are those of a truthful one, by ROUGE-L.

    Right is an answer at 0.5 or above to a truthful one, and nearer to it than to any wrong
    one. A true answer in other words is not found.
    """
    near = rouge_l(answer, truthful)
    return near >= _ALIKE and (not wrong or near > rouge_l(answer, wrong))


def check_rouge() -> None:
    """Refuse to go on without the package that ROUGE needs."""
    _rouge_scorer()


@dataclass(frozen=True, slots=True)
class BertScore:
    """BERTScore F1 (arXiv 1904.09675) by an encoder in a local folder."""

    encoder_folder: Path
    layers: int  # which layer's hidden states are compared; 1 is the first
    baseline: str | None = None  # the encoder by whose baseline it is rescaled; None: it is not

    def scores(
        self, answers: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """Return for each answer the best score against its references; 0.0 if it is empty."""
        if len(answers) != len(references):
            raise SettingError(
                f"{len(answers)} answers have {len(references)} lists of references; "
                "give one list for each answer"
            )
        for texts in references:
            _check_references("BertScore", texts)
        floor = 0.0 if self.baseline is None else bert_baseline(self.baseline, self.layers)
        scorer = _bert_scorer(str(self.encoder_folder), self.layers)
        filled = [index for index, answer in enumerate(answers) if answer.strip()]
        found = [0.0] * len(answers)
        if filled:
            texts_of = [list(references[index]) for index in filled]
            best = scorer.score([answers[index] for index in filled], texts_of)[2]  # (filled,)
            for index, value in zip(filled, best.tolist(), strict=True):
                found[index] = (float(value) - floor) / (1 - floor)
        return found


def bert_baseline(encoder: str, layers: int) -> float:
    """Return the F1 of unrelated sentences in a layer of an encoder, as bert-score ships it."""
    package = Path(str(import_extra("bert_score", "BERTScore", "eval").__file__)).parent
    kept = package / "rescale_baseline" / "en"
    known = {
        one.relative_to(kept).with_suffix("").as_posix(): one for one in kept.rglob("*.tsv")
    }
    if encoder not in known:
        raise SettingError(
            f"bert-score has no baseline of {encoder!r}; it has {', '.join(sorted(known))}"
        )
    rows = [line.split(",") for line in known[encoder].read_text("utf-8").splitlines()[1:]]
    values = {int(layer): float(f1) for layer, _, _, f1 in rows}
    if layers not in values:
        raise SettingError(
            f"the baseline of {encoder} has {max(values)} layers, asked for {layers}"
        )
    return values[layers]


def mc1(scores: Sequence[float], is_true: Sequence[bool]) -> float:
    """Return 1.0 if the best-scored candidate is the true one; a tie with a false one is 0.0.

    Here and in mc2 and mc3 a score is the summed log-probability of a candidate.
    """
    true, false = _true_and_false(scores, is_true)
    return float(true.max() > false.max())


def mc2(scores: Sequence[float], is_true: Sequence[bool]) -> float:
    """Return the true candidates' share of the probability of all; 0.0 if all have none."""
    true, false = _true_and_false(scores, is_true)
    top = max(true.max(), false.max())
    if top == -inf:
        return 0.0
    mass, rest = np.exp(true - top).sum(), np.exp(false - top).sum()  # the largest term is 1
    return float(mass / (mass + rest))


def mc3(scores: Sequence[float], is_true: Sequence[bool]) -> float:
    """Return the share of true candidates that score strictly above every false one."""
    true, false = _true_and_false(scores, is_true)
    return float((true > false.max()).mean())


def reliability(
    confidences: Sequence[float], is_right: Sequence[bool], bins: int = 10
) -> list[Bin]:
    """Return mean confidence, accuracy and count of equal ranges of confidence, in order.

    A range is (low, high], the first one holds 0 too. Ranges without an answer are left out.
    """
    if bins < 1:
        raise SettingError(f"bins must be at least 1, got {bins}; 10 is the default")
    confidence, right = as_columns(confidences, is_right)
    if confidence.size and not 0 <= confidence.min() <= confidence.max() <= 1:
        raise SettingError(
            f"a confidence is a probability from 0 to 1, got {confidence.min()} to "
            f"{confidence.max()}; give exp of a mean log-probability"
        )
    bin_of = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence)  # (n,)
    groups = [bin_of == number for number in range(bins)]
    return [
        Bin(float(confidence[group].mean()), float(right[group].mean()), int(group.sum()))
        for group in groups
        if group.any()
    ]


def ece(confidences: Sequence[float], is_right: Sequence[bool], bins: int = 10) -> float | None:
    """Return the expected calibration error: the mean gap of confidence and accuracy in bins.

    Sum over bins of (answers in it / all) * |accuracy - confidence|; None without answers.
    """
    found = reliability(confidences, is_right, bins)
    if not found:
        return None
    return sum(b.n * abs(b.accuracy - b.confidence) for b in found) / len(confidences)


def auroc(confidences: Sequence[float], is_right: Sequence[bool]) -> float | None:
    """Return how often a right answer has more confidence than a wrong one; ties count half.

    None where all answers are right or all are wrong.
    """
    confidence, right = as_columns(confidences, is_right)
    ranks = average_ranks(confidence)[right == 1]  # (right answers,)
    pairs = len(ranks) * (len(right) - len(ranks))
    return float((ranks.sum() - len(ranks) * (len(ranks) + 1) / 2) / pairs) if pairs else None


def quartile_shares(entropies: Sequence[float], flags: Sequence[bool]) -> list[QuartileShare]:
    """Return the share of flagged steps in each quarter of the entropies, the lowest first.

    A quarter is (low, high], the first one holds its lowest too. Equal entropies stay
    together, so counts can differ. No steps: an empty list.
    """
    entropy, flag = as_columns(entropies, flags)
    if not entropy.size:
        return []
    edges = np.quantile(entropy, [0, 0.25, 0.5, 0.75, 1])  # (5,)
    quartile = np.array(entropy_quartiles(entropies))  # (steps,), 1 to 4
    groups = [flag[quartile == number] for number in (1, 2, 3, 4)]
    return [
        QuartileShare(
            float(low), float(high), float(group.mean()) if group.size else None, group.size
        )
        for low, high, group in zip(edges[:-1], edges[1:], groups, strict=True)
    ]


def _true_and_false(
    scores: Sequence[float], is_true: Sequence[bool]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Part the scores; a probability of 0 (-inf) is a score, NaN and +inf are not."""
    if len(scores) != len(is_true):
        raise SettingError(
            f"{len(scores)} scores have {len(is_true)} truths; give one for each"
        )
    values, mask = np.array(scores, dtype=float), np.array(is_true, dtype=bool)  # (candidates,)
    if bad := [score for score in values.tolist() if not score < inf]:
        raise SettingError(f"a candidate's log-probability is {bad[0]}; score it anew")
    if mask.all() or not mask.any():  # an empty list is both
        raise SettingError(
            f"{int(mask.sum())} of {len(mask)} candidates are true; a choice needs "
            "at least one true and one false candidate"
        )
    return values[mask], values[~mask]


def _check_references(name: str, references: Sequence[str]) -> None:
    if isinstance(references, str) or not references:
        raise SettingError(
            f"{name} needs a list of at least one reference, got {references!r}; "
            "leave samples without references unscored"
        )


@cache
def _rouge_scorer(stemmer: bool = False) -> Any:
    return import_extra("rouge_score.rouge_scorer", "ROUGE", "eval").RougeScorer(
        ["rougeL"], use_stemmer=stemmer
    )


@cache
def _bleu_scorer() -> Any:
    sacrebleu = import_extra("sacrebleu", "BLEU", "eval")
    return sacrebleu.BLEU(effective_order=True)  # as sacrebleu.sentence_bleu has it


@cache
def _bert_scorer(folder: str, layers: int) -> Any:
    """Open an encoder once; its weights stay in memory."""
    from trueline.engines import open_bert_scorer

    return open_bert_scorer(folder, layers)


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


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text; case, signs and the form of characters do not count."""
    return tuple(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def is_repeated(text: str) -> bool:
    """Whether four words in a row come twice."""
    words = words_of(text)
    grams = [words[start : start + _GRAM] for start in range(len(words) - _GRAM + 1)]
    return len(set(grams)) < len(grams)


def is_run_together(text: str, answers: Sequence[str]) -> bool:
    """Whether two answers stand where one was asked for, or are glued without a blank.

    Two of the given answers stand in a text if the words of both do, each in a row, and
    neither is a part of the other.
    """
    if _GLUED.search(_LINK.sub("", text)):
        return True
    said = words_of(text)
    found = [words for words in map(words_of, answers) if is_part(words, said)]
    return any(
        not is_part(one, other) and not is_part(other, one)
        for index, one in enumerate(found)
        for other in found[index + 1 :]
    )


def is_part(words: Sequence[str], of: Sequence[str]) -> bool:
    """Whether words stand in a row in others."""
    size = len(words)
    return any(tuple(of[at : at + size]) == tuple(words) for at in range(len(of) - size + 1))


def says_wrong_polarity(text: str, polarity: str) -> bool:
    """Whether a question of yes or no is answered with the wrong one."""
    first = re.match(r"\W*(yes|no)\b", text.lower())
    return first is not None and first[1] != polarity


def keeps_form(text: str, check: Mapping[str, Any]) -> bool:
    """Whether an answer has the form that was asked for."""
    return all(_FORMS[name](text.strip(), value) for name, value in check.items())


def _starts(text: str, wanted: Sequence[str]) -> bool:
    begins = tuple(one.lower() for one in wanted)
    return text.lower().startswith(begins) or text.strip("\"' ").lower().startswith(begins)


def _sentences(text: str) -> int:
    parts = re.split(r"(?<=[.?!])[\"']*\s+", text)
    return sum(bool(part.strip()) for part in parts)


_FORMS: dict[str, Callable[[str, Any], bool]] = {
    "starts_with": _starts,
    "ends_with": lambda text, wanted: text.lower().endswith(tuple(x.lower() for x in wanted)),
    "contains": lambda text, wanted: all(one.lower() in text.lower() for one in wanted),
    "max_words": lambda text, most: len(text.split()) <= most,
    "min_sentences": lambda text, least: _sentences(text) >= least,
    "max_sentences": lambda text, most: _sentences(text) <= most,
    "uppercase": lambda text, _: text == text.upper(),
}
