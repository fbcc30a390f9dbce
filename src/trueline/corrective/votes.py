"""Verified answers and the answer so far -> votes for its next token, and the lifted logits.

At which position of which verified answer is the answer so far? Every answer in scope that it
is in the middle of votes for its own next token, or for the end:

    a_i     = tokens of entry i's prefix that the answer so far ends with, and 1 for its start
    w       = softmax over the voters of a_i + log-odds of the example - log(its answers)
    vote(x) = sum of w_i with x_i = x                    they sum to 1, or to 0 off track

An answer may begin at the start, or after another verified answer. In any other position an
answer is joined again once several of its tokens in a row have been generated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import exp, log
from typing import Any

import torch
from torch import Tensor

from trueline.corrective.turns import FormRequest
from trueline.decode.sampling import move_of
from trueline.types import Neighbor, ScopedExample, Source

Tokenize = Callable[[str], Sequence[int]]  # the tokens of a text that follows another text
Decode = Callable[[Sequence[int]], str]
Number = float | Tensor  # for all rows, or one for each
END = -1  # stands for every token that ends an answer
_HALF = "\ufffd"  # an incomplete character decodes to it
_OPENERS = "\"'([{"  # no space follows these
_ENDS = ".?!:\n"  # a sentence begins after these
_JOINED = 4  # tokens in a row by which an answer is joined again
_CANDIDATE_SHARE = 0.5  # of the best vote: the least that makes a token a candidate


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedAnswer:
    """One truthful answer of an example in scope."""

    scoped: ScopedExample
    text: str
    variants: tuple[str, ...]  # how it may be written; first as it begins a sentence

    @property
    def names(self) -> dict[str, Any]:
        one = self.scoped.example
        names = {"example": one.id, "question": one.question, "source": one.source}
        return {**names, "answer": self.text}

    def find_end(self, text: str) -> tuple[int, str] | None:
        """Where it ends in a text, and the variant; None: the text does not contain it."""
        found = [(at + len(own), own) for own in self.variants if (at := text.rfind(own)) >= 0]
        return max(found, default=None)


Vote = tuple[VerifiedAnswer, int, set[int]]  # a_i, and its next token in any tokenization


@dataclass(frozen=True, slots=True)
class Votes:
    shares: dict[int, dict[VerifiedAnswer, float]]  # of a token, or END: by voter, of all votes

    @property
    def tokens(self) -> dict[int, float]:
        return {token: sum(own.values()) for token, own in self.shares.items()}

    @property
    def candidates(self) -> list[int]:
        """The tokens with at least half the best vote."""
        tokens = self.tokens
        least = _CANDIDATE_SHARE * max(tokens.values())
        return [token for token, share in tokens.items() if share >= least]

    @property
    def answers(self) -> dict[VerifiedAnswer, float]:
        """The share of each answer, over all tokens."""
        weights: dict[VerifiedAnswer, float] = {}
        for own in self.shares.values():
            for answer, share in own.items():
                weights[answer] = weights.get(answer, 0.0) + share
        return weights


def count_votes(found: Sequence[Vote]) -> Votes:
    scores = [
        aligned + answer.scoped.odds - log(len(answer.scoped.example.answers))
        for answer, aligned, _ in found
    ]
    weights = [exp(score - max(scores)) for score in scores]
    shares: dict[int, dict[VerifiedAnswer, float]] = {}
    for (answer, _, tokens), weight in zip(found, weights, strict=True):
        for token in tokens:
            shares.setdefault(token, {})[answer] = weight / sum(weights) / len(tokens)
    return Votes(shares)


class TokenizedText:
    """One variant of an answer, as tokens, after a space or no space."""

    def __init__(self, text: str, space: str, tokenize: Tokenize, decode: Decode) -> None:
        self.text, self.tokens = text, tuple(tokenize(space + text))
        # (complete characters so far, tokens of an incomplete one) -> number of tokens so far
        self.positions: dict[tuple[int, tuple[int, ...]], int] = {}
        self.ends: list[int] = []  # complete characters after so many tokens, from 0 on
        complete = characters = 0  # tokens, and their characters
        for count in range(len(self.tokens) + 1):
            prefix = decode(self.tokens[:count])
            if not prefix.endswith(_HALF):
                complete, characters = count, len(prefix.lstrip(" "))
            self.positions.setdefault((characters, self.tokens[complete:count]), count)
            self.ends.append(characters)


@dataclass(frozen=True)
class Correction:
    """The verified answers of one request: made once, used at every token."""

    scope: tuple[ScopedExample, ...]
    tokenize: Tokenize = field(repr=False)
    decode: Decode = field(repr=False)
    form: FormRequest = FormRequest()
    ends: frozenset[int] = frozenset()  # the tokens that end the answer
    margin: float = 5.0
    strength: float = 1.0
    is_fixed: bool = False  # whether no other token may be picked
    is_covered: bool = True  # whether an example is in scope; else it declines to answer
    asks_yes_or_no: bool = False  # whether it has to begin with the true one of the two words
    tokenized: dict[tuple[str, str], TokenizedText] = field(default_factory=dict, repr=False)

    def lift(self, output_ids: Sequence[int], logits: Tensor) -> Tensor:
        """The logits (vocabulary,) to pick the next token from, before temperature."""
        return lift_rows([self], [output_ids], logits[None]).logits[0]

    def candidates(self, votes: Votes, logits: Tensor) -> list[int]:
        """The tokens to lift; one that is banned in `logits` (vocabulary,), with -inf, is not.

        END stands for every token that ends the answer.
        """
        tokens = {*votes.candidates}
        tokens = tokens - {END} | self.ends if END in tokens else tokens
        known = sorted(token for token in tokens if token < len(logits))
        values = zip(known, logits[known].tolist(), strict=True)
        return [token for token, value in values if value > -torch.inf]

    @cached_property
    def answers(self) -> tuple[VerifiedAnswer, ...]:
        """Every truthful answer in scope; only short ones if any is short enough.

        If several are wanted, none has the opening and closing words that were requested.
        """
        form = self.form
        if len({scoped.part for scoped in self.scope}) * form.sentences > 1:
            form = replace(form, opening="", closing="", words=None)
        texts = [(one, answer.strip()) for one in self.scope for answer in one.example.answers]
        answers = [VerifiedAnswer(one, text, _variants(text, form)) for one, text in texts]
        short = [one for one in answers if len(one.variants[0].split()) <= (form.words or 0)]
        return tuple(short or answers)

    @cached_property
    def _wanted(self) -> Counter[int]:
        """How many answers to each part of the turn."""
        available = Counter(answer.scoped.part for answer in self.answers)
        return Counter({part: min(self.form.sentences, available[part]) for part in available})

    def votes(self, tokens: Sequence[int]) -> Votes | None:
        """The votes after these tokens; None: they are in the middle of no answer."""
        text, count = self.decode(tokens), len(tokens)
        while text.endswith(_HALF):
            count -= 1
            text = self.decode(tokens[:count])
        half = tuple(tokens[count:])  # no complete character yet
        given = {answer: end for answer in self.answers if (end := answer.find_end(text))}
        left = [answer for answer in self.answers if answer not in given]
        wanted = self._wanted - Counter(answer.scoped.part for answer in given)
        anchors = sorted({0, *(end for end, _ in given.values())})
        found = [
            self._begun(one, text, half, anchors, one.scoped.part in wanted) for one in left
        ]
        # A longer text goes on by itself, unless its number of sentences was requested. So does
        # a reply with another question left that no example answers.
        form = self.form
        is_complete = not form.is_text or (form.is_counted and len(given) >= form.sentences)
        if not wanted and not half and is_complete and not form.is_open:
            for answer, (last, variant) in given.items():
                if last == len(text):
                    spaces = _spaces_after(text[: last - len(variant)].rstrip(" "))
                    length = max(len(self._tokenized(variant, x).tokens) for x in spaces)
                    found.append((answer, 1 + length, {END}))
        if text and not any(found):
            found = [self._joined(one, text, half) for one in left]
        votes = [vote for vote in found if vote]
        return count_votes(votes) if votes else None

    def _begun(
        self,
        answer: VerifiedAnswer,
        text: str,
        half: tuple[int, ...],
        anchors: Sequence[int],
        may_begin: bool,
    ) -> Vote | None:
        """The vote of an answer that was begun at one of the anchors, or may begin here."""
        is_inside = text and text.rstrip(" ")[-1:] not in _ENDS  # a sentence
        for anchor in anchors:
            begun = text[anchor:].lstrip(" ")
            if not begun and not may_begin:
                continue
            aligned, following = 0, set()
            variants = answer.variants if begun or is_inside else answer.variants[:1]
            spaces = _spaces_after(text[:anchor] if begun or half else text)
            for variant, space in product(variants, spaces):
                if not variant.startswith(begun):
                    continue
                own = self._tokenized(variant, space)
                count = own.positions.get((len(begun), half), len(own.tokens))
                rest = own.tokens[count:]
                if not rest and not half:  # it may have been tokenized in another way so far
                    rest = tuple(self.tokenize(variant[len(begun) :]))
                    count = sum(end <= len(begun) for end in own.ends) - 1
                if rest:
                    aligned = max(aligned, count)
                    following.add(rest[0])
            if following:
                return answer, 1 + aligned, following
        return None

    def _joined(self, answer: VerifiedAnswer, text: str, half: tuple[int, ...]) -> Vote | None:
        """The vote of an answer whose tokens the text ends with, from wherever they begin."""
        own, lower = self._tokenized(answer.variants[0], " "), text.casefold()
        answer_lower, best = own.text.casefold(), (0, 0)  # aligned, count
        if len(answer_lower) != len(own.text):  # a letter has another length in lower case
            return None
        for (end, own_half), count in own.positions.items():
            if own_half != half or not _JOINED <= count < len(own.tokens):
                continue
            first = count
            while first and lower.endswith(answer_lower[own.ends[first - 1] : end]):
                first -= 1
            best = max(best, (count - first, count))
        aligned, count = best
        return (answer, aligned, {own.tokens[count]}) if aligned >= _JOINED else None

    def _tokenized(self, variant: str, space: str) -> TokenizedText:
        key = (variant, space)
        if key not in self.tokenized:
            self.tokenized[key] = TokenizedText(variant, space, self.tokenize, self.decode)
        return self.tokenized[key]


def _variants(text: str, form: FormRequest) -> tuple[str, ...]:
    """An answer as it begins a sentence, and as it continues one, in the requested form."""
    is_word = text[:1].isupper() and text[1:2].islower()  # not an abbreviation
    found = [text, text[:1].lower() + text[1:]][: 1 + is_word]
    if form.opening:
        is_inside = form.opening[-1:] == ","
        found = [f"{form.opening} {one}" for one in (found[::-1] if is_inside else found[:1])]
    if form.closing:
        found = [f"{one} {form.closing}" for one in found]
    return tuple(one.upper() if form.is_upper else one for one in found)


def _spaces_after(text: str) -> tuple[str, ...]:
    """What may stand between a text and an answer that follows it."""
    if not text:
        return "", " "
    return ("",) if text[-1:].isspace() or text[-1:] in _OPENERS else (" ",)


def lift(
    base: Tensor, candidates: Sequence[Sequence[int]], *, margin: Number, strength: Number
) -> Tensor:
    """Raise the candidates together until they hold probability sigmoid(margin).

    L = max(0, margin + log sum_{v not in C} e^base(v) - log sum_{x in C} e^base(x))
    final(x) = base(x) + strength * L for x in C, base(x) elsewhere

    `base` is (rows, vocabulary), `candidates` the tokens C of each row, each once and none
    banned; margin and strength are numbers, or one for each row. A row without candidates, or
    whose candidates hold that much already, stays as it is.
    """
    if not any(candidates):
        return base
    most = max(map(len, candidates))
    filled = [[*own, *[-1] * (most - len(own))] for own in candidates]
    index = torch.tensor(filled, device=base.device)  # (rows, most), -1 where there are fewer
    is_candidate = index >= 0
    # The rest repeats the first candidate, or rewrites token 0 as it is in a row without any.
    index = torch.where(is_candidate, index, index[:, :1].clamp(min=0))
    own = base.gather(1, index)
    without = base.scatter(1, index, -torch.inf)
    outside = without.float().logsumexp(-1)  # (rows,)
    inside = own.float().masked_fill(~is_candidate, -torch.inf).logsumexp(-1)
    raised = (margin + outside - inside).clamp(min=0.0).nan_to_num(0.0, posinf=0.0)
    lifted = own.float() + (strength * raised)[:, None]
    return without.scatter_(1, index, lifted.to(base.dtype))


@dataclass(frozen=True)
class Lifted:
    """What became of the logits of a step; as evidence, which answers voted."""

    logits: Tensor  # (rows, vocabulary); the same tensor as `base` if nothing is lifted
    base: Tensor  # (rows, vocabulary)
    corrections: Sequence[Correction | None]  # of each row
    votes: dict[int, Votes]  # by row, of those that are lifted to a verified answer

    def count(self, row: int) -> int:
        return len(self.votes[row].answers) if row in self.votes else 0

    def neighbors(self, row: int, picked: int, rival: int, *, most: int) -> list[Neighbor]:
        """The answers that voted, each with its part of how far picked moved from rival."""
        weights = self.votes[row].answers if row in self.votes else {}
        moved = move_of(self.base[row], self.logits[row], picked, rival)
        return [
            Neighbor(
                **answer.names,
                step=0,
                similarity=answer.scoped.probability,
                weight=weight,
                push=weight * moved,
                nearness="probability",
            )
            for answer, weight in sorted(weights.items(), key=lambda one: -one[1])[:most]
        ]

    def sources(self, row: int, picked: int) -> list[Source]:
        """The answers that voted for the picked token, each with its share of these votes."""
        correction = self.corrections[row]
        if row not in self.votes or correction is None:
            return []
        shares = self.votes[row].shares
        is_end = picked in correction.ends
        own = shares.get(picked) or (shares.get(END, {}) if is_end else {})
        return [
            Source(**one.names, share=x / sum(own.values()), probability=one.scoped.probability)
            for one, x in own.items()
        ]


def lift_rows(
    corrections: Sequence[Correction | None], outputs: Sequence[Sequence[int]], logits: Tensor
) -> Lifted:
    """Lift a batch (rows, vocabulary) of any requests; None leaves a row alone."""
    lifting: dict[int, Correction] = {}  # by row
    candidates, voted = [], {}
    for row, (own, output) in enumerate(zip(corrections, outputs, strict=True)):
        votes = own and own.votes(output)
        if own and votes and (tokens := own.candidates(votes, logits[row])):
            lifting[row] = own
            candidates.append(tokens)
            if own.is_covered:
                voted[row] = votes
    if not lifting:
        return Lifted(logits, logits, corrections, voted)
    rows, is_all = [*lifting], len(lifting) == len(logits)
    base = logits if is_all else logits[rows]
    numbers = [[own.margin, own.strength] for own in lifting.values()]
    margin, strength = torch.tensor(numbers).to(base.device).T
    lifted = lift(base, candidates, margin=margin, strength=strength)
    for at, own in enumerate(lifting.values()):
        if own.is_fixed:
            lifted[at] = -torch.inf
            lifted[at, candidates[at]] = base[at, candidates[at]]
    if not is_all:
        lifted = logits.clone().index_copy_(0, torch.tensor(rows, device=logits.device), lifted)
    return Lifted(lifted, logits, corrections, voted)
