"""Questions and examples from many sources -> pairs that train the matcher, and its held sets.

    python benchmarks/matcher_data.py --data DATA --out work/matcher
    python benchmarks/matcher_data.py --data DATA --sample 200     prints machine-made pairs

Writes pairs.jsonl.gz, one JSON object a line: question, example (its question), answers, label
(1: the example answers the question, 0: it does not, null: nobody knows, for soft labels), source,
weight (how often it is drawn), group (the pairs of one question in one space). Writes
held.jsonl.gz, one space a line: what measures the matcher and must never train it. Pairs too
near to a held text are dropped and counted.
"""

import argparse
import csv
import gzip
import hashlib
import json
import random
import re
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from contrast_pairs import Contrasts, WordNet, fetch_wordnet, names_in, words_in

from trueline.examples import read_examples
from trueline.types import Example

HERE = Path(__file__).parent
FACTS = HERE.parent / "src" / "trueline" / "facts"
EMBEDDER = "all-minilm-l6-v2"
TESTED = 4  # every fourth FAQ of faqs.jsonl is held back
CANDIDATES = 6  # examples that the embedder proposes for a question
HARD = 3  # of the nearest ones that do not answer, in training
UNRELATED = 200  # unrelated questions that every training space meets
SAME_WORDS, SAME_VECTOR = 0.75, 0.93  # Jaccard of words, cosine: a near duplicate
SOME_WORDS = 0.25  # Jaccard from which on the cosine is looked at
INTENT_ROWS = 2_500  # questions drawn from each set of intents
# What their rows ask for differs in a word that the intent does not name (a city, a number).
OPEN_INTENTS = frozenset(
    """translate definition spelling calculator measurement_conversion exchange_rate weather time
    timezone distance directions traffic recipe nutrition_info calories cook_time food_last
    ingredients_list ingredient_substitution restaurant_reviews restaurant_suggestion how_busy
    meal_suggestion travel_suggestion international_visa vaccines plug_type carry_on book_flight
    book_hotel car_rental flight_status transfer transactions spending_history pay_bill bill_due
    bill_balance min_payment make_call text play_music reminder reminder_update calendar alarm
    calendar_update shopping_list shopping_list_update todo_list todo_list_update smart_home timer
    meeting_schedule schedule_meeting restaurant_reservation accept_reservations uber date order
    confirm_reservation cancel_reservation share_location current_location travel_notification
    travel_alert update_playlist change_volume change_speed change_language change_accent roll_dice
    international_fees interest_rate balance rewards_balance credit_limit new_card fun_fact
    tell_joke exchange_via_app country_support fiat_currency_support supported_cards_and_currencies
    receiving_money oos""".split()
)


@dataclass(frozen=True)
class Pair:
    """A question and one example of a space."""

    question: str
    example: str
    answers: tuple[str, ...]
    label: int | None
    source: str
    weight: float
    group: int = -1


@dataclass(frozen=True)
class Asked:
    """A question, the ids of the examples that answer it, and those it may be mistaken for."""

    text: str
    means: tuple[str, ...]
    near: tuple[str, ...] = ()
    source: str = ""
    weight: float = 1.0


@dataclass(frozen=True)
class Space:
    """Examples that stand together, and the questions about them."""

    name: str
    examples: list[Example]
    asked: list[Asked] = field(default_factory=list)


def read_lines(path):
    """The objects of a file of JSON lines, packed or not."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def written_faqs(split):
    """The FAQs of pairs/faqs.jsonl.gz: one space each."""
    spaces = {}
    for line in read_lines(HERE / "pairs" / "faqs.jsonl.gz"):
        if line["split"] != split:
            continue
        space = spaces.setdefault(line["faq"], Space(line["faq"], []))
        if line["kind"] == "entry":
            space.examples.append(Example(line["question"], line["answers"], id=line["id"]))
        else:
            near = tuple(id for id in line["near"] if id not in line["answered_by"])
            given = (line["text"], tuple(line["answered_by"]), near, f"faqs/{line['style']}")
            space.asked.append(Asked(*given))
    return [*spaces.values()]


def repo_faqs(tested):
    """The FAQs of faqs.jsonl that are fitted to, or those that are held back."""
    lines = [line for line in read_lines(HERE / "faqs.jsonl") if line.get("kind") != "tasks"]
    spaces = []
    for number, name in enumerate(sorted({line["faq"] for line in lines})):
        if (number % TESTED == 0) != tested:
            continue
        space = Space(name, [])
        for line in (line for line in lines if line["faq"] == name):
            id = line["id"]
            space.examples.append(Example(line["question"], line["answers"], id=id))
            space.asked.extend(
                Asked(one["text"], (id,), (), "repo faqs/paraphrase")
                for one in line["paraphrases"]
            )
            space.asked.extend(
                Asked(text, (), (id,), "repo faqs/near miss") for text in line["near_misses"]
            )
        spaces.append(space)
    return spaces


def facts_space(side, files, *, regimes=("paraphrase", "near miss")):
    """Shipped facts with the questions of some files about them."""
    asked = []
    for line in (line for path in files for line in read_lines(path)):
        about = tuple(line["about"]) if "about" in line else (line["fact"],)
        if line["regime"] in regimes:
            covered = line["regime"] != "near miss"
            source = f"facts/{line['regime']}"
            asked.append(Asked(line["question"], about if covered else (), about, source))
    return Space(f"facts:{side}", read_examples(f"facts:{side}"), asked)


def quebec(data):
    """A government's FAQ with the wordings of a crowd, some of which are wrong."""
    space, seen = Space("quebec", []), set()
    for number, line in enumerate(read_lines(data / "quebec_covid_faq/quebec_covid_faq.jsonl")):
        question, answer = line["faq_question"].strip(), " ".join(line["answer"].split())
        if not question or not answer or answer in seen:
            continue
        seen.add(answer)
        id = f"quebec-{number}"
        space.examples.append(Example(question, [answer], id=id))
        for one in line["crowd_questions"]:
            text = one["text"].strip(" ¿")
            if 3 <= len(text.split()) <= 30 and text not in answer:
                space.asked.append(Asked(text, (id,), (), "quebec", 0.3))
    return space


def zsre(data):
    """Facts of Wikidata: a rewording each; another relation and another subject as near misses."""
    lines = read_lines(data / "knowedit_zsre/zsre_test_all.jsonl")
    pairs = []
    for group, (line, other) in enumerate(pairwise([*lines, lines[0]])):
        prompt, subject = line["prompt"], line["subject"]
        answers = (line["target_new"] if group % 2 else line["ground_truth"][0],)
        texts = [(prompt, 1), (line["rephrase_prompt"], 1)]
        texts += [
            (text.replace(subject, other["subject"]), 0)
            for text, _ in [*texts] if subject in text
        ]  # fmt: skip
        beside = line["locality"].get("Relation_Specificity", [])
        texts += [(one["prompt"], 0) for one in beside[:2]]
        pairs += [
            Pair(text, prompt, answers, label, "zsre", 0.5)
            for text, label in dict(texts).items()
        ]
    return pairs


def kmemo(data):
    """Prompts that look alike, both ways round."""
    found = json.loads((data / "kmemo/near-miss-corpus.json").read_text("utf-8"))["pairs"]
    both = [(one["a"], one["b"], one["shouldMatch"]) for one in found]
    both += [(b, a, same) for a, b, same in both]
    return [Pair(a, b, (), int(same), "kmemo", 1.0) for a, b, same in both]


def intents(data):
    """{set: {intent: its rows}} of banking77 and clinc150, without those that name no question."""
    found = {"banking77": defaultdict(list), "clinc150": defaultdict(list)}
    for name in ("train", "test"):
        with (data / f"banking77/{name}.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                found["banking77"][row["category"]].append(row["text"])
    for name in ("train", "oos_and_test"):
        for line in read_lines(data / f"clinc150/clinc150_{name}.jsonl"):
            found["clinc150"][line["intent"]].append(line["text"])
    return found


def intent_pairs(rng, name, rows, nearest):
    """Wordings of one intent as positives, of its nearest intents as hard negatives."""
    names = sorted(rows)
    anchors = {intent: rng.sample(rows[intent], min(20, len(rows[intent]))) for intent in names}
    near = nearest.intents([anchors[intent] for intent in names])
    pairs = []
    for _ in range(INTENT_ROWS):
        at = rng.randrange(len(names))
        intent = names[at]
        question = rng.choice(rows[intent])
        texts = [(rng.choice(anchors[names[other]]), 0) for other in rng.sample(near[at], 3)]
        same = rng.choice(anchors[intent])
        if (
            intent not in OPEN_INTENTS
            and figures(same) == figures(question)
            and same != question
        ):
            texts.append((same, 1))
        pairs.append([Pair(question, text, (), label, name, 0.25) for text, label in texts])
    return pairs


def figures(text):
    """What must agree for two wordings to ask for the same: numbers and names."""
    return set(re.findall(r"\d+|(?<=\w )[A-Z]\w+", text))


def trivia(data, *, half):
    """The first halves of three sets of trivia (to train) or the second ones (to measure)."""
    found = []
    for file, question, answer in (
        ("nq_open/nq_open_dev", "question", "answer"),
        ("popqa/popqa_1k", "question", "obj"),
        ("simpleqa/simpleqa_every4", "problem", "answer"),
    ):
        lines = read_lines(data / f"{file}.jsonl")
        middle = len(lines) // 2
        found += [
            Example(one[question], one[answer])
            for one in (lines[:middle], lines[middle:])[half]
        ]
    return found


class Nearest:
    """Which examples, intents and held texts are near, by the embedder; vectors are kept."""

    def __init__(self, cache):
        from trueline.embed import load_embedder

        self.embedder = load_embedder(EMBEDDER)
        self.path, self.known = cache / "vectors.npz", {}
        if self.path.exists():
            with np.load(self.path) as kept:
                self.known = dict(zip(kept["keys"].tolist(), kept["vectors"], strict=True))

    def vectors(self, texts):
        """Unit vectors (texts, dimension)."""
        keys = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
        new = {
            key: text for key, text in zip(keys, texts, strict=True) if key not in self.known
        }
        todo = sorted(new, key=lambda key: len(new[key]))
        for start in range(0, len(todo), 64):
            part = todo[start : start + 64]
            made = self.embedder.embed([new[key] for key in part]).numpy()
            self.known.update(zip(part, made, strict=True))
            if len(self.known) // 5_000 > (len(self.known) - len(part)) // 5_000:
                self.save()
        return np.stack([self.known[key] for key in keys])

    def examples(self, space, texts, most):
        """For each text the examples of a space, the nearest first, by question or answer."""
        own = self.vectors([one.question for one in space.examples])
        full = self.vectors([f"{one.question} {one.answers[0]}" for one in space.examples])
        asked = self.vectors(texts)
        order = np.argsort(-np.maximum(asked @ own.T, asked @ full.T), axis=1)[:, :most]
        return [[space.examples[at] for at in row] for row in order]

    def intents(self, anchors):
        """For each intent the five nearest others."""
        centers = np.stack([self.vectors(texts).mean(0) for texts in anchors])
        order = np.argsort(-(centers @ centers.T), axis=1)
        return [[int(n) for n in row if n != at][:5] for at, row in enumerate(order)]

    def save(self):
        """Keep the vectors for another run, also of one that is ended here."""
        new = self.path.with_name("new.npz")
        np.savez(new, keys=[*self.known], vectors=np.stack([*self.known.values()]))
        new.replace(self.path)


class Held:
    """The texts that measure, which no training pair may come near to."""

    def __init__(self, texts, nearest=None):
        self.words = [frozenset(words_in(text)) for text in texts]
        self.places = defaultdict(list)
        for at, words in enumerate(self.words):
            for word in words:
                self.places[word].append(at)
        self.nearest = nearest
        self.vectors = nearest.vectors(texts) if nearest else None

    def shared(self, text):
        """The greatest Jaccard of words with a held text, in whatever order."""
        words = set(words_in(text))
        places = {
            at for word in words
            if len(self.places[word]) < 0.2 * len(self.words) + 10  # others tell nothing
            for at in self.places[word]
        }  # fmt: skip
        return max(
            (len(words & self.words[at]) / len(words | self.words[at]) for at in places),
            default=0,
        )

    def near(self, texts, machine=frozenset()):
        """Those of some texts that are near duplicates; machine-made ones go by words alone."""
        shared = {text: self.shared(text) for text in {*texts, *machine}}
        found = {text for text, most in shared.items() if most >= SAME_WORDS}
        doubtful = sorted(text for text in texts if SOME_WORDS <= shared[text] < SAME_WORDS)
        if self.nearest and doubtful:
            cosines = self.nearest.vectors(doubtful) @ self.vectors.T  # (texts, held texts)
            found |= {
                text for text, most in zip(doubtful, cosines.max(1), strict=True)
                if most > SAME_VECTOR
            }  # fmt: skip
        return found


def space_pairs(rng, space, nearest, unrelated):
    """The groups of pairs of one space: its questions, unrelated ones, each with candidates."""
    by_id = {one.id: one for one in space.examples}
    own = [Asked(one.question, (one.id,), (), "own question", 0.3) for one in space.examples]
    asked = [*space.asked, *own]
    ranked = nearest.examples(space, [one.text for one in asked], HARD + 3)
    groups = []
    for one, near in zip(asked, ranked, strict=True):
        hard = [by_id[id] for id in one.near if id not in one.means]
        hard += [
            example for example in near
            if example.id not in one.means and example not in hard
            and not (one.source == "quebec" and too_alike(nearest, example, by_id[one.means[0]]))
        ]  # fmt: skip
        chosen = [(by_id[id], 1) for id in one.means]
        chosen += [(example, 0) for example in hard[: max(HARD, len(one.near))]]
        groups.append(
            [
                Pair(one.text, each.question, each.answers, label, one.source, one.weight)
                for each, label in chosen
            ]
        )
    texts = rng.sample(unrelated, min(UNRELATED, len(unrelated)))
    for text, near in zip(texts, nearest.examples(space, texts, 1), strict=True):
        chosen = [*near, rng.choice(space.examples)]
        groups.append(
            [_unrelated(text, one) for one in {id(one): one for one in chosen}.values()]
        )
    return groups


def _unrelated(text, example):
    return Pair(text, example.question, example.answers, 0, "unrelated", 0.1)


def too_alike(nearest, one, other):
    """Whether two entries of a FAQ that nobody curated may answer the same questions."""
    vectors = nearest.vectors([one.question, other.question, one.answers[0], other.answers[0]])
    return vectors[0] @ vectors[1] > 0.7 or vectors[2] @ vectors[3] > 0.8


def crossed_pairs(rng, spaces, nearest, count):
    """Questions of one FAQ with the nearest examples of another: nobody knows the label."""
    groups = []
    for _ in range(count // 20):
        asked, other = rng.sample(spaces, 2)
        texts = [one.text for one in rng.sample(asked.asked, min(10, len(asked.asked)))]
        for text, near in zip(texts, nearest.examples(other, texts, 2), strict=True):
            groups.append(
                [Pair(text, one.question, one.answers, None, "crossed", 0.2) for one in near]
            )
    return groups


def machine_pairs(rng, contrasts, bases, *, each=4):
    """Contrast pairs and rewordings, one a group, made from questions that an example answers."""
    groups = []
    for base in bases:
        deciding = set(words_in(" ".join(base.answers)))
        rounds = [made for _ in range(3) for made in contrasts.negatives(rng, base)]
        bad = [*{new: (rule, new, 0) for rule, new in rounds}.values()]
        good = [
            (rule, new, 1) for rule, new in contrasts.positives(rng, base.question, deciding)
        ]
        made = rng.sample(bad, min(each, len(bad))) + rng.sample(good, min(2, len(good)))
        for rule, new, label in made:
            if not label and rng.random() < 0.3:  # else the frame would tell the label
                _, new = rng.choice(contrasts.positives(rng, new, deciding))
            source = f"machine/{rule}"
            groups.append([replace(base, question=new, label=label, source=source)])
    return groups


def machine_doubles(rng, spaces, unrelated, count):
    """Two questions in one, about two entries or about one and something else."""
    groups = []
    for _ in range(count):
        space = rng.choice(spaces)
        by_id = {one.id: one for one in space.examples}
        single = [one for one in space.asked if len(one.means) == 1]
        first, second = rng.sample(single, 2)
        parts, examples = (
            [first.text, second.text],
            [by_id[first.means[0]], by_id[second.means[0]]],
        )
        if rng.random() < 0.4:
            parts, examples = [first.text, rng.choice(unrelated)], examples[:1]
        rng.shuffle(parts)
        text = rng.choice(("{} {}", "{} And {}", "{} Also, {}")).format(*parts)
        labels = {one.id: one for one in examples}
        groups.append(
            [
                Pair(text, one.question, one.answers, 1, "machine/double", 0.5)
                for one in labels.values()
            ]
        )
    return groups


def held_sets(data):
    """(set, its spaces) of all that measures."""
    ground = read_examples("facts:ground")
    first = facts_space("test", [FACTS / "test_questions.jsonl"])
    second = facts_space("test", [HERE / "second_questions.jsonl"])
    sets = {
        "test facts, first set": [replace(first, examples=[*first.examples, *ground])],
        "test facts, second set": [replace(second, examples=[*second.examples, *ground])],
        "held-back FAQs": repo_faqs(tested=True),
        "calibration FAQs": written_faqs("calibration"),
    }
    return sets, held_texts(data, sets)


def held_texts(data, sets):
    """Every text that training pairs are kept away from."""
    facts = {one.question for one in read_examples("facts:ground")}
    spaces = [space for group in sets.values() for space in group]
    texts = {one.text for space in spaces for one in space.asked}
    texts |= {one.question for space in spaces for one in space.examples} - facts
    texts |= {line["question"] for line in read_lines(FACTS / "test_questions.jsonl")}
    for line in read_lines(data / "covid_faq_chatbot/covid_faq.jsonl"):
        texts |= {line["faq_question"], *line["user_queries"]}
    return sorted(texts.union(one.question for one in trivia(data, half=1)))


def held_lines(sets, nearest, unrelated):
    """One line a space: examples, and questions with the places of right ones and candidates."""
    for name, spaces in sets.items():
        for space in spaces:
            at = {one.id: n for n, one in enumerate(space.examples)}
            asked = [
                (one.text, one.means, "own" if one.means else "near miss")
                for one in space.asked
            ]
            asked += [(text, (), "unrelated") for text in unrelated]
            ranked = nearest.examples(space, [text for text, _, _ in asked], CANDIDATES)
            yield {
                "set": name,
                "space": space.name,
                "examples": [[one.question, one.answers[0]] for one in space.examples],
                "questions": [
                    [text, kind, [at[id] for id in means], [at[one.id] for one in near]]
                    for (text, means, kind), near in zip(asked, ranked, strict=True)
                ],
            }  # fmt: skip


def assemble(data, nearest, wordnet, held, seed):
    """All groups of pairs, and how many were dropped from each source."""
    rng = random.Random(seed)
    spaces = [*written_faqs("train"), *repo_faqs(tested=False)]
    ground = facts_space(
        "ground", [FACTS / "ground_questions.jsonl", HERE / "hand_questions.jsonl"]
    )
    rows = intents(data)
    small_talk = (HERE / "pairs" / "unrelated.txt").read_text("utf-8").splitlines()
    learnt = trivia(data, half=0)
    unrelated = [one.question for one in learnt] + 4 * small_talk + rows["clinc150"]["oos"]
    groups = [
        group for space in (*spaces, ground, quebec(data))
        for group in space_pairs(rng, space, nearest, unrelated)
    ]  # fmt: skip
    by_question = defaultdict(list)
    for pair in (*zsre(data), *kmemo(data)):
        by_question[pair.question].append(pair)
    groups += by_question.values()
    for name in rows:
        groups += intent_pairs(rng, name, rows[name], nearest)
    bases = machine_bases(rng, [*spaces, ground], learnt, rows)
    known = [*learnt, *(one for space in spaces for one in space.examples)]
    names = {name for one in known for name in names_in(one.question)}
    names = {name for name in names if not wordnet.known(name.split()[0].lower())}
    groups += machine_pairs(rng, Contrasts(wordnet, sorted(names)), bases)
    groups += machine_doubles(rng, [*spaces, ground], unrelated, 3_000)
    groups += crossed_pairs(rng, spaces, nearest, 10_000)
    return without_held(groups, held)


def machine_bases(rng, spaces, learnt, rows):
    """Answered pairs that machine-made ones start from; those of intents have no answers."""
    bases = []
    for space in spaces:
        by_id = {one.id: one for one in space.examples}
        own = [(one.question, one) for one in space.examples]
        asked = [
            (one.text, by_id[one.means[0]]) for one in space.asked
            if len(one.means) == 1 and not one.source.endswith(("misspelt", "double"))
        ]  # fmt: skip
        bases += [
            Pair(text, one.question, one.answers, 1, "", 0.5) for text, one in own + asked
        ]
    bases += [Pair(one.question, one.question, one.answers, 1, "", 0.25) for one in learnt]
    texts = [text for intents in rows.values() for texts in intents.values() for text in texts]
    texts = [text for text in texts if len(text.split()) <= 9]  # in others much is aside
    return bases + [Pair(text, text, (), 1, "", 0.25) for text in rng.sample(texts, 4_000)]


def without_held(groups, held):
    """The groups without pairs near to a held text, numbered; dropped pairs by source."""
    pairs = [(number, pair) for number, group in enumerate(groups) for pair in group]
    machine = {one.question for _, one in pairs if one.source.startswith("machine/")}
    others = {one.example for _, one in pairs} | {one.question for _, one in pairs} - machine
    near = held.near(others, machine)
    kept = [replace(one, group=n) for n, one in pairs if not {one.question, one.example} & near]
    dropped = Counter(one.source for _, one in pairs if {one.question, one.example} & near)
    return kept, dropped


def write_lines(path, lines):
    """A packed file of JSON lines, the same bytes each time; its hash."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return hashlib.sha256(text.encode()).hexdigest()


def print_sample(pairs, count, seed):
    """Machine-made pairs drawn by seed, to be read by a person."""
    made = [one for one in pairs if one.source.startswith("machine/")]
    for number, one in enumerate(random.Random(seed).sample(made, min(count, len(made)))):
        answer = one.answers[0][:120] if one.answers else ""
        print(
            f"{number:3} {one.label} {one.source[8:]:18} {one.question}\n      {one.example} | {answer}"
        )


def main():
    """Write pairs and held sets, and print what came from where."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("work/matcher"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sample", type=int, default=0, help="print so many machine-made pairs"
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    nearest = Nearest(given.out)
    wordnet = WordNet(fetch_wordnet(given.out / "wordnet"))
    sets, texts = held_sets(given.data)
    pairs, dropped = assemble(given.data, nearest, wordnet, Held(texts, nearest), given.seed)
    counts = Counter((one.source, one.label) for one in pairs)
    for source in sorted({source for source, _ in counts}):
        yes, no, open_ = (counts[source, label] for label in (1, 0, None))
        print(
            f"{source:28} {yes:7} answered {no:7} not {open_:6} open {dropped[source]:5} dropped"
        )
    total = [sum(one.label == label for one in pairs) for label in (1, 0, None)]
    print(
        f"{'all':28} {total[0]:7} answered {total[1]:7} not {total[2]:6} open {dropped.total():5} dropped"
    )
    second = [one.question for one in trivia(given.data, half=1)]
    unrelated = random.Random(given.seed).sample(second, 100)
    held_lines_ = held_lines(sets, nearest, unrelated)
    hashes = {
        "pairs": write_lines(given.out / "pairs.jsonl.gz", map(asdict, pairs)),
        "held": write_lines(given.out / "held.jsonl.gz", held_lines_),
    }
    nearest.save()
    print_sample(pairs, given.sample, given.seed)
    print(json.dumps({"pairs": len(pairs), "seed": given.seed, **hashes}))


if __name__ == "__main__":
    main()
