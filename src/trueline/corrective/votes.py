"""Verified answers and the answer so far -> votes for its next token.

This is corrective decoding but for scope and for the arithmetic on logits (`fusion.lift`). It
knows no engine and no tensor: text, tokens, and two functions that turn one into the other.

At which place of which verified answer is the answer so far? Every answer in scope that it has
reached says its own next token, or that it ends here:

    a_i     = tokens of entry i's prefix that the answer so far ends with, and 1 for its start
    w       = softmax over the voters of a_i + log-odds of the example - log(its answers)
    vote(x) = sum of w_i with x_i = x                    they sum to 1, or to 0 off track

An answer may begin where the whole answer begins, or behind another one that was told. Away
from both it is joined again where several of its tokens in a row have been said.
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
from trueline.engines.base import TokenReader
from trueline.prompts import FoundQuestion, Prompt, find_question
from trueline.types import Example

Cut = Callable[[str], Sequence[int]]  # the tokens of a text behind another text
Read = Callable[[Sequence[int]], str]  # the text of some tokens
END = -1  # stands for every token that ends an answer
_HALF = "\ufffd"  # what half a character decodes to
_OPENERS = "\"'([{"  # signs behind which no blank stands
_ENDS = ".?!:\n"  # signs behind which a sentence begins
JOINED = 4  # tokens in a row by which an answer is joined again
CANDIDATE_SHARE = 0.5  # of the best vote, which makes a token a candidate


@dataclass(frozen=True, slots=True)
class Speaker:
    """An example in scope."""

    example: Example
    probability: float  # that it answers the question
    odds: float  # the logarithm of its odds
    part: int = 0  # which part of the turn it answers


@dataclass(frozen=True, slots=True)
class VerifiedAnswer:
    """One truthful answer of an example in scope."""

    speaker: Speaker
    text: str

    writings: tuple[str, ...]  # how it may be written; first as it begins a sentence


@dataclass(frozen=True, slots=True)
class Votes:
    """What the verified answers say of the next token."""

    tokens: dict[int, float]  # END or a token: its share of all votes
    shares: dict[int, dict[VerifiedAnswer, float]]  # the same by who votes

    @property
    def candidates(self) -> tuple[int, ...]:
        """The tokens with at least half the best vote."""
        least = CANDIDATE_SHARE * max(self.tokens.values())
        return tuple(token for token, share in self.tokens.items() if share >= least)


@dataclass(frozen=True)
class Form:
    """One way in which an answer is written, cut into tokens."""

    text: str  # without the blank it may begin with
    tokens: tuple[int, ...]
    # Whole characters so far, and the tokens of one that is not: how many tokens so far.
    places: dict[tuple[int, tuple[int, ...]], int]
    ends: tuple[int, ...]  # characters behind each token, from 0 tokens on


def make_form(text: str, blank: str, cut: Cut, read: Read) -> Form:
    """Cut a text that stands behind a blank or behind none."""
    tokens = tuple(cut(blank + text))
    places: dict[tuple[int, tuple[int, ...]], int] = {}
    ends: list[int] = []
    whole = characters = 0  # tokens, and their characters
    for count, said in enumerate(_readings(tokens, read)):
        if not said.endswith(_HALF):
            whole, characters = count, len(said.lstrip(" "))
        places.setdefault((characters, tokens[whole:count]), count)
        ends.append(characters)
    return Form(text, tokens, places, tuple(ends))


def _readings(tokens: Sequence[int], read: Read) -> Iterator[str]:
    """The text of no token, of the first one, of the first two, and so on."""
    pieces = [read([token]) for token in tokens]
    if "".join(pieces) == read(tokens):  # no character is cut, and no blank lost
        return accumulate(pieces, initial="")
    return (read(tokens[:count]) if count else "" for count in range(len(tokens) + 1))


@dataclass(frozen=True, slots=True)
class _Vote:
    voice: VerifiedAnswer
    aligned: int  # a_i
    says: frozenset[int]  # the next token, in every way it may be cut


@dataclass(frozen=True)
class Plan:
    """The answers that may be told in one request; made once, then asked at every token."""

    speakers: tuple[Speaker, ...]
    cut: Cut = field(repr=False)
    read: Read = field(repr=False)
    wish: FormRequest = FormRequest()  # the form that is asked for
    is_fixed: bool = False  # whether nothing else may be said
    forms: dict[tuple[str, str], Form] = field(default_factory=dict, repr=False)  # kept cuts

    @cached_property
    def voices(self) -> tuple[VerifiedAnswer, ...]:
        """Every truthful answer in scope; only short ones where some are short enough.

        Where several are to be told, none is framed by opening and closing words.
        """
        parts, wish = {speaker.part for speaker in self.speakers}, self.wish
        if len(parts) * wish.sentences > 1:
            wish = replace(wish, opening="", closing="", words=None)
        found = [
            VerifiedAnswer(speaker, answer.strip(), _writings(answer.strip(), wish))
            for speaker in self.speakers
            for answer in speaker.example.answers
        ]
        most = wish.words
        short = [one for one in found if most and len(one.writings[0].split()) <= most]
        return tuple(short or found)

    @cached_property
    def _wanted(self) -> Counter[int]:
        """How many answers each part of the turn is to be told."""
        there = Counter(voice.speaker.part for voice in self.voices)
        return Counter({part: min(self.wish.sentences, there[part]) for part in there})

    def votes(self, tokens: Sequence[int]) -> Votes | None:
        """What is voted for behind these tokens; None: the answer is on none of the tracks."""
        text, half = self._split_half(tokens)
        told = {voice: ending for voice in self.voices if (ending := _find_told(voice, text))}
        parts = self._wanted - Counter(voice.speaker.part for voice in told)  # still to be told
        anchors = sorted({0, *(end for end, _ in told.values())})
        untold = [voice for voice in self.voices if voice not in told]
        found = [
            self._begun(voice, text, half, anchors, voice.speaker.part in parts)
            for voice in untold
        ]
        if not parts and not half and self._may_end(len(told)):  # where one ends, so may all
            found += [
                _Vote(voice, 1 + self._length(writing, text), frozenset({END}))
                for voice, (end, writing) in told.items()
                if end == len(text)
            ]
        votes = [vote for vote in found if vote is not None]
        if not votes and text:
            joined = [self._joined(voice, text, half) for voice in untold]
            votes = [vote for vote in joined if vote is not None]
        return _count(votes) if votes else None

    def _may_end(self, told: int) -> bool:
        """Whether the end may come behind so many answers: a text goes on by itself.

        Unless so many sentences were asked for. So does an answer to a question that nothing
        in scope is about, where it was asked beside another.
        """
        wish = self.wish
        if wish.is_open:
            return False
        return not wish.is_text or (wish.is_counted and told >= wish.sentences)

    def _split_half(self, tokens: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """The text of some tokens, and those at its end that are not a whole character yet."""
        text, count = self.read(tokens), len(tokens)
        while text.endswith(_HALF):
            count -= 1
            text = self.read(tokens[:count])
        return text, tuple(tokens[count:])

    def _begun(
        self,
        voice: VerifiedAnswer,
        text: str,
        half: tuple[int, ...],
        anchors: Sequence[int],
        may_begin: bool,
    ) -> _Vote | None:
        """What an answer says that was begun at one of the anchors, or may begin here."""
        for anchor in anchors:
            before, said = text[:anchor], text[anchor:].lstrip(" ")
            if not said and not may_begin:
                continue
            if not said and not half:
                return _Vote(voice, 1, self._starts(voice, text))
            writings = voice.writings if said else _opening_writings(voice, text)
            steps = [
                step
                for writing in writings
                if writing.startswith(said)
                for blank in _blanks(before)
                if (step := self._next(self._form(writing, blank), said, half)) is not None
            ]
            if steps:
                aligned = max(count for _, count in steps)
                return _Vote(voice, 1 + aligned, frozenset(token for token, _ in steps))
        return None

    def _starts(self, voice: VerifiedAnswer, text: str) -> frozenset[int]:
        """The tokens an answer may begin with behind a text."""
        writings = _opening_writings(voice, text)
        forms = [self._form(writing, blank) for writing in writings for blank in _blanks(text)]
        return frozenset(form.tokens[0] for form in forms if form.tokens)

    def _next(self, form: Form, said: str, half: tuple[int, ...]) -> tuple[int, int] | None:
        """The next token of a form behind what was said, and how many of its own are said."""
        count = form.places.get((len(said), half))
        if count is not None and count < len(form.tokens):
            return form.tokens[count], count
        if half:
            return None
        rest = self.cut(form.text[len(said) :])  # cut in another way: what remains, anew
        before = sum(end <= len(said) for end in form.ends) - 1
        return (rest[0], before) if rest else None

    def _length(self, writing: str, text: str) -> int:
        """The tokens of a writing that ends a text, counted as those of a begun one are."""
        blanks = _blanks(text[: len(text) - len(writing)].rstrip(" "))
        return max(len(self._form(writing, blank).tokens) for blank in blanks)

    def _joined(self, voice: VerifiedAnswer, text: str, half: tuple[int, ...]) -> _Vote | None:
        """What an answer says whose last tokens were said in a row, wherever they stand."""
        form, said = self._form(voice.writings[0], " "), text.casefold()
        own = form.text.casefold()
        if len(own) != len(form.text):  # a letter has another length in lower case
            return None
        best = 0, 0  # aligned, count
        for (end, own_half), count in form.places.items():
            if own_half != half or count < JOINED or count == len(form.tokens):
                continue
            reach = count
            while reach and said.endswith(own[form.ends[reach - 1] : end]):
                reach -= 1
            best = max(best, (count - reach, count))
        aligned, count = best
        if aligned < JOINED:
            return None
        return _Vote(voice, aligned, frozenset({form.tokens[count]}))

    def _form(self, writing: str, blank: str) -> Form:
        key = (writing, blank)
        if key not in self.forms:
            self.forms[key] = make_form(writing, blank, self.cut, self.read)
        return self.forms[key]


def _writings(text: str, wish: FormRequest) -> tuple[str, ...]:
    """An answer as it begins a sentence, and in the middle of one, in the form asked for."""
    is_word = text[:1].isupper() and text[1:2].islower()  # not an abbreviation
    found = [text, text[:1].lower() + text[1:]][: 1 + is_word]
    if wish.opening:
        is_inside = wish.opening[-1:] == ","
        found = [f"{wish.opening} {one}" for one in (found[::-1] if is_inside else found[:1])]
    if wish.closing:
        found = [f"{one} {wish.closing}" for one in found]
    return tuple(one.upper() if wish.is_upper else one for one in found)


def _opening_writings(voice: VerifiedAnswer, text: str) -> tuple[str, ...]:
    """How an answer may be written that begins behind a text."""
    is_sentence = not text or text.rstrip(" ")[-1:] in _ENDS
    return voice.writings[:1] if is_sentence else voice.writings


def _find_told(voice: VerifiedAnswer, text: str) -> tuple[int, str] | None:
    """Where an answer ends that was told, and how it was written; None: it was not."""
    found = [(at + len(own), own) for own in voice.writings if (at := text.rfind(own)) >= 0]
    return max(found, default=None)


def _blanks(text: str) -> tuple[str, ...]:
    """What may stand between a text and an answer behind it."""
    if not text:
        return "", " "
    return ("",) if text[-1:].isspace() or text[-1:] in _OPENERS else (" ",)


def _count(found: Sequence[_Vote]) -> Votes:
    """Weigh the voters, and add up what they say."""
    scores = [
        vote.aligned + vote.voice.speaker.odds - log(len(vote.voice.speaker.example.answers))
        for vote in found
    ]
    weights = [exp(score - max(scores)) for score in scores]
    total = sum(weights)
    tokens: dict[int, float] = {}
    shares: dict[int, dict[VerifiedAnswer, float]] = {}
    for vote, weight in zip(found, weights, strict=True):
        for token in vote.says:
            share = weight / total / len(vote.says)
            tokens[token] = tokens.get(token, 0.0) + share
            own = shares.setdefault(token, {})
            own[vote.voice] = own.get(vote.voice, 0.0) + share
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
    is_one = index >= 0
    # What is no candidate repeats the first, or rewrites token 0 as it is in a row without any.
    index = torch.where(is_one, index, index[:, :1].clamp(min=0))
    own = base.gather(1, index)
    without = base.scatter(1, index, -torch.inf)
    outside = without.float().logsumexp(-1)  # (rows,)
    inside = own.float().masked_fill(~is_one, -torch.inf).logsumexp(-1)
    raised = (margin + outside - inside).clamp(min=0.0).nan_to_num(0.0, posinf=0.0)
    lifted = own.float() + (strength * raised)[:, None]
    return without.scatter_(1, index, lifted.to(base.dtype))


def _log(share: float) -> float:
    return float(torch.tensor(share).log())


@dataclass(frozen=True)
class CorrectivePlan:
    """What may be told in one request, and the tokens that end it."""

    plan: Plan
    ends: frozenset[int]
    is_covered: bool  # whether an example was in scope


# A question and the tokens that end its answer -> what may be told; None: nothing.
PlanFor = Callable[[str, Sequence[int]], CorrectivePlan | None]


@dataclass(frozen=True)
class Decision:
    """What is lifted in one row at one step."""

    votes: Votes | None  # None: no example has a say here
    candidates: Sequence[int]  # the tokens that are lifted


@dataclass(frozen=True)
class Lifted:
    """What became of the logits of a step."""

    logits: torch.Tensor  # (rows, vocabulary); the very ones given where nothing is lifted
    decisions: Sequence[Decision]  # of each row


NOTHING = Decision(None, ())


@dataclass(frozen=True)
class Correction:
    """A request that verified answers have something to say in."""

    told: CorrectivePlan
    margin: float
    strength: float

    def decide(self, output_ids: Sequence[int], logits: torch.Tensor) -> Decision:
        """Who speaks behind the tokens of the answer so far, given its row (vocabulary,).

        END stands for every token that ends the answer; a banned token (-inf) is no candidate.
        """
        votes = self.told.plan.votes(output_ids)
        if votes is None:
            return NOTHING
        wanted = {
            token
            for voted in votes.candidates
            for token in (self.told.ends if voted == END else (voted,))
        }
        known = sorted(token for token in wanted if token < len(logits))
        values = logits[known].tolist()
        free = [token for token, value in zip(known, values, strict=True) if value > -torch.inf]
        # What declines to answer is no example's word.
        return Decision(votes if free and self.told.is_covered else None, free)

    def lift(self, output_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """The logits (vocabulary,) to pick the next token from, before temperature."""
        return lift_rows([self], [output_ids], logits[None]).logits[0]


def lift_rows(
    corrections: Sequence[Correction | None],
    outputs: Sequence[Sequence[int]],
    logits: torch.Tensor,
) -> Lifted:
    """The same for a batch (rows, vocabulary) of any requests; None leaves a row alone."""
    decisions = [
        NOTHING if own is None else own.decide(output, logits[row])
        for row, (own, output) in enumerate(zip(corrections, outputs, strict=True))
    ]
    rows = [row for row, found in enumerate(decisions) if found.candidates]
    if not rows:
        return Lifted(logits, decisions)
    speaking = [own for row in rows if (own := corrections[row]) is not None]
    is_all = len(rows) == len(logits)
    base = logits if is_all else logits[rows]
    numbers = torch.tensor([[own.margin, own.strength] for own in speaking]).to(base.device)
    candidates = [decisions[row].candidates for row in rows]
    lifted = lift(base, candidates, margin=numbers[:, 0], strength=numbers[:, 1])
    for at, own in enumerate(speaking):
        if own.told.plan.is_fixed:  # nothing else may be said
            only = torch.full_like(base[at], -torch.inf)
            only[candidates[at]] = base[at, candidates[at]]
            lifted[at] = only
    if is_all:
        return Lifted(lifted, decisions)
    final = logits.clone()
    final[rows] = lifted
    return Lifted(final, decisions)


@dataclass(frozen=True)
class Corrector:
    """Corrective decoding on one space with one tokenizer: makes corrections."""

    prompt: Prompt  # what a question stands in where the tokenizer has no chat template
    reader: TokenReader
    plan_for: PlanFor
    margin: float
    strength: float

    def find(self, tokens: Sequence[int]) -> FoundQuestion | None:
        """The question among the tokens of a prompt, and where its answer begins."""
        return find_question(self.prompt, self.reader.tokenizer, tokens)

    def begin(
        self,
        prompt_ids: Sequence[int] | None = None,
        *,
        question: str | None = None,
        stop_ids: Sequence[int] = (),
    ) -> Correction | None:
        """What is lifted in one request; None: nothing, the model is to be left alone.

        The question is the one given, or else the last user turn of the prompt. `stop_ids` end
        this request beside the tokens that end any.
        """
        if question is None and prompt_ids is not None:
            found = self.find(prompt_ids)
            is_whole = found is not None and found.start >= len(prompt_ids)
            question = found.question if found is not None and is_whole else None
        told = self.plan_for(question, stop_ids) if question else None
        return None if told is None else Correction(told, self.margin, self.strength)
