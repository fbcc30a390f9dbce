"""Corrective decoding, written down slowly: full logits, no cache, no batch, no stored cuts.

Everything else in the project is held to this page. It shares no code with the package. The
model is called over the whole text for every token, votes and logits are plain Python numbers,
and what was said is compared with a verified answer byte by byte, so a character that is cut
into several tokens needs no rule of its own. It reads tokenizers that work on bytes.

Scope is given: a list of (example, log-odds, part).
"""

import math
from dataclasses import dataclass, replace

import torch

END = "the end"


@dataclass(frozen=True)
class Form:
    """The requested form; its names are those of `turns.FormRequest`."""

    sentences: int = 1
    is_text: bool = False
    is_counted: bool = False
    words: int | None = None
    opening: str = ""
    closing: str = ""
    is_upper: bool = False
    is_open: bool = False


@dataclass(frozen=True)
class Verified:
    """One truthful answer of an example in scope."""

    number: int  # of the example in the scope
    log_odds: float
    siblings: int  # n_j: answers of its example
    part: int
    writings: tuple[str, ...]  # as it begins a sentence, then as it stands inside one


class CorrectiveOracle:
    def __init__(self, model, tokenizer, stop_ids):
        self.model, self.tokenizer, self.stop_ids = model, tokenizer, sorted(stop_ids)
        self.byte_of = {sign: byte for byte, sign in _signs_of_bytes().items()}

    # Text and tokens

    def cut(self, text):
        """The tokens of a text behind another one."""
        line = self.tokenizer.encode("\n", add_special_tokens=False)
        tokens = self.tokenizer.encode("\n" + text, add_special_tokens=False)
        assert tokens[: len(line)] == line
        return tokens[len(line) :]

    def bytes(self, tokens):
        """What was said; special tokens say nothing."""
        special = set(self.tokenizer.all_special_ids)
        names = self.tokenizer.convert_ids_to_tokens([t for t in tokens if t not in special])
        return bytes(self.byte_of[sign] for name in names for sign in name)

    # Who says what

    def votes(self, scope, tokens, wish=Form()):  # noqa: B008
        """vote(x) = sum of w_i with x_i = x;   {} off track."""
        said = self.bytes(tokens)
        answers = verified_answers(scope, wish)
        told = {a: found for a in answers if (found := _find_told(a, said))}
        left = {a.part: 0 for a in answers}
        for part in left:
            there = sum(a.part == part for a in answers)
            wanted = min(wish.sentences, there)
            left[part] = wanted - sum(a.part == part for a in told)
        voters = []  # (answer, a_i, the tokens it says)
        for answer in answers:
            if answer in told:
                continue
            places = sorted({0, *(end for end, _ in told.values())})
            found = self._begun(answer, said, places, left[answer.part] > 0)
            if found:
                voters.append((answer, *found))
        may_end = not wish.is_text or (wish.is_counted and len(told) >= wish.sentences)
        may_end = may_end and not wish.is_open
        if all(count <= 0 for count in left.values()) and may_end:
            for answer, (end, writing) in told.items():
                if end == len(said):
                    blanks = _blanks(said[: end - len(writing.encode())].rstrip(b" "))
                    length = max(len(self.cut(blank + writing)) for blank in blanks)
                    voters.append((answer, 1 + length, {END}))
        if not voters and said:
            for answer in answers:
                found = answer not in told and self._joined(answer, said)
                if found:
                    voters.append((answer, *found))
        scores = [a + v.log_odds - math.log(v.siblings) for v, a, _ in voters]
        total = math.fsum(math.exp(score - max(scores)) for score in scores)
        votes = {}
        for (_, _, says), score in zip(voters, scores):
            weight = math.exp(score - max(scores)) / total
            for token in says:  # several where it may be cut in several ways
                votes[token] = votes.get(token, 0.0) + weight / len(says)
        return votes

    def _begun(self, answer, said, places, may_begin):
        """(a_i, next tokens) of an answer that was begun at one of the places, or may be."""
        for place in places:
            before, own = said[:place], said[place:].lstrip(b" ")
            is_beginning = not _whole(own)  # not even its first letter was said
            if is_beginning and not may_begin:
                continue
            if not own:
                return 1, {
                    self.cut(blank + writing)[0]
                    for writing in _at_start(answer, before)
                    for blank in _blanks(said)
                }
            steps = [
                step
                for writing in (_at_start(answer, before) if is_beginning else answer.writings)
                for blank in _blanks(before)
                if (step := self._next(blank, writing, own))
            ]
            if steps:
                return 1 + max(count for count, _ in steps), {token for _, token in steps}
        return None

    def _next(self, blank, writing, own):
        """(tokens of its own that were said, the next one) of one way of writing an answer."""
        if not writing.encode().startswith(own):
            return None
        tokens = self.cut(blank + writing)
        prefixes = [self.bytes(tokens[:k]).lstrip(b" ") for k in range(len(tokens) + 1)]
        for k in range(len(tokens)):  # the same words cut in the same way
            if prefixes[k] == own:
                return k, tokens[k]
        if _whole(own) != own:  # within a character that was cut in another way
            return None
        rest = self.cut(writing.encode()[len(own) :].decode())  # what remains, cut anew
        count = max(k for k, p in enumerate(prefixes) if len(_whole(p)) <= len(own))
        return (count, rest[0]) if rest else None

    def _joined(self, answer, said):
        """(a_i, next tokens) of an answer of which four or more tokens in a row were said."""
        tokens = self.cut(" " + answer.writings[0])
        heard, half = _text(_whole(said)).casefold(), said[len(_whole(said)) :]
        best = (0, 0)
        for end in range(4, len(tokens)):
            prefix = self.bytes(tokens[:end])
            own_half = prefix[len(_whole(prefix)) :]
            for start in range(end):
                run = _text(_whole(prefix)[len(_whole(self.bytes(tokens[:start]))) :])
                run = (run if start else run.lstrip(" ")).casefold()
                if own_half == half and heard.endswith(run):
                    best = max(best, (end - start, end))
                    break
        length, end = best
        return (length, {tokens[end]}) if length >= 4 else None

    # Logits

    @torch.no_grad()
    def logits(self, tokens):
        """The model's own logits behind a text, from scratch."""
        out = self.model(input_ids=torch.tensor([tokens]), use_cache=False)
        return out.logits[0].float().tolist()

    def lifted(self, base, votes, *, strength=1.0, margin=5.0):
        """final(x) = base(x) + strength * L for the candidates x, base(x) elsewhere."""
        candidates = set()
        for token, share in votes.items():
            if share >= 0.5 * max(votes.values()):
                candidates |= set(self.stop_ids) if token == END else {token}
        candidates = {x for x in candidates if x < len(base) and base[x] > -math.inf}
        if not candidates:
            return list(base)
        outside = [value for x, value in enumerate(base) if x not in candidates]
        inside = [base[x] for x in candidates]
        lift = max(0.0, margin + _log_sum(outside) - _log_sum(inside))
        return [
            value + strength * lift if x in candidates else value
            for x, value in enumerate(base)
        ]

    def decode(self, prompt, scope, *, length, wish=Form(), **settings):  # noqa: B008
        """Greedy decoding; the token that ends the answer is kept."""
        tokens = list(prompt)
        for _ in range(length):
            votes = self.votes(scope, tokens[len(prompt) :], wish)
            final = self.lifted(self.logits(tokens)[-1], votes, **settings)
            tokens.append(final.index(max(final)))
            if tokens[-1] in self.stop_ids:
                break
        return tuple(tokens[len(prompt) :])

    def follow(self, prompt, answer, scope, *, wish=Form(), **settings):  # noqa: B008
        """The final logits at each place of a given answer, given the text before it.

        If the answer's own tokens are best everywhere, `decode` would give this answer: each
        pick leads to the next text. One pass over the whole text gives the model's logits.
        """
        base = self.logits([*prompt, *answer])
        for at in range(len(answer)):
            votes = self.votes(scope, answer[:at], wish)
            yield self.lifted(base[len(prompt) + at - 1], votes, **settings)

    def picks(self, prompt, answer, scope, **settings):
        """The token it would pick at each place of a given answer."""
        return tuple(
            final.index(max(final)) for final in self.follow(prompt, answer, scope, **settings)
        )

    def log_probability(self, prompt, answer, scope, **settings):
        """log p(answer), read off the log-softmax of the final logits."""
        finals = self.follow(prompt, answer, scope, **settings)
        return math.fsum(final[x] - _log_sum(final) for x, final in zip(answer, finals))


def verified_answers(scope, wish):
    """Every truthful answer in scope; the short ones alone where there are any.

    Where more than one is to be told, no answer is framed or left out for its length.
    """
    if len({part for _, _, part in scope}) > 1 or wish.sentences > 1:
        wish = replace(wish, words=None, opening="", closing="")
    found = [
        Verified(number, log_odds, len(example.answers), part, _writings(text.strip(), wish))
        for number, (example, log_odds, part) in enumerate(scope)
        for text in example.answers
    ]
    short = [one for one in found if wish.words and len(one.writings[0].split()) <= wish.words]
    return short or found


def _writings(text, wish):
    begins, inside = text, text
    if text[0].isupper() and text[1:2].islower():  # a word, and no abbreviation
        inside = text[0].lower() + text[1:]
    ways = [begins] if inside == begins else [begins, inside]
    if wish.opening:  # behind a comma a sentence goes on, else a new one begins
        goes_on = wish.opening.endswith(",")
        ways = [f"{wish.opening} {way}" for way in (reversed(ways) if goes_on else ways[:1])]
    if wish.closing:
        ways = [f"{way} {wish.closing}" for way in ways]
    return tuple(way.upper() if wish.is_upper else way for way in ways)


def _at_start(answer, before):
    """Inside a sentence it may also begin with a small letter."""
    before = _text(before).rstrip(" ")
    return answer.writings if before and before[-1] not in ".?!:\n" else answer.writings[:1]


def _blanks(before):
    """The model's template may or may not end in a blank; behind words there stands one."""
    before = _text(before)
    if not before:
        return ["", " "]
    return [""] if before[-1].isspace() or before[-1] in "\"'([{" else [" "]


def _find_told(answer, said):
    """Where it ends, and how it was written; None: it was not told."""
    ways = [(way, way.encode()) for way in answer.writings]
    return max(
        ((said.rfind(own) + len(own), way) for way, own in ways if own in said), default=None
    )


def _text(said):
    return said.decode("utf-8", "replace")


def _whole(said):
    """What was said, up to its last whole character."""
    while said and _text(said).endswith("\ufffd"):
        said = said[:-1]
    return said


def _log_sum(values):
    best = max(values, default=-math.inf)
    if best == -math.inf:
        return best
    return best + math.log(math.fsum(math.exp(value - best) for value in values))


def _signs_of_bytes():
    """How tokenizers that work on bytes spell each of them (the table of GPT-2)."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    signs = {byte: chr(byte) for byte in printed}
    others = [byte for byte in range(256) if byte not in printed]
    return signs | {byte: chr(256 + number) for number, byte in enumerate(others)}
