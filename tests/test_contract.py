"""Every engine and integration is held to one contract (tests/contract.py)."""

import sys
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
import transformers
from contract import RecordedRequest, Recording
from transformers.modeling_outputs import CausalLMOutput

import trueline as tl
from trueline.corrective.method import UNKNOWN
from trueline.engines.base import States
from trueline.engines.transformers.model import TokenizerReader
from trueline.integrations.transformers import FOLDER
from trueline.integrations.vllm import requests as vllm
from trueline.integrations.vllm.requests import Requests, named_spaces
from trueline.types import Example, ScopedExample

sys.path.append(str(Path(__file__).parents[1] / "examples"))

from toy_engine import ToyEngine

BATS = Example("Are bats blind?", ["Bats are not blind.", "No, bats see well."], id="bats")
FISH = Example("Do fish sleep?", ["Fish rest with open eyes."], id="fish")
FAR = Example("Где?", ["Да, 😀 это так."], id="far")  # cut within characters
OTHER = Example("Are bats blind?", ["It is the air."], id="other")  # of another space
SPACES = {"facts": [BATS, FISH, FAR], "others": [OTHER, FISH]}
SCOPES = {  # question: (example, probability, part of the turn), as no random embedder knows
    "Are bats blind?": [("bats", 0.99, 0), ("other", 0.99, 0)],
    "Are bats really blind?": [("bats", 0.99, 0), ("other", 0.99, 0)],
    "Are bats blind? Write in capital letters.": [("bats", 0.99, 0)],
    "Are bats blind, and do fish sleep?": [("bats", 0.99, 0), ("fish", 0.98, 1)],
    "Bats?": [("bats", 0.99, 0)],
    "No bats?": [("bats", 0.99, 0)],
    "Where?": [("far", 0.99, 0), ("bats", 0.97, 0)],
    "Do fish ever sleep?": [("fish", 0.99, 0)],
}
TOKENIZER = tiny.tokenizer(chat=True)
ENDS = frozenset({2, 9})  # the end of the tokenizer, and one more of the model
NO_BATS = frozenset(
    TOKENIZER.encode(text, add_special_tokens=False)[0] for text in ("Bats", " Bats")
)
REQUESTS = [
    RecordedRequest("Are bats blind?"),
    RecordedRequest("Does water boil?"),  # nothing in scope
    RecordedRequest("Are bats really blind?", space="others"),
    RecordedRequest("Are bats blind? Write in capital letters."),
    RecordedRequest("Are bats blind, and do fish sleep?"),
    RecordedRequest("No bats?", banned=NO_BATS),
    RecordedRequest("Where?", settings={"margin": 2.0}),
    RecordedRequest("Who are you?", settings={"only_covered": True, "strength": 0.2}),
    RecordedRequest("Bats?", settings={"only_covered": True}),
    RecordedRequest("Do fish ever sleep?", settings={"strength": 0.7, "margin": 3.0}),
    RecordedRequest("Is air gold?"),  # nothing in scope, where others were
]


@pytest.fixture(scope="module")
def spaces(tiny_home, tmp_path_factory):
    """The spaces in folders, as an engine opens them; what is in scope is as in SCOPES."""
    folder = tmp_path_factory.mktemp("spaces")
    for name, examples in SPACES.items():
        tl.build(None, examples).save(folder / name)

    def find(space, question):
        own = {example.id: example for example in space.examples}
        return [
            ScopedExample(own[id], probability, part, probability, question)
            for id, probability, part in SCOPES.get(question, [])
            if id in own
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trueline.corrective.method.find_scope", find)
        named = ",".join(f"{name}={folder / name}" for name in SPACES)
        patch.setenv("TRUELINE_SPACES", named)
        yield {name: tl.open(folder / name) for name in SPACES}


@pytest.fixture(scope="module")
def recording():
    return Recording(REQUESTS, TOKENIZER, ENDS)


def method_of(request, spaces):
    return tl.Corrective(spaces[request.space], **request.settings)


# The ways.


class ReplayEngine(TokenizerReader):
    """An engine of ours whose model is the recording."""

    id, head, depth, limit, is_tied = "replay", None, 1, None, False
    device, dtype, fingerprint = torch.device("cpu"), torch.float32, ""

    def __init__(self, recording):
        super().__init__(TOKENIZER, ENDS)
        self.recording, self.vocabulary = recording, len(TOKENIZER)

    def encode(self, text, *, special=False):
        return TOKENIZER.encode(text, add_special_tokens=special)

    def decode_settled(self, tokens):
        return self.decode(tokens)

    def start(self, *, states=False):
        return ReplayReading(self.recording)


class ReplayReading:
    def __init__(self, recording):
        self.recording, self.contexts = recording, []

    rows = property(lambda self: len(self.contexts))
    width = property(lambda self: max(map(len, self.contexts), default=0))

    def _states(self, contexts):
        return States(None, torch.stack([self.recording.logits_after(one) for one in contexts]))

    def join(self, contexts, **_):
        self.contexts += map(list, contexts)
        return self._states(contexts)

    def extend(self, tokens, **_):
        for context, token in zip(self.contexts, tokens):
            context.append(token)
        return self._states(self.contexts)

    def keep(self, rows):
        self.contexts = [list(self.contexts[row]) for row in rows]


def by_our_loop(recording, spaces):
    lm = ReplayEngine(recording)
    return [
        tl.generate(
            lm, method_of(one, spaces), one.question, max_new_tokens=recording.length
        ).token_ids
        for one in recording.requests
    ]


class ReplayModel(transformers.PreTrainedModel, transformers.GenerationMixin):
    """A model of transformers that gives the recorded logits."""

    config_class = transformers.PretrainedConfig

    def __init__(self, recording):
        sizes = {"vocab_size": len(TOKENIZER), "num_hidden_layers": 1}
        super().__init__(
            transformers.PretrainedConfig(
                **sizes, is_encoder_decoder=False, tie_word_embeddings=False
            )
        )
        self.recording, self.weight = recording, torch.nn.Parameter(torch.zeros(1))
        self.generation_config.eos_token_id = sorted(ENDS)
        self.generation_config.pad_token_id = 0
        self.generation_config.use_cache = False
        self.eval()

    def forward(self, input_ids=None, attention_mask=None, **_):
        rows = [self.recording.logits_after(one) for one in input_ids.tolist()]
        return CausalLMOutput(logits=torch.stack(rows)[:, None])

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        return {"input_ids": input_ids}


def by_the_processor(recording, spaces):
    """In batches of different lengths, pads on the left; requests alike share a processor."""
    model, answers = ReplayModel(recording), {}
    for first in recording.requests:
        key = first.space, first.settings
        alike = [n for n, o in enumerate(recording.requests) if (o.space, o.settings) == key]
        if alike[0] in answers:
            continue
        prompts = [recording.prompts[number] for number in alike]
        batch = TOKENIZER.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        processor = method_of(first, spaces).processor(model, TOKENIZER)
        options = {"max_new_tokens": recording.length, "do_sample": False}
        out = model.generate(**batch, **options, logits_processor=[processor])
        width = batch["input_ids"].shape[1]
        answers.update(zip(alike, out[:, width:].tolist()))
    return [answers[number] for number in range(len(recording.requests))]


def by_custom_generate(recording, spaces):
    model, answers = ReplayModel(recording), []
    for one, prompt in zip(recording.requests, recording.prompts):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            custom_generate=FOLDER,
            trust_remote_code=True,
            space=spaces[one.space],
            tokenizer=TOKENIZER,
            settings=dict(one.settings),
            max_new_tokens=recording.length,
            do_sample=False,
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers


def by_the_toy_engine(recording, spaces):
    toy = ToyEngine(recording.logits_after, TOKENIZER, ENDS)
    methods = [method_of(one, spaces) for one in recording.requests]
    return toy.run(list(zip(recording.prompts, methods)), recording.length)


@dataclass
class Params:
    """Stands for vllm.SamplingParams."""

    extra_args: dict | None = None
    stop_token_ids: tuple = ()
    ignore_eos: bool = False
    all_stop_token_ids: frozenset = ENDS


def params_of(request):
    settings = {f"trueline_{name}": value for name, value in request.settings.items()}
    params = Params({"trueline_space": request.space, "session_id": "1", **settings})
    vllm.read_arguments(params.extra_args)
    return params


class Direction(Enum):
    """Stands for vllm's MoveDirectionality."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


class V1Engine:
    """Batches as vLLM's V1 runner makes them: rows leave, are refilled, moved and swapped.

    Every fifth step it takes the youngest row out and puts it back with the tokens it has, as a
    preempted request comes back.
    """

    def __init__(self, recording, size):
        self.recording, self.size = recording, size
        self.rows = vllm.V1Rows(Requests(named_spaces(), TOKENIZER))
        self.batch, self.removed, self.added, self.moved = [], [], [], []

    def run(self):
        waiting, step = list(range(len(self.recording.requests))), 0
        outputs = {number: [] for number in waiting}
        while waiting or self.batch:
            step += 1
            if step % 5 == 0 and len(self.batch) > 1:
                waiting.insert(0, self._take_out(len(self.batch) - 1))
            self._fill(waiting, outputs)
            self._update()
            rows = [self.recording.logits(one, len(outputs[one])) for one in self.batch]
            final = self.rows.apply(torch.stack(rows))
            for number, token in zip(self.batch, final.argmax(-1).tolist()):
                outputs[number].append(token)
            for place in reversed(range(len(self.batch))):
                output = outputs[self.batch[place]]
                if output[-1] in ENDS or len(output) == self.recording.length:
                    self._take_out(place)
        return [outputs[number] for number in sorted(outputs)]

    def _take_out(self, place):
        number, self.batch[place] = self.batch[place], None
        self.removed.append(place)
        if place == len(self.batch) - 1:
            self.batch.pop()
        return number

    def _fill(self, waiting, outputs):
        """New requests take the lowest free rows, then rows move down and two swap places."""
        while waiting and self.batch.count(None) + self.size - len(self.batch):
            number = waiting.pop(0)
            place = self.batch.index(None) if None in self.batch else len(self.batch)
            if place == len(self.batch):
                self.batch.append(number)
            self.batch[place] = number
            if place in self.removed:
                self.removed.remove(place)
            params = params_of(self.recording.requests[number])
            prompt = self.recording.prompts[number]
            self.added.append((place, params, prompt, outputs[number]))
        while None in self.batch:
            place, last = self.batch.index(None), len(self.batch) - 1
            if place != last:
                self.batch[place] = self.batch[last]
                self.moved.append((last, place, Direction.UNIDIRECTIONAL))
            self.batch.pop()
        if len(self.batch) > 2:
            self.batch[0], self.batch[2] = self.batch[2], self.batch[0]
            self.moved.append((0, 2, Direction.SWAP))

    def _update(self):
        removed = sorted(self.removed, reverse=True)
        changes = {"removed": removed, "added": self.added, "moved": self.moved}
        update = SimpleNamespace(batch_size=len(self.batch), **changes)
        self.rows.update_state(update if any(changes.values()) else None)
        self.removed, self.added, self.moved = [], [], []


class V2Engine:
    """Batches as vLLM's V2 runner makes them: slots are used again, rows stand in any order.

    Given the answers, it drafts two tokens ahead, most of them right: a row for each.
    """

    def __init__(self, recording, slots, answers=None):
        self.recording, self.answers = recording, answers
        self.tokens = torch.full((slots, 400), -7, dtype=torch.int32)
        self.total = torch.zeros(slots, dtype=torch.int32)
        self.prompt = np.zeros(slots, dtype=np.int32)
        self.free = list(range(slots))
        self.rows = vllm.V2Rows(
            Requests(named_spaces(), TOKENIZER),
            SimpleNamespace(
                all_token_ids=SimpleNamespace(gpu=self.tokens),
                total_len=SimpleNamespace(gpu=self.total),
                prompt_len=SimpleNamespace(np=self.prompt),
            ),
        )

    def run(self):
        waiting = list(range(len(self.recording.requests)))
        held, outputs = {}, {number: [] for number in waiting}  # slot: request
        while waiting or held:
            while waiting and self.free:
                number, slot = waiting.pop(0), self.free.pop()
                held[slot] = number
                params = params_of(self.recording.requests[number])
                assert self.rows.add_request(slot, params) is True
                self._write(slot, self.recording.prompts[number])
                self.prompt[slot] = len(self.recording.prompts[number])
            self.rows.apply_staged_writes()
            order = sorted(
                held, key=lambda slot: (slot * 7 + sum(map(len, outputs.values()))) % 5
            )
            for slot, picked in zip(order, self._step(order, held, outputs)):
                number, output = held[slot], outputs[held[slot]]
                for token in picked:
                    output.append(token)
                    self._write(slot, [*self.recording.prompts[number], *output])
                    if token in ENDS or len(output) == self.recording.length:
                        del held[slot]
                        self.free.append(slot)
                        break
        return [outputs[number] for number in sorted(outputs)]

    def _write(self, slot, tokens):
        self.tokens[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.total[slot] = len(tokens)

    def _step(self, order, held, outputs):
        """The tokens each slot gets: one, and one more after every draft that was right."""
        slots, positions, inputs, logits = [], [], [], []
        for slot in order:
            number, output = held[slot], outputs[held[slot]]
            last = int(self.tokens[slot, self.total[slot] - 1])
            for position, token in enumerate([last, *self._drafts(number, len(output))]):
                slots.append(slot)
                positions.append(position)
                inputs.append(token)
                logits.append(self.recording.logits(number, len(output) + position))
        final = self.rows.apply(
            torch.stack(logits),
            SimpleNamespace(
                expanded_idx_mapping=torch.tensor(slots),
                idx_mapping_np=np.array(order),
                expanded_local_pos=torch.tensor(positions),
                input_ids=torch.tensor(inputs),
            ),
        )
        best, picked = final.argmax(-1).tolist(), {slot: [] for slot in order}
        for row, (slot, position) in enumerate(zip(slots, positions)):
            is_right = picked[slot][-1:] == [inputs[row]] and len(picked[slot]) == position
            if position == 0 or is_right:
                picked[slot].append(best[row])
        return [picked[slot] for slot in order]

    def _drafts(self, number, step):
        if self.answers is None:
            return []
        known = list(self.answers[number][step : step + 2])
        return known if step % 3 else known[:-1] + [7] * bool(known)


def by_vllm_v1(recording, spaces):
    return V1Engine(recording, 4).run()


def by_vllm_v2(recording, spaces):
    return V2Engine(recording, 3).run()


def by_vllm_v2_with_drafts(recording, spaces):
    answers = V2Engine(recording, 3).run()
    return V2Engine(recording, 3, answers).run()


WAYS = [by_the_processor, by_custom_generate, by_the_toy_engine]
WAYS += [by_vllm_v1, by_vllm_v2, by_vllm_v2_with_drafts]


def outcomes(way, recording, spaces):
    with recording.watched():
        return recording.outcomes(way(recording, spaces))


@pytest.fixture(scope="module")
def expected(recording, spaces):
    return outcomes(by_our_loop, recording, spaces)


def test_the_requests_of_the_contract_are_what_they_are_meant_to_be(recording, expected):
    """Else the ways would agree about nothing."""
    texts = [
        TOKENIZER.decode([token for token in one.tokens if token not in ENDS]).strip()
        for one in expected
    ]
    plain = [int(recording.logits(1, step).argmax()) for step in range(recording.length)]
    assert expected[1].tokens == recording.ended(plain)
    assert expected[1].decisions == {}
    assert {texts[0], texts[8]} <= set(BATS.answers)
    assert texts[2] == "It is the air."
    assert texts[3] in [one.upper() for one in BATS.answers]
    assert FISH.answers[0] in texts[4]
    assert any(one in texts[4] for one in BATS.answers)
    assert texts[5] == "No, bats see well."
    assert texts[7] == UNKNOWN
    assert set(expected[0].decisions[len(expected[0].tokens) - 1]["candidates"]) == ENDS
    weak = expected[9]  # lifted, and not always far enough
    followed = {weak.tokens[at] in own["candidates"] for at, own in weak.decisions.items()}
    assert followed == {True, False}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_picks_the_same_tokens_by_the_same_decisions(
    way, recording, spaces, expected
):
    found = outcomes(way, recording, spaces)
    for own, wanted, request in zip(found, expected, REQUESTS, strict=True):
        assert own == wanted, request
