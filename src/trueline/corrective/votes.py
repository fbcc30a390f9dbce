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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import exp, log

import torch

from trueline.corrective.turns import FormRequest
from trueline.decode.sampling import move_of
from trueline.types import Neighbor, ScopedExample, Source

Tokenize = Callable[[str], Sequence[int]]  # the tokens of a text that follows another text
Decode = Callable[[Sequence[int]], str]
END = -1  # stands for every token that ends an answer
_HALF = "\ufffd"  # an incomplete character decodes to it
_OPENERS = "\"'([{"  # no space follows these
_ENDS = ".?!:\n"  # a sentence begins after these
JOINED = 4  # tokens in a row by which an answer is joined again
CANDIDATE_SHARE = 0.5  # of the best vote: the least that makes a token a candidate


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedAnswer:
    """One truthful answer of an example in scope."""

    scoped: ScopedExample
    text: str
    variants: tuple[str, ...]  # how it may be written; first as it begins a sentence


@dataclass(frozen=True, slots=True)
class Votes:
    """What the verified answers vote for."""

    tokens: dict[int, float]  # END or a token: its share of all votes
    shares: dict[int, dict[VerifiedAnswer, float]]  # the same by voter

    @property
    def candidates(self) -> tuple[int, ...]:
        """The tokens with at least half the best vote."""
        least = CANDIDATE_SHARE * max(self.tokens.values())
        return tuple(token for token, share in self.tokens.items() if share >= least)


@dataclass(frozen=True)
class TokenizedText:
    """One variant of an answer, as tokens."""

    text: str  # without the space it may begin with
    tokens: tuple[int, ...]
    # (complete characters so far, tokens of an incomplete one) -> number of tokens so far
    positions: dict[tuple[int, tuple[int, ...]], int]
    ends: tuple[int, ...]  # complete characters after so many tokens, from 0 tokens on


def tokenize_text(text: str, space: str, tokenize: Tokenize, decode: Decode) -> TokenizedText:
    """Tokenize a text that follows a space or no space."""
    tokens = tuple(tokenize(space + text))
    positions: dict[tuple[int, tuple[int, ...]], int] = {}
    ends: list[int] = []
    complete = characters = 0  # tokens, and their characters
    for count, prefix in enumerate(_prefixes(tokens, decode)):
        if not prefix.endswith(_HALF):
            complete, characters = count, len(prefix.lstrip(" "))
        positions.setdefault((characters, tokens[complete:count]), count)
        ends.append(characters)
    return TokenizedText(text, tokens, positions, tuple(ends))


def _prefixes(tokens: Sequence[int], decode: Decode) -> Iterator[str]:
    """The text of no token, of the first one, of the first two, and so on."""
    pieces = [decode([token]) for token in tokens]
    if "".join(pieces) == decode(tokens):  # no character is split, and no space is lost
        return accumulate(pieces, initial="")
    return (decode(tokens[:count]) if count else "" for count in range(len(tokens) + 1))


@dataclass(frozen=True, slots=True)
class _Vote:
    answer: VerifiedAnswer
    aligned: int  # a_i
    tokens: frozenset[int]  # the next token, in every possible tokenization


@dataclass(frozen=True)
class Decision:
    """What is lifted in one row at one step."""

    votes: Votes | None  # None: no example takes part
    candidates: Sequence[int]  # the tokens that are lifted


NOTHING = Decision(None, ())


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

    def lift(self, output_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """The logits (vocabulary,) to pick the next token from, before temperature."""
        return lift_rows([self], [output_ids], logits[None]).logits[0]

    def decide(self, output_ids: Sequence[int], logits: torch.Tensor) -> Decision:
        """The votes after the tokens of the answer so far, and the candidates among them.

        END stands for every token that ends the answer; a token that is banned in `logits`
        (vocabulary,), with -inf, is no candidate.
        """
        votes = self.votes(output_ids)
        if votes is None:
            return NOTHING
        wanted = {
            token
            for voted in votes.candidates
            for token in (self.ends if voted == END else (voted,))
        }
        known = sorted(token for token in wanted if token < len(logits))
        values = logits[known].tolist()
        free = [token for token, value in zip(known, values, strict=True) if value > -torch.inf]
        return Decision(votes if free and self.is_covered else None, free)

    @cached_property
    def answers(self) -> tuple[VerifiedAnswer, ...]:
        """Every truthful answer in scope; only short ones if any is short enough.

        Where several are wanted, none has the opening and closing words that were requested.
        """
        parts, form = {scoped.part for scoped in self.scope}, self.form
        if len(parts) * form.sentences > 1:
            form = replace(form, opening="", closing="", words=None)
        answers = [
            VerifiedAnswer(scoped, answer.strip(), _variants(answer.strip(), form))
            for scoped in self.scope
            for answer in scoped.example.answers
        ]
        most = form.words
        short = [one for one in answers if most and len(one.variants[0].split()) <= most]
        return tuple(short or answers)

    @cached_property
    def _wanted(self) -> Counter[int]:
        """How many answers each part of the turn gets."""
        available = Counter(answer.scoped.part for answer in self.answers)
        return Counter({part: min(self.form.sentences, available[part]) for part in available})

    def votes(self, tokens: Sequence[int]) -> Votes | None:
        """The votes after these tokens; None: they are in the middle of no answer."""
        text, half = self._complete_text(tokens)
        given = {
            answer: ending for answer in self.answers if (ending := _find_end(answer, text))
        }
        parts = self._wanted - Counter(answer.scoped.part for answer in given)  # still wanted
        anchors = sorted({0, *(end for end, _ in given.values())})
        left = [answer for answer in self.answers if answer not in given]
        found = [
            self._begun(answer, text, half, anchors, answer.scoped.part in parts)
            for answer in left
        ]
        if not parts and not half and self._may_end(len(given)):
            found += [
                _Vote(answer, 1 + self._length(variant, text), frozenset({END}))
                for answer, (end, variant) in given.items()
                if end == len(text)
            ]
        votes = [vote for vote in found if vote is not None]
        if not votes and text:
            joined = [self._joined(answer, text, half) for answer in left]
            votes = [vote for vote in joined if vote is not None]
        return _count(votes) if votes else None

    def _may_end(self, given: int) -> bool:
        """Whether the text may end after so many answers.

        A longer text goes on by itself, unless its number of sentences was requested. So does
        a reply with another question left that no example answers.
        """
        form = self.form
        if form.is_open:
            return False
        return not form.is_text or (form.is_counted and given >= form.sentences)

    def _complete_text(self, tokens: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """The text of some tokens, and the last ones that are no complete character yet."""
        text, count = self.decode(tokens), len(tokens)
        while text.endswith(_HALF):
            count -= 1
            text = self.decode(tokens[:count])
        return text, tuple(tokens[count:])

    def _begun(
        self,
        answer: VerifiedAnswer,
        text: str,
        half: tuple[int, ...],
        anchors: Sequence[int],
        may_begin: bool,
    ) -> _Vote | None:
        """The vote of an answer that was begun at one of the anchors, or may begin here."""
        for anchor in anchors:
            before, begun = text[:anchor], text[anchor:].lstrip(" ")
            if not begun and not may_begin:
                continue
            if not begun and not half:
                return _Vote(answer, 1, self._first_tokens(answer, text))
            variants = answer.variants if begun else _variants_after(answer, text)
            steps = [
                step
                for variant in variants
                if variant.startswith(begun)
                for space in _spaces_after(before)
                if (step := self._next(self._tokenized(variant, space), begun, half))
            ]
            if steps:
                aligned = max(count for _, count in steps)
                return _Vote(answer, 1 + aligned, frozenset(token for token, _ in steps))
        return None

    def _first_tokens(self, answer: VerifiedAnswer, text: str) -> frozenset[int]:
        """The tokens an answer may begin with after a text."""
        variants = _variants_after(answer, text)
        spaces = _spaces_after(text)
        texts = [self._tokenized(one, space) for one in variants for space in spaces]
        return frozenset(one.tokens[0] for one in texts if one.tokens)

    def _next(
        self, own: TokenizedText, begun: str, half: tuple[int, ...]
    ) -> tuple[int, int] | None:
        """The next token of a text that was begun, and how many of its tokens came before."""
        count = own.positions.get((len(begun), half))
        if count is not None and count < len(own.tokens):
            return own.tokens[count], count
        if half:
            return None
        rest = self.tokenize(own.text[len(begun) :])  # it was tokenized in another way so far
        before = sum(end <= len(begun) for end in own.ends) - 1
        return (rest[0], before) if rest else None

    def _length(self, variant: str, text: str) -> int:
        """How many tokens a variant has that a text ends with."""
        spaces = _spaces_after(text[: len(text) - len(variant)].rstrip(" "))
        return max(len(self._tokenized(variant, space).tokens) for space in spaces)

    def _joined(self, answer: VerifiedAnswer, text: str, half: tuple[int, ...]) -> _Vote | None:
        """The vote of an answer whose tokens the text ends with, from wherever they begin."""
        own, lower = self._tokenized(answer.variants[0], " "), text.casefold()
        answer_lower = own.text.casefold()
        if len(answer_lower) != len(own.text):  # a letter has another length in lower case
            return None
        best = 0, 0  # aligned, count
        for (end, own_half), count in own.positions.items():
            if own_half != half or count < JOINED or count == len(own.tokens):
                continue
            first = count
            while first and lower.endswith(answer_lower[own.ends[first - 1] : end]):
                first -= 1
            best = max(best, (count - first, count))
        aligned, count = best
        if aligned < JOINED:
            return None
        return _Vote(answer, aligned, frozenset({own.tokens[count]}))

    def _tokenized(self, variant: str, space: str) -> TokenizedText:
        key = (variant, space)
        if key not in self.tokenized:
            made = tokenize_text(variant, space, self.tokenize, self.decode)
            self.tokenized[key] = made
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


def _variants_after(answer: VerifiedAnswer, text: str) -> tuple[str, ...]:
    is_sentence = not text or text.rstrip(" ")[-1:] in _ENDS
    return answer.variants[:1] if is_sentence else answer.variants


def _find_end(answer: VerifiedAnswer, text: str) -> tuple[int, str] | None:
    """Where an answer ends in a text, and the variant; None: the text does not contain it."""
    found = [(at + len(own), own) for own in answer.variants if (at := text.rfind(own)) >= 0]
    return max(found, default=None)


def _spaces_after(text: str) -> tuple[str, ...]:
    """What may stand between a text and an answer that follows it."""
    if not text:
        return "", " "
    return ("",) if text[-1:].isspace() or text[-1:] in _OPENERS else (" ",)


def _count(found: Sequence[_Vote]) -> Votes:
    """Weigh the voters, and add up their votes."""
    scores = [
        vote.aligned + vote.answer.scoped.odds - log(len(vote.answer.scoped.example.answers))
        for vote in found
    ]
    weights = [exp(score - max(scores)) for score in scores]
    total = sum(weights)
    tokens: dict[int, float] = {}
    shares: dict[int, dict[VerifiedAnswer, float]] = {}
    for vote, weight in zip(found, weights, strict=True):
        for token in vote.tokens:
            share = weight / total / len(vote.tokens)
            tokens[token] = tokens.get(token, 0.0) + share
            own = shares.setdefault(token, {})
            own[vote.answer] = own.get(vote.answer, 0.0) + share
    return Votes(tokens, shares)


def lift(
    base: torch.Tensor,
    candidates: Sequence[Sequence[int]],
    *,
    margin: float | torch.Tensor,
    strength: float | torch.Tensor,
) -> torch.Tensor:
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

    logits: torch.Tensor  # (rows, vocabulary); the same tensor as `base` if nothing is lifted
    base: torch.Tensor  # (rows, vocabulary)
    corrections: Sequence[Correction | None]  # of each row
    decisions: Sequence[Decision]

    def count(self, row: int) -> int:
        """How many answers voted in one row."""
        return len(self._weights(row))

    def neighbors(self, row: int, picked: int, rival: int, *, most: int) -> list[Neighbor]:
        """The answers that voted, each with its part of how far picked moved from rival."""
        weights = self._weights(row)
        moved = move_of(self.base[row], self.logits[row], picked, rival)
        return [
            Neighbor(
                example=answer.scoped.example.id,
                question=answer.scoped.example.question,
                answer=answer.text,
                source=answer.scoped.example.source,
                step=0,
                similarity=answer.scoped.probability,
                weight=weights[answer],
                push=weights[answer] * moved,
                nearness="probability",
            )
            for answer in sorted(weights, key=lambda answer: -weights[answer])[:most]
        ]

    def sources(self, row: int, picked: int) -> list[Source]:
        """The answers that voted for the picked token, each with its share of these votes."""
        votes, correction = self.decisions[row].votes, self.corrections[row]
        if votes is None or correction is None:
            return []
        own = votes.shares.get(picked) or {}
        if not own and picked in correction.ends:
            own = votes.shares.get(END) or {}
        total = sum(own.values())
        return [
            Source(
                example=answer.scoped.example.id,
                question=answer.scoped.example.question,
                answer=answer.text,
                source=answer.scoped.example.source,
                share=share / total,
                probability=answer.scoped.probability,
            )
            for answer, share in own.items()
        ]

    def _weights(self, row: int) -> dict[VerifiedAnswer, float]:
        votes = self.decisions[row].votes
        weights: dict[VerifiedAnswer, float] = {}
        for own in () if votes is None else votes.shares.values():
            for answer, share in own.items():
                weights[answer] = weights.get(answer, 0.0) + share
        return weights


def lift_rows(
    corrections: Sequence[Correction | None],
    outputs: Sequence[Sequence[int]],
    logits: torch.Tensor,
) -> Lifted:
    """Lift a batch (rows, vocabulary) of any requests; None leaves a row alone."""
    decisions = [
        NOTHING if own is None else own.decide(output, logits[row])
        for row, (own, output) in enumerate(zip(corrections, outputs, strict=True))
    ]
    rows = [row for row, decision in enumerate(decisions) if decision.candidates]
    if not rows:
        return Lifted(logits, logits, corrections, decisions)
    lifting = [own for row in rows if (own := corrections[row]) is not None]
    is_all = len(rows) == len(logits)
    base = logits if is_all else logits[rows]
    numbers = torch.tensor([[own.margin, own.strength] for own in lifting]).to(base.device)
    candidates = [decisions[row].candidates for row in rows]
    lifted = lift(base, candidates, margin=numbers[:, 0], strength=numbers[:, 1])
    for at, own in enumerate(lifting):
        if own.is_fixed:
            only = torch.full_like(base[at], -torch.inf)
            only[candidates[at]] = base[at, candidates[at]]
            lifted[at] = only
    if not is_all:
        lifted, part = logits.clone(), lifted
        lifted[rows] = part
    return Lifted(lifted, logits, corrections, decisions)
