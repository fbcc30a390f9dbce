"""Train the matcher, a pair model: [CLS] question [SEP] example's question [SEP] its answer [SEP].

    python benchmarks/train_matcher.py --data work/matcher --out work/model --minutes 75
    python benchmarks/train_matcher.py --data work/matcher --out work/model --score soft.npz

The first command goes on where a run was ended, and prints how the held sets are answered. The
second writes what the trained model says of every pair: a larger model's file is the --teacher of
a smaller one. Reads the files of matcher_data.py. An encoder with frozen word vectors, the mean of
its last states, one linear output: the log-odds that the example answers the question.
"""

import argparse
import gzip
import hashlib
import inspect
import json
import os
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import roc_auc_score
from tokenizers import Tokenizer
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, pad
from transformers import AutoModel, logging

from trueline.engines.models import resolve

LIMIT = 96  # tokens of a pair
CHUNK = 8  # batches that are drawn together, so that each holds pairs of about one length
WARM_UP = 0.06  # of all steps
SAVED_EVERY = 60  # seconds
NEAR_MISSES = (0.04, 0.10, 0.20)  # let in, at the thresholds that are reported
BINS = 10  # of the expected calibration error


@dataclass(frozen=True)
class Settings:
    """All that shapes the weights, with the data."""

    model: str = "all-minilm-l6-v2"
    objective: str = "binary"
    layers: int = 0  # of the encoder that are kept, from below; 0: all
    lora: int = 0  # rank; 0: every weight but the word vectors is trained
    batch: int = 32  # pairs
    rate: float = 0.0  # 0: 1e-4, or 1e-3 with LoRA
    teacher: str = ""
    teacher_share: float = 0.7  # of the target, where a label is known
    seed: int = 0

    def peak_rate(self):
        return self.rate or (1e-3 if self.lora else 1e-4)


class LowRank(torch.nn.Module):
    """A frozen linear layer plus a trained product of two thin matrices (arXiv 2106.09685)."""

    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = torch.nn.Parameter(torch.randn(rank, linear.in_features) / rank)
        self.up = torch.nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, states):
        return self.linear(states) + states @ self.down.T @ self.up.T


class PairModel(torch.nn.Module):
    """The encoder with its output; gives one score a row."""

    def __init__(self, folder, settings):
        super().__init__()
        torch.manual_seed(settings.seed)
        logging.set_verbosity_error()  # the pooling layer that is left out is no news
        self.encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        self.head = torch.nn.Linear(self.encoder.config.hidden_size, 1)
        layers = self.encoder.encoder.layer
        if settings.layers:
            layers = self.encoder.encoder.layer = layers[: settings.layers]
        self.encoder.get_input_embeddings().requires_grad_(False)
        if settings.lora:
            self.encoder.requires_grad_(False)
            add_low_rank(layers, settings.lora)
        self.has_types = "token_type_ids" in inspect.signature(self.encoder.forward).parameters

    def forward(self, ids, types, mask):
        given = {"token_type_ids": types} if self.has_types else {}
        states = self.encoder(input_ids=ids, attention_mask=mask, **given).last_hidden_state
        weights = mask[:, :, None].to(states.dtype)
        means = (states * weights).sum(1) / weights.sum(1)  # (rows, d)
        return self.head(means)[:, 0].float()  # (rows,)

    def trained(self):
        """The weights that training changes, by name."""
        return {name: one for name, one in self.named_parameters() if one.requires_grad}


def add_low_rank(module, rank):
    """Put a low-rank layer in the place of every linear one."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Linear):
            setattr(module, name, LowRank(child, rank))
        else:
            add_low_rank(child, rank)


class PairTokenizer:
    """Pairs of texts -> token ids; where there are too many, the answer is truncated first."""

    def __init__(self, folder):
        file = Path(folder) / "tokenizer.json"
        self.hash = hashlib.sha256(file.read_bytes()).hexdigest()
        self.tokenizer = Tokenizer.from_file(str(file))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.known = {}
        id_of = self.tokenizer.token_to_id
        self.first, self.last = (
            next(id_of(name) for name in names if id_of(name) is not None)
            for names in (("[CLS]", "<s>"), ("[SEP]", "</s>"))
        )

    def ids(self, text):
        if text not in self.known:
            self.known[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.known[text]

    def row(self, question, example, answer):
        """(ids, how many of them belong to the question)."""
        room = LIMIT - 4
        asked, own = self.ids(question), self.ids(example)
        if len(asked) + len(own) > room:
            own = own[: max(room - len(asked), room // 2)]
            asked = asked[: room - len(own)]
        said = self.ids(answer)[: room - len(asked) - len(own)]
        ids = [self.first, *asked, self.last, *own, self.last, *said, self.last]
        return ids, len(asked) + 2

    def batch(self, rows):
        """Padded tensors (rows, tokens): ids, token types, mask."""
        width = max(len(ids) for ids, _ in rows)
        made = torch.zeros(3, len(rows), width, dtype=torch.long)
        made[0] = 1  # what is padded is masked out: any id does
        for at, (ids, asked) in enumerate(rows):
            made[0, at, : len(ids)] = torch.tensor(ids)
            made[1, at, asked : len(ids)] = 1
            made[2, at, : len(ids)] = 1
        return made


class TrainingData:
    """The pairs of a file; the batch of a step follows from the seed and the step alone."""

    def __init__(self, path, tokenizer, settings):
        text = gzip.decompress(path.read_bytes())
        self.hash = hashlib.sha256(text).hexdigest()
        self.pairs = [json.loads(line) for line in text.splitlines()]
        self.tokenizer, self.settings = tokenizer, settings
        self.teacher = read_teacher(settings.teacher, self.hash) if settings.teacher else None
        groups = defaultdict(list)
        for at, pair in enumerate(self.pairs):
            if pair["label"] is not None or self.teacher is not None:
                groups[pair["group"]].append(at)
        self.groups = [*groups.values()]
        weights = np.array([max(self.pairs[at]["weight"] for at in one) for one in self.groups])
        self.chances = weights / weights.sum()
        self.chunk = (-1, [])

    def batch(self, step):
        """(ids, types, mask), labels with nan for unknown ones, teacher's scores, groups."""
        chunk, place = divmod(step, CHUNK)
        if self.chunk[0] != chunk:
            self.chunk = (chunk, self._draw(np.random.default_rng([self.settings.seed, chunk])))
        return self.chunk[1][place]

    def _draw(self, rng):
        wanted = CHUNK * self.settings.batch
        drawn = rng.choice(len(self.groups), size=wanted, p=self.chances)
        sizes = np.cumsum([len(self.groups[at]) for at in drawn])
        drawn = drawn[: int(np.searchsorted(sizes, wanted)) + 1]
        made = [[(at, self._row(rng, at)) for at in self.groups[one]] for one in drawn]
        made.sort(key=lambda group: max(len(ids) for _, (ids, _) in group))
        sizes = np.cumsum([len(group) for group in made])
        parts = np.minimum((sizes - 1) * CHUNK // sizes[-1], CHUNK - 1)
        batches = [
            [g for g, part in zip(made, parts, strict=True) if part == n] for n in range(CHUNK)
        ]
        return [self._collate(batches[at]) for at in rng.permutation(CHUNK)]

    def _row(self, rng, at):
        pair = self.pairs[at]
        answer = pair["answers"][rng.integers(len(pair["answers"]))] if pair["answers"] else ""
        return self.tokenizer.row(pair["question"], pair["example"], answer)

    def _collate(self, groups):
        places = [at for group in groups for at, _ in group]
        labels = [self.pairs[at]["label"] for at in places]
        labels = torch.tensor([float("nan") if one is None else float(one) for one in labels])
        teacher = None if self.teacher is None else torch.from_numpy(self.teacher[places])
        tensors = self.tokenizer.batch([row for group in groups for _, row in group])
        return tensors, labels, teacher, [len(group) for group in groups]


def read_teacher(path, data_hash):
    """A teacher's log-odds for every pair of the same data."""
    with np.load(path) as kept:
        if str(kept["data"]) != data_hash:
            sys.exit(f"{path} was made from other pairs; make it again with --score")
        return kept["scores"].astype(np.float32)


def binary_loss(scores, labels, teacher, groups, share):
    """Cross-entropy of each pair on its own."""
    if teacher is not None:
        soft = teacher.sigmoid()
        labels = torch.where(labels.isnan(), soft, (1 - share) * labels + share * soft)
    return binary_cross_entropy_with_logits(scores, labels)


def listwise_loss(scores, labels, teacher, groups, share):
    """Cross-entropy over the candidates of a question and "none of these", whose score is 0.

    A question that two examples answer is two lists, each without the other example.
    """
    lists, targets, start = [], [], 0
    for size in groups:
        rows = list(range(start, start + size))
        start += size
        right = [row for row in rows if labels[row] == 1]
        wrong = [row for row in rows if row not in right]
        lists += [[row, *wrong] for row in right] or [wrong]
        targets += [1] * len(right) or [0 if not labels[wrong].isnan().any() else -1]
    width = max(map(len, lists))
    places = torch.tensor([one + [-1] * (width - len(one)) for one in lists])  # (lists, width)
    found = log_softmax(with_none(scores, places), dim=1)  # (lists, 1 + width)
    targets = torch.tensor(targets)
    known = targets >= 0
    target = torch.zeros_like(found)
    target[known, targets[known]] = 1.0  # the right one comes first, after none
    if teacher is not None:
        soft = with_none(teacher, places).softmax(1)
        mixed = torch.where(known, share, 1.0)[:, None]
        target = (1 - mixed) * target + mixed * soft
    return -(target * found.clamp(min=-1e4)).sum(1).mean()


def with_none(scores, places):
    """Scores by place (lists, 1 + width), none of these first; -1 is an empty place."""
    rows = scores[places.clamp(min=0)].masked_fill(places < 0, -torch.inf)
    return pad(rows, (1, 0), value=0.0)


LOSSES = {"binary": binary_loss, "listwise": listwise_loss}


def step_loss(model, data, step, dtype):
    """The loss of one step; what is random in it follows from the seed and the step."""
    settings = data.settings
    torch.manual_seed(settings.seed * 1_000_003 + step)
    tensors, labels, teacher, groups = data.batch(step)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        scores = model(*tensors)
    return LOSSES[settings.objective](scores, labels, teacher, groups, settings.teacher_share)


def probe(model, data):
    """(The faster of bf16 and f32, its seconds a step): processors differ tenfold."""
    model.train()
    seconds = {}
    for dtype in ("f32", "bf16"):
        step_loss(model, data, 0, dtype).backward()
        start = perf_counter()
        for step in (1, 2, 3, 4):
            step_loss(model, data, step, dtype).backward()
        seconds[dtype] = (perf_counter() - start) / 4
    model.zero_grad()
    print(", ".join(f"{name} {value:.2f} s a step" for name, value in seconds.items()))
    return min(seconds.items(), key=lambda one: one[1])


def train(model, data, out, *, minutes, steps=0):
    """Train in steps that fill the minutes, or so many; goes on where a run was ended."""
    settings, kept_at = data.settings, out / "checkpoint.pt"
    plan = {"settings": asdict(settings), "data": data.hash}
    weights = [*model.trained().values()]
    optimizer = torch.optim.AdamW(weights, lr=settings.peak_rate(), weight_decay=0.01)
    if kept_at.exists():
        kept = torch.load(kept_at, weights_only=True)
        if kept["plan"] != plan:
            sys.exit(f"{kept_at} is of another run; delete it, or choose another --out")
        model.load_state_dict(kept["weights"], strict=False)
        optimizer.load_state_dict(kept["optimizer"])
        done, steps, dtype = kept["done"], kept["steps"], kept["dtype"]
        print(f"goes on after step {done} of {steps}, {dtype}")
    else:
        dtype, seconds = probe(model, data)
        done, steps = 0, steps or max(1, int(60 * minutes / seconds))
        print(f"{steps} steps of {settings.batch} pairs, {dtype}")
    model.train()
    start, saved, first, average = perf_counter(), perf_counter(), done, None
    while done < steps:
        for group in optimizer.param_groups:
            group["lr"] = settings.peak_rate() * schedule(done / steps)
        loss = step_loss(model, data, done, dtype)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
        now = perf_counter()
        if done % 50 == 0 or done == steps:
            left = (now - start) / (done - first) * (steps - done) / 60
            print(
                f"step {done} of {steps}, loss {average:.4f}, {left:.1f} minutes left",
                flush=True,
            )
        if now - saved > SAVED_EVERY or done == steps:
            saved = now
            trained = {name: one.detach() for name, one in model.trained().items()}
            kept = {"plan": plan, "weights": trained, "optimizer": optimizer.state_dict()}
            torch.save({**kept, "done": done, "steps": steps, "dtype": dtype}, f"{kept_at}.new")
            os.replace(f"{kept_at}.new", kept_at)
    return {"steps": steps, "dtype": dtype}


def schedule(share):
    """The share of the peak rate: up in a line, then down in a line."""
    return min(share / WARM_UP, (1 - share) / (1 - WARM_UP)) if share else 1e-3


@torch.inference_mode()
def score(model, tokenizer, triples, *, rows=64):
    """The score of every (question, example's question, answer), in their order."""
    model.eval()
    made = [tokenizer.row(*one) for one in triples]
    order = sorted(range(len(made)), key=lambda at: len(made[at][0]))
    scores = np.zeros(len(made), dtype=np.float32)
    for start in range(0, len(order), rows):
        part = order[start : start + rows]
        scores[part] = model(*tokenizer.batch([made[at] for at in part])).numpy()
    return scores


def probabilities(scores, objective):
    """The probability of each candidate (questions, candidates)."""
    if objective == "binary":
        return 1 / (1 + np.exp(-scores))
    odds = np.exp(scores.astype(np.float64))
    return odds / (1 + odds.sum(1, keepdims=True))


@dataclass(frozen=True)
class Judged:
    """A question of a held set with what the model says of its best candidate."""

    kind: str  # own, near miss, unrelated
    best: float  # probability of the first candidate
    is_right: bool  # that the first candidate answers
    right: float  # probability of the best candidate that answers; -1: none was proposed


def evaluate(model, tokenizer, path, objective):
    """Print and return the figures of every held set."""
    sets = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for space in map(json.loads, file):
            asked = [one for one in space["questions"] if one[3]]
            texts = [(one[0], *space["examples"][at]) for one in asked for at in one[3]]
            scores = score(model, tokenizer, texts).reshape(len(asked), -1)
            found = probabilities(scores, objective)
            sets[space["set"]] += [
                judged(one, row) for one, row in zip(asked, found, strict=True)
            ]
    head = "proposed, first, found at 4 / 10 / 20 % of near misses, AUC, ECE; unrelated in scope there"
    print(f"set (own, near misses, unrelated): {head}")
    figures = {name: set_figures(rows) for name, rows in sets.items()}
    for name, one in figures.items():
        found, unrelated = (
            " / ".join(f"{100 * value:.{digits}f}" for value in one[key])
            for key, digits in (("found", 0), ("unrelated", 1))
        )
        print(
            f"{name} {tuple(one['counts'])}: {one['proposed']:.1%}, {one['first']:.1%}, {found} %, "
            f"{one['auc']:.3f}, {one['ece']:.3f}; {unrelated} %"
        )
    return figures


def judged(asked, found):
    """One question of a held set with the probabilities of its candidates."""
    _, kind, means, candidates = asked
    right = [value for value, at in zip(found, candidates, strict=True) if at in means]
    is_right = candidates[int(np.argmax(found))] in means
    return Judged(kind, float(max(found)), is_right, float(max(right, default=-1.0)))


def set_figures(rows):
    """The figures of one held set; thresholds are set by its own near misses."""
    own, near, unrelated = (
        [one for one in rows if one.kind == kind] for kind in ("own", "near miss", "unrelated")
    )
    falling = sorted((one.best for one in near), reverse=True)
    thresholds = [falling[int(share * len(falling))] for share in NEAR_MISSES]
    both = [*(one.right for one in own), *(one.best for one in near)]
    return {
        "counts": [len(own), len(near), len(unrelated)],
        "proposed": share_of(one.right >= 0 for one in own),
        "first": share_of(one.is_right for one in own),
        "found": [share_of(one.is_right and one.best > at for one in own) for at in thresholds],
        "auc": float(roc_auc_score([1] * len(own) + [0] * len(near), both)),
        "ece": calibration_error([*own, *near]),
        "unrelated": [share_of(one.best > at for one in unrelated) for at in thresholds],
    }


def share_of(hits):
    hits = [*hits]
    return sum(hits) / len(hits) if hits else float("nan")


def calibration_error(rows):
    """Expected calibration error of the first candidate's probability, in bins of one width."""
    bins = defaultdict(list)
    for one in rows:
        bins[min(int(BINS * one.best), BINS - 1)].append(one)
    gaps = [abs(sum(one.best - one.is_right for one in part)) for part in bins.values()]
    return sum(gaps) / len(rows)


def save(model, out, facts):
    """Write the trained weights in float16, and what they were made from."""
    weights = {name: one.detach().half().contiguous() for name, one in model.trained().items()}
    save_file(weights, out / "matcher.safetensors")
    facts["size"] = (out / "matcher.safetensors").stat().st_size
    (out / "matcher.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


def load(model, out):
    """Put saved weights into a fresh model."""
    model.load_state_dict(load_file(out / "matcher.safetensors"), strict=False)


def read_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("work/matcher"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--held", type=Path, help="default: held.jsonl.gz next to the pairs")
    parser.add_argument("--minutes", type=float, default=75)
    parser.add_argument("--steps", type=int, default=0, help="in place of minutes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--score", type=Path, help="write the trained model's scores, and no more"
    )
    parser.add_argument("--evaluate", action="store_true", help="only print the held sets")
    for name, default in asdict(Settings()).items():
        choices = [*LOSSES] if name == "objective" else None
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(default), default=default, choices=choices)
    return parser.parse_args()


def main():
    """Train, write the weights and print the held sets; or only score or evaluate."""
    given = read_arguments()
    torch.set_num_threads(given.threads)
    given.out.mkdir(parents=True, exist_ok=True)
    settings = Settings(**{name: getattr(given, name) for name in asdict(Settings())})
    folder = resolve(settings.model, "embedder").folder
    model, tokenizer = PairModel(folder, settings), PairTokenizer(folder)
    data = TrainingData(given.data / "pairs.jsonl.gz", tokenizer, settings)
    held = given.held or given.data / "held.jsonl.gz"
    if given.score or given.evaluate:
        load(model, given.out)
    if given.score:
        texts = [
            (one["question"], one["example"], *(one["answers"] or [""])[:1])
            for one in data.pairs
        ]
        np.savez(given.score, scores=score(model, tokenizer, texts), data=data.hash)
        return
    if given.evaluate:
        evaluate(model, tokenizer, held, settings.objective)
        return
    facts = {
        "settings": asdict(settings),
        "run": train(model, data, given.out, minutes=given.minutes, steps=given.steps),
        "tokenizer": tokenizer.hash,
        "data": data.hash,
        "base": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
    }
    save(model, given.out, facts)
    load(model, given.out)  # what is measured is what was written
    facts["held"] = evaluate(model, tokenizer, held, settings.objective)
    save(model, given.out, facts)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
