"""RAD's entries: one for every token of every answer, found by cosine, strictly above tau."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import tiny
import torch
import transformers

import trueline as tl
from trueline.errors import ExampleError, SettingError
from trueline.rad.entries import Entries, EntrySettings, RadEntries, window_tokens
from trueline.rad.retrieve import open_retriever
from trueline.space import VECTORS, GroundingSpace


class Compass:
    """An embedder of the plane: a text names an angle in degrees."""

    id, hash, dimension = "compass", "north", 2

    def embed(self, texts):
        angles = torch.tensor([float(text.strip()) for text in texts]).deg2rad()
        return torch.stack([angles.cos(), angles.sin()], 1)


def space_of(angles, *, values=None, tokens=None, wrong=None):
    """A space of one entry at each angle; `wrong` is one of the wrong entries."""
    count = len(angles)
    keys = Compass().embed([str(angle) for angle in angles]).numpy()
    kept = np.eye(count, dtype=np.float32) if values is None else np.asarray(values, np.float32)
    zeros = np.zeros(count, np.int32)
    tokens = zeros if tokens is None else np.asarray(tokens, np.int32)
    entries = Entries(keys, kept, tokens, np.arange(count, dtype=np.int32), zeros, zeros)
    settings = EntrySettings(
        context=8,
        wrong=wrong is not None,
        values="logits",
        dtype="float32",
        model="none",
        vocabulary=kept.shape[1],
        head="opaque",
        computed="float32",
    )
    against = None if wrong is None else wrong.entries.truthful
    wrong_answers = [f"{angle}." for angle in ([] if wrong is None else wrong.angles)]
    space = GroundingSpace(
        tuple(
            tl.Example(f"{a}?", f"{a}.", wrong_answers, id=str(n)) for n, a in enumerate(angles)
        ),
        dict.fromkeys(VECTORS, np.zeros((count, 2), np.float16)),
        "compass",
        "north",
        tl.Prompt(),
        RadEntries(settings, entries, against),
        embedder=Compass(),
    )
    object.__setattr__(space, "angles", angles)
    return space


def above(angles, queries, **options):
    retriever = open_retriever(space_of(angles), "cpu")
    return retriever.above(retriever.embed([str(query) for query in queries]), **options)


def found(angles, query, **options):
    return above(angles, [query], **options).entries.tolist()


# What is found


def test_every_entry_above_tau_is_taken_without_a_cap():
    assert found([0, 10, 20, 80, 170], 0, tau=0.5) == [0, 1, 2]
    assert len(found([0.001 * n for n in range(3000)], 0, tau=0.9)) == 3000


def test_tau_itself_is_not_above_tau_and_nothing_is_above_one():
    cosine = float(Compass().embed(["0"])[0] @ Compass().embed(["60"])[0])
    assert found([60], 0, tau=cosine) == []
    assert found([60], 0, tau=np.nextafter(np.float32(cosine), np.float32(0))) == [0]
    for angle in [angle / 7 for angle in range(0, 2500, 3)]:
        assert found([angle], angle, tau=1.0) == []  # whatever rounding does


def test_exact_matches_can_be_left_out_or_taken_alone():
    angles = [0, 0, 5, 10]
    assert found(angles, 0, tau=0.9, matches="without") == [2, 3]
    assert found(angles, 0, tau=0.9, matches="only") == [0, 1]


@pytest.mark.parametrize(
    ("context", "window", "wanted"),
    [
        (2, "template", [[], [4, 5]]),
        (8, "template", [[], [1, 2, 3, 4, 5]]),
        ("full", "template", [[], [1, 2, 3, 4, 5]]),
        (1, "text", [[], [5]]),
        (4, "text", [[8, 9], [4, 5]]),
        (8, "text", [[7, 8, 9], [4, 5]]),
        ("full", "text", [[7, 8, 9], [4, 5]]),
        (8, "answer", [[], [4, 5]]),
        (1, "answer", [[], [5]]),
        ("full", "answer", [[], [4, 5]]),
    ],
)
def test_a_window_is_the_last_tokens_of_what_it_may_reach_into(context, window, wanted):
    settings = EntrySettings(context=context, window=window)
    parts = window_tokens([1, 2, 3, 4, 5], 3, [7, 8, 9], settings)
    assert [list(part) for part in parts] == wanted


def test_methods_with_other_settings_share_what_was_opened(lm, examples, embedder):
    space = tl.build(lm, examples, context=8, wrong=True, embedder=embedder)
    rad = tl.RAD(space, beta=0.1)
    tuned = tl.RAD(space.tune({"threshold": 1}))
    for method in (rad, replace(rad, alpha=0.1, tau=0.3), tl.KNNLM(space), tuned):
        tl.generate(lm, method, "Are bats blind?", max_new_tokens=1)
    assert len(space.entries.opened) == 2  # truthful and wrong


# How they are made


@pytest.fixture
def space(lm, examples, embedder):
    return tl.build(lm, examples, context=8, embedder=embedder)


def test_there_is_one_entry_for_every_token_of_every_answer(lm, space, examples):
    prompt = tl.Prompt()
    answers = [
        prompt.encode_answer(example.question, answer, lm.tokenizer)
        for example in examples
        for answer in example.answers
    ]
    entries = space.entries.truthful
    assert entries.tokens.tolist() == [token for answer in answers for token in answer]
    assert entries.steps.tolist() == [step for x in answers for step in range(len(x))]
    for number in (0, 20, len(entries) - 1):
        example = examples[entries.examples[number]]
        answer = example.answers[entries.answers[number]]
        wanted = prompt.encode_answer(example.question, answer, lm.tokenizer)
        assert wanted[entries.steps[number]] == entries.tokens[number]


def test_end_adds_one_entry_an_answer_and_it_names_the_stop_token(
    lm, space, examples, embedder
):
    longer = tl.build(lm, examples, context=8, embedder=embedder, end=True).entries
    answers = sum(len(example.answers) for example in examples)
    assert len(longer) == len(space.entries) + answers
    assert (longer.truthful.tokens == lm.tokenizer.eos_token_id).sum() == answers


def test_wrong_answers_make_a_set_of_their_own(lm, examples, embedder):
    space = tl.build(lm, examples, context=8, embedder=embedder, wrong=True)
    assert set(space.counts()) == {"entries", "wrong", "examples"}
    without = [replace(example, wrong_answers=()) for example in examples]
    with pytest.raises(SettingError, match="no example has one"):
        tl.build(lm, without, context=8, embedder=embedder, wrong=True)
    added = space.add([tl.Example("Is it?", "Yes.", id="more")], lm)  # which has none
    assert len(added.entries.wrong) == len(space.entries.wrong)


def test_hidden_states_through_the_head_are_the_stored_logits(lm, space, examples, embedder):
    options = {"context": 8, "embedder": embedder}
    stored = tl.build(lm, examples, values="logits", **options).entries
    states = tl.build(lm, examples, dtype="float32", **options).entries
    made = [each.settings for each in (space.entries, stored, states)]
    assert [(x.values, x.dtype) for x in made] == [
        ("hidden", "float16"),
        ("logits", "float32"),
        ("hidden", "float32"),
    ]
    with torch.no_grad():
        logits = lm.head(torch.from_numpy(states.truthful.values)).numpy()
    assert np.allclose(logits, stored.truthful.values, atol=1e-5)
    half = space.entries.truthful.values
    assert half.nbytes * 2 == states.truthful.values.nbytes
    assert np.allclose(half, states.truthful.values, rtol=1e-3, atol=1e-3)
    assert space.info()["bytes_per_entry"] < 2000


def odd_copy(lm, odd_class=None):
    """The same weights in another class."""
    model = (odd_class or type(lm.model))(lm.model.config)
    model.load_state_dict(lm.model.state_dict())
    return tl.LanguageModel(model.eval(), lm.tokenizer, id="odd")


class OddForward(transformers.LlamaForCausalLM):
    """Its logits cannot be computed from its hidden states by any known rule."""

    def forward(self, *args, **options):
        out = super().forward(*args, **options)
        out.logits = out.logits - out.logits.mean(-1, keepdim=True).abs()
        return out


class OddHead(torch.nn.Linear):
    """A head that calls itself linear and is not."""

    def forward(self, hidden):
        return super().forward(hidden).abs()


def test_a_head_of_no_known_form_makes_the_space_keep_logits(lm, examples, embedder):
    odd = odd_copy(lm, OddForward)
    assert odd.head is None
    space = tl.build(odd, examples, context=8, embedder=embedder)
    assert (space.info()["values"], space.info()["head"]) == ("logits", "opaque")
    answer = tl.generate(odd, tl.RAD(space, tau=0.8), "Is the sea blue?", max_new_tokens=9)
    plain = tl.generate(odd, tl.Greedy(), "Is the sea blue?", max_new_tokens=9)
    assert answer.token_ids != plain.token_ids
    assert len(space.add([tl.Example("Is it?", "Yes.")], odd)) == 5
    with pytest.raises(SettingError, match="no known form"):
        tl.build(odd, examples, context=8, embedder=embedder, values="hidden")


def test_a_head_that_only_calls_itself_linear_goes_entry_by_entry(lm, examples, embedder):
    odd = odd_copy(lm)
    plain = odd.model.lm_head
    odd.model.lm_head = OddHead(plain.in_features, plain.out_features, bias=False)
    odd.model.lm_head.weight = plain.weight
    hidden = tl.build(odd, examples, context=8, embedder=embedder)
    logits = tl.build(odd, examples, context=8, embedder=embedder, values="logits")
    assert (hidden.info()["values"], hidden.info()["head"]) == ("hidden", "nonlinear")
    one, other = (
        tl.generate(odd, tl.RAD(space, tau=0.8), tiny.QUESTIONS, max_new_tokens=9)
        for space in (hidden, logits)
    )
    assert [answer.token_ids for answer in one] == [answer.token_ids for answer in other]


def test_every_example_too_long_for_the_model_is_named(lm, embedder):
    long = [tl.Example(f"Is it {n}?", "word " * 600, id=f"no-{n}") for n in range(2)]
    with pytest.raises(ExampleError, match=r"at most 512 tokens(?s:.*)no-0(?s:.*)no-1"):
        tl.build(lm, long, context=8, embedder=embedder)


def test_settings_are_what_is_stored_and_refuse_what_cannot_be(space):
    made = space.entries.settings
    assert EntrySettings(**asdict(made)) == made
    odd = [("context", x) for x in (True, 8.0, 0, "all")]
    odd += [("window", "half"), ("end", 1), ("values", "x"), ("dtype", "int8")]
    for name, value in odd:
        with pytest.raises(SettingError, match=name):
            replace(made, **{name: value})


def test_logits_as_wide_as_hidden_states_are_refused(space):
    logits = replace(space.entries.settings, values="logits")
    entries = space.entries.truthful
    flaw = RadEntries(logits, entries).flaw(space.examples, entries.keys.shape[1])
    assert "values have 32 numbers" in flaw


@pytest.mark.parametrize("window", ["template", "text", "answer"])
def test_a_trace_has_the_window_whose_neighbors_each_step_had(window, lm, examples, embedder):
    space = tl.build(lm, examples, embedder=embedder, context=4, window=window)
    method = tl.RAD(space, tau=0.3)
    answer = tl.generate(lm, method, "Are bats blind?", max_new_tokens=6, stop=[], trace=True)
    retriever = open_retriever(space, lm.device)
    windows = [step.window for step in answer.trace]
    hits = retriever.above(retriever.embed(windows), tau=0.3).count(len(windows))
    assert hits.tolist() == [step.hits for step in answer.trace]
    assert max(step.hits for step in answer.trace) > 0
    assert len(set(windows)) == len(windows)
    plain = tl.generate(lm, tl.Greedy(), "Are bats blind?", max_new_tokens=2, trace=True)
    assert {step.window for step in plain.trace} == {""}
