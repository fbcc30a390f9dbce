"""An answer with its references and regime, or scores of candidates -> scores from 0 to 1.

The measures of the regimes are those of knowledge editing (GRACE 2211.11031, SERAC 2206.06520,
IKE 2305.12740, DeCK 2405.11613): efficacy on the examples' own questions, generalisation to
paraphrases, locality on questions that no example answers, and fluency.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueline.errors import SettingError, import_extra
from trueline.examples import Regime
from trueline.text import repeats_itself, words_of

if TYPE_CHECKING:
    from trueline.lab.benchmarks.tables import Match, Probe
from trueline.lab.statistics import Floats, as_columns, average_ranks
from trueline.types import Example

Score = Callable[[str, Sequence[str]], float]  # of an answer against references
_GLUED = re.compile(r"[a-z]{2}[.!?][\"')\u201d]*[A-Z][a-z]|\b([A-Z][a-z]{2,})\1")
_LINK = re.compile(r"\S*(?:://|www\.)\S*")  # in a link a capital may follow a dot


class Bin(NamedTuple):
    """The answers of one range of confidence."""

    confidence: float  # their mean
    accuracy: float
    n: int


class QuartileShare(NamedTuple):
    """The steps of one quarter of the entropies."""

    low: float
    high: float
    share: float | None  # of flagged steps; None if ties leave the quarter empty
    n: int


def rouge_l(answer: str, references: Sequence[str], *, stemmer: bool = False) -> float:
    """The best ROUGE-L F1 against a reference, in lower case."""
    _check_references("rouge_l", references)
    return max(float(_rouge(answer, one, stemmer).fmeasure) for one in references)


def bleu(answer: str, references: Sequence[str]) -> float:
    """The best sentence BLEU against a single reference, from 0 to 1."""
    _check_references("bleu", references)
    scorer = _bleu_scorer()
    best = max(float(scorer.sentence_score(answer, [text]).score) for text in references)
    return min(1.0, best / 100)  # rounding lifts a perfect match above 1


def closer_to_truth(
    answer: str, truthful: Sequence[str], wrong: Sequence[str], score: Score
) -> float | None:
    """1.0 if a truthful answer scores strictly higher than every wrong one, else 0.0.

    With `rouge_l` or `bleu` as the score this is ROUGE or BLEU accuracy. None without truthful
    or without wrong answers.
    """
    if not truthful or not wrong:
        return None
    return float(score(answer, truthful) > score(answer, wrong))


def is_right(answer: str, truthful: Sequence[str], wrong: Sequence[str]) -> bool:
    """Whether ROUGE-L to a truthful answer is at least 0.5 and higher than to any wrong one.

    True answers in other words count as not right.
    """
    score = rouge_l(answer, truthful)
    return score >= 0.5 and (not wrong or score > rouge_l(answer, wrong))


@dataclass(frozen=True, slots=True)
class BertScore:
    """BERTScore F1 (arXiv 1904.09675) by an encoder in a local folder."""

    encoder_folder: Path
    layers: int  # the layer whose hidden states are compared; 1 is the first
    baseline: str | None = None  # rescale by this encoder's baseline; None: do not rescale

    def scores(
        self, answers: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """For each answer the best score against its references; 0.0 if it is empty."""
        from trueline.engines import open_bert_scorer

        for texts in references:
            _check_references("BertScore", texts)
        floor = 0.0 if self.baseline is None else bert_baseline(self.baseline, self.layers)
        scorer = open_bert_scorer(str(self.encoder_folder), self.layers)
        scores = [0.0] * len(answers)
        if filled := [index for index, answer in enumerate(answers) if answer.strip()]:
            texts = [answers[index] for index in filled]
            f1 = scorer.score(texts, [list(references[index]) for index in filled])[2]
            for index, score in zip(filled, f1.tolist(), strict=True):
                scores[index] = (score - floor) / (1 - floor)
        return scores


def bert_baseline(encoder: str, layers: int) -> float:
    """The F1 of unrelated sentences in a layer of an encoder, from bert-score's own tables."""
    package = Path(str(import_extra("bert_score", "BERTScore", "eval").__file__)).parent
    folder = package / "rescale_baseline" / "en"
    try:
        rows = (folder / f"{encoder}.tsv").read_text("utf-8").splitlines()[1:]
        cells = (row.split(",") for row in rows)
        return next(float(f1) for layer, _, _, f1 in cells if int(layer) == layers)
    except (OSError, StopIteration, ValueError) as error:
        raise SettingError(
            f"bert-score has no baseline of layer {layers} of {encoder!r}; its tables are in "
            f"{folder}"
        ) from error


def _check_references(name: str, references: Sequence[str]) -> None:
    if isinstance(references, str) or not references:
        raise SettingError(
            f"{name} needs a list of at least one reference, got {references!r}; "
            "leave samples without references unscored"
        )


@cache
def _rouge_scorer(stemmer: bool) -> Any:
    module = import_extra("rouge_score.rouge_scorer", "ROUGE", "eval")
    return module.RougeScorer(["rougeL"], use_stemmer=stemmer)


def _rouge(answer: str, reference: str, stemmer: bool = False) -> Any:
    """ROUGE-L's precision, recall and F1 (fmeasure)."""
    return _rouge_scorer(stemmer).score(reference, answer)["rougeL"]


@cache
def _bleu_scorer() -> Any:
    sacrebleu = import_extra("sacrebleu", "BLEU", "eval")
    return sacrebleu.BLEU(effective_order=True)  # as in sacrebleu.sentence_bleu


def mc1(scores: Sequence[float], is_true: Sequence[bool]) -> float:
    """1.0 if the candidate with the best score is the true one; a tie is 0.0.

    The scores of mc1, mc2 and mc3 are the summed log-probabilities of the candidates.
    """
    true, false = _true_and_false(scores, is_true)
    return float(true.max() > false.max())


def mc2(scores: Sequence[float], is_true: Sequence[bool]) -> float:
    """The true candidates' part of the probability of all; 0.0 if all have none."""
    true, false = _true_and_false(scores, is_true)
    top = max(true.max(), false.max())
    if top == -inf:
        return 0.0
    mass, rest = np.exp(true - top).sum(), np.exp(false - top).sum()  # the largest term is 1
    return float(mass / (mass + rest))


def mc3(scores: Sequence[float], is_true: Sequence[bool]) -> float:
    """The share of true candidates that score strictly higher than every false one."""
    true, false = _true_and_false(scores, is_true)
    return float((true > false.max()).mean())


def _true_and_false(scores: Sequence[float], is_true: Sequence[bool]) -> tuple[Floats, Floats]:
    """The scores of true and of false candidates; -inf (probability 0) is allowed."""
    values, mask = np.array(scores, dtype=float), np.array(is_true, dtype=bool)  # (candidates,)
    if len(values) != len(mask) or mask.all() or not mask.any() or not (values < inf).all():
        raise SettingError(
            "a choice needs a log-probability for each candidate, and at least one true and "
            f"one false candidate; got {scores} of {is_true}"
        )
    return values[mask], values[~mask]


def reliability(confidences: Sequence[float], is_right: Sequence[bool]) -> list[Bin]:
    """Mean confidence, accuracy and count of ten equal ranges of confidence that are not empty.

    A range is (low, high]; the first one includes 0.
    """
    confidence, right = as_columns(confidences, is_right)
    if confidence.size and not 0 <= confidence.min() <= confidence.max() <= 1:
        raise SettingError(
            f"a confidence is a probability from 0 to 1, got {confidence.min()} to "
            f"{confidence.max()}; give exp of a mean log-probability"
        )
    bin_of = np.searchsorted(np.linspace(0, 1, 11)[1:-1], confidence)  # (n,)
    return [
        Bin(float(confidence[group].mean()), float(right[group].mean()), int(group.sum()))
        for group in (bin_of == number for number in np.unique(bin_of))
    ]


def ece(confidences: Sequence[float], is_right: Sequence[bool]) -> float | None:
    """The sum over bins of (answers in it / all) * |accuracy - confidence|; None if empty."""
    found = reliability(confidences, is_right)
    gaps = sum(b.n * abs(b.accuracy - b.confidence) for b in found)
    return gaps / len(confidences) if found else None


def auroc(confidences: Sequence[float], is_right: Sequence[bool]) -> float | None:
    """How often a right answer has more confidence than a wrong one; a tie counts half.

    None if all answers are right or all are wrong.
    """
    confidence, right = as_columns(confidences, is_right)
    ranks = average_ranks(confidence)[right == 1]  # (right answers,)
    pairs = len(ranks) * (len(right) - len(ranks))
    return float((ranks.sum() - len(ranks) * (len(ranks) + 1) / 2) / pairs) if pairs else None


def quartile_shares(entropies: Sequence[float], flags: Sequence[bool]) -> list[QuartileShare]:
    """The share of flagged steps in each quarter of the entropies, the lowest first.

    A quarter is (low, high]; the first one includes its lowest. Equal entropies are in one
    quarter, so counts can differ. Without steps: an empty list.
    """
    entropy, flag = as_columns(entropies, flags)
    if not entropy.size:
        return []
    edges = np.quantile(entropy, [0, 0.25, 0.5, 0.75, 1])  # (5,)
    quarter_of = np.searchsorted(edges[1:-1], entropy)  # (steps,), 0 to 3
    groups = [flag[quarter_of == number] for number in range(4)]
    shares = [float(group.mean()) if group.size else None for group in groups]
    sizes = [group.size for group in groups]
    return list(map(QuartileShare, edges[:-1].tolist(), edges[1:].tolist(), shares, sizes))


def probe_scores(probe: Probe, text: str, is_cut: bool) -> dict[str, float | None]:
    """The scores of an answer in its regime."""
    # A request for two sentences or a text may be answered with both answers of a fact.
    is_brief = probe.regime in ("exact", "paraphrase", "double")
    answers = [example.answers for example in probe.meant] if is_brief else []
    scores = {
        "repeated": repeats_itself(text),
        "joined": any(is_run_together(text, one) for one in answers or [()]),
        "cut": is_cut,
    }
    scores["fluent"] = not any(scores.values())
    if probe.meant:
        scores["right"] = all(states(text, one, probe.match) for one in probe.meant)
    if probe.check:
        scores["form"] = keeps_form(text, probe.check)
    if probe.polarity:  # the answer begins with yes for no, or with no for yes
        first = re.match(r"\W*(yes|no)\b", text.lower())
        scores["wrong_polarity"] = first is not None and first[1] != probe.polarity
    return {name: float(flag) for name, flag in scores.items()}


def states(text: str, example: Example, match: Match) -> bool:
    """Whether a text states an answer of an example, by one of four rules.

    wording: it is right by `is_right`.
    told: it has at least half of a truthful answer's words in order, and less of wrong ones.
    target: it contains a whole truthful answer, and no wrong one outside of it.
    entry: at least 8 words (or as many as the entry has), and 80 % of them are the entry's.
    """
    answers, wrong = example.answers, example.wrong_answers
    if match == "wording":
        return is_right(text, answers, wrong)
    if match == "told":
        true, false = (
            max((_rouge(text, one).recall for one in kind), default=0.0)
            for kind in (answers, wrong)
        )
        return bool(true >= 0.5 and true > false)
    if match == "entry":
        length = len(words_of(text))
        return any(
            length >= min(8, len(words_of(one))) and _rouge(text, one).precision >= 0.8
            for one in answers
        )
    phrase, wrong_phrases = _phrase(text), [_phrase(one) for one in wrong if words_of(one)]
    targets = [" ".join(words) for words in map(words_of, answers) if words]
    rests = [re.sub(f"(?<= ){target}(?= )", "|", phrase) for target in targets]
    return any(x != phrase and not any(one in x for one in wrong_phrases) for x in rests)


def match_for(regime: Regime, examples: Sequence[Example]) -> Match:
    """The rule that suits the examples a question means, if nobody chose one."""
    if regime in ("styled", "double", "mid-text"):
        return "told"
    lengths = [len(words_of(answer)) for one in examples for answer in one.answers]
    if lengths and max(lengths) <= 4:
        return "target"
    return "entry" if lengths and min(lengths) >= 60 else "wording"


def _phrase(text: str) -> str:
    """The words of a text between spaces: part of another phrase if its words are in a row."""
    return " ".join(["", *words_of(text), ""])


def is_run_together(text: str, answers: Sequence[str]) -> bool:
    """Whether a text contains two answers of one question, or sentences without a space.

    Two answers are in a text if it contains the words of both in a row, and neither is a part
    of the other.
    """
    whole = _phrase(text)
    found = [phrase for phrase in map(_phrase, answers) if phrase in whole]
    are_two = any(a not in b and b not in a for a, b in combinations(found, 2))
    return are_two or bool(_GLUED.search(_LINK.sub("", text)))


def keeps_form(text: str, check: Mapping[str, Any]) -> bool:
    """Whether an answer has the requested form."""
    text = text.strip()
    lower, bare = text.lower(), text.lower().strip("\"' ")
    sentences = len(re.split(r"(?<=[.?!])[\"']*\s+", text)) if text else 0
    forms: dict[str, Callable[[Any], bool]] = {
        "starts_with": lambda texts: any(x.startswith(tuple(texts)) for x in (lower, bare)),
        "ends_with": lambda texts: lower.endswith(tuple(texts)),
        "contains": lambda texts: all(text in lower for text in texts),
        "max_words": lambda most: len(text.split()) <= most,
        "min_sentences": lambda least: sentences >= least,
        "max_sentences": lambda most: sentences <= most,
        "uppercase": lambda _: text == text.upper(),
    }
    return all(
        forms[name]([x.lower() for x in wanted] if isinstance(wanted, list) else wanted)
        for name, wanted in check.items()
    )
