"""Each method on numbers worked by hand, and against its slow transcription."""

import math
from types import SimpleNamespace

import pytest
import tiny
import torch
import transcriptions as slow
from conftest import EXAMPLES
from test_rad_entries import space_of

import trueline as tl
from trueline.engines.base import ScaledHead, States
from trueline.errors import SettingError
from trueline.methods import make_method
from trueline.methods.base import Rows, Step
from trueline.methods.layers import latent_knowledge
from trueline.prompts import chat_turn, prompt_sets, prompts_with

LENGTH = 10


class Toy:
    """A model of four tokens whose hidden states are its logits."""

    id, vocabulary, dtype, device = "toy", 4, torch.float32, torch.device("cpu")

    def __init__(self):
        identity = torch.nn.Linear(4, 4, bias=False)
        torch.nn.init.eye_(identity.weight)
        self.head = ScaledHead(identity, is_linear=True)

    def decode_all(self, rows):
        return ["".join(map(str, row)) for row in rows]


def toy_step(*states, layers=(), tokens=(0,), **options):
    """The states of one row under its first prompt, then under its second, if there is one."""
    kept = {number: torch.tensor([layer]) for number, layer in enumerate(layers)}
    first, *second = (States(torch.tensor([one]), None, kept) for one in states)
    return Step(Rows(Toy(), [list(tokens)], [1]), first, *second, **options)


def test_cad_amplifies_the_full_prompt():  # 1.5 * (1 2 0 0) - 0.5 * (2 0 0 4)
    step = toy_step([1.0, 2.0, 0.0, 0.0], [2.0, 0.0, 0.0, 4.0])
    assert tl.CAD().adjust(step).logits.tolist() == [[0.5, 3.0, 0.0, -2.0]]


def test_instructive_decoding_moves_away_from_the_noise():  # (1 2 0 0) - 0.3 * (0 5 0 0)
    step = toy_step([1.0, 2.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0])
    assert tl.Instructive().adjust(step).logits[0].tolist() == pytest.approx(
        [1.0, 0.5, 0.0, 0.0]
    )


def test_dola_contrasts_with_the_layer_that_is_farthest():
    last = [math.log(6), math.log(3), math.log(1), -30.0]  # 0.6 0.3 0.1 0
    near = [math.log(5), math.log(4), math.log(1), -30.0]  # 0.5 0.4 0.1 0
    far = [math.log(2), math.log(2), math.log(6), -30.0]  # 0.2 0.2 0.6 0
    step = toy_step(last, layers=[near, far], tokens=[1])
    found = tl.DoLa(candidates=(0, 1), repetition_penalty=1.0).adjust(step).logits[0]
    assert found[:3].tolist() == pytest.approx([math.log(3), math.log(1.5), math.log(1 / 6)])
    assert found[3] == -math.inf


def test_the_code_and_the_textbook_choose_different_layers():
    # The first early layer all but rules out what the last one wants (m log m / p is large
    # there); the second one is farther by the textbook, whose distance is at most log 2.
    last = [0.0, 0.0, 0.0, 0.0]
    first = [0.0, 0.0, 0.0, -40.0]
    second = [0.0, -3.0, -3.0, -3.0]
    step = toy_step(last, layers=[first, second], tokens=[])
    options = {"candidates": (0, 1), "repetition_penalty": 1.0}
    quarter, third = math.log(1 / 4), math.log(1 / 3)
    by_code = tl.DoLa(**options).adjust(step).logits[0].tolist()
    assert by_code == pytest.approx([quarter - third] * 3 + [quarter - third + 40], abs=1e-4)
    total = math.log(1 + 3 * math.exp(-3))
    textbook = tl.DoLa(divergence="textbook", **options).adjust(step).logits[0].tolist()
    assert textbook == pytest.approx([quarter + total] + [quarter + 3 + total] * 3, abs=1e-4)


def test_adacad_contrasts_prompts_as_far_as_they_disagree():
    same = toy_step([1.0, 2.0, 0.0, 0.0], [1.0, 2.0, 0.0, 0.0])
    assert torch.equal(tl.AdaCAD().adjust(same).logits, same.logits)
    # p = (1/2, 1/2, 0, 0), q = (0, 0, 1/2, 1/2): nothing in common, so a = log 2.
    full, bare = [0.0, 0.0, -200.0, -200.0], [-200.0, -200.0, 0.0, 0.0]
    found = tl.AdaCAD().adjust(toy_step(full, bare)).logits[0].tolist()
    a = math.log(2)
    assert found == pytest.approx([200 * a, 200 * a, -200 * (1 + a), -200 * (1 + a)], rel=1e-5)
    # p = (1/2, 1/2), q = (1/4, 3/4) on two tokens: a is their divergence in nats.
    p, q = [math.log(2), math.log(2), -80.0, -80.0], [0.0, math.log(3), -80.0, -80.0]
    a = (math.log(4 / 3) + math.log(4 / 5)) / 4 + (math.log(2 / 3) + 3 * math.log(6 / 5)) / 8
    found = tl.AdaCAD().adjust(toy_step(p, q)).logits[0, :2].tolist()
    wanted = [(1 + a) * x - a * y for x, y in zip(p[:2], q[:2])]
    assert found == pytest.approx(wanted, abs=1e-5)


def test_sled_moves_towards_the_tokens_that_the_layers_move_to():
    # From the early layer to the last token 0 alone rises: l_early - l_last = (-2, 0, 0, 0).
    # p_early is (1/2, 1/2, 0, 0); p - e_0 = (-1/2, 1/2, 0, 0) points the same way, and
    # p - e_1 = (1/2, -1/2, 0, 0) away, so all of the latent share is that of token 0.
    last, early = [2.0, 0.0, -90.0, -90.0], [0.0, 0.0, -90.0, -90.0]
    best = torch.tensor([[0, 1]])
    found = latent_knowledge(torch.tensor([last]), torch.tensor([[early]]), best)
    assert found[0].tolist() == pytest.approx([1.0, 0.0])
    step, options = toy_step(last, layers=[early]), {"candidates": (0,), "scale": 2}
    once = tl.SLED(steps=1, rate=1.0, **options).adjust(step).logits[0].tolist()
    p = math.e**2 / (math.e**2 + 1)
    wanted = [2 - (p - 1), 0 - (1 - p)]
    assert once[:2] == pytest.approx(wanted, abs=1e-6)
    assert once[2:] == [-math.inf] * 2
    twice = tl.SLED(steps=2, rate=1.0, **options).adjust(step).logits[0].tolist()
    p = 1 / (1 + math.exp(wanted[1] - wanted[0]))  # the second step goes half as far
    assert twice[:2] == pytest.approx(
        [wanted[0] - (p - 1) / 2, wanted[1] - (1 - p) / 2], abs=1e-5
    )


@pytest.mark.parametrize(
    ("depth", "tied", "candidates", "wanted"),
    [
        (30, True, "high", range(15, 30, 2)),
        (30, True, "low", range(2, 15, 2)),
        (32, False, "low", range(0, 16, 2)),
        (48, True, "low", range(2, 20, 2)),
        (2, True, "low", [1]),
        (2, False, "high", [1]),
        (30, True, (3, 5), (3, 5)),
    ],
)
def test_dola_takes_the_candidate_layers_that_transformers_documents(
    depth, tied, candidates, wanted
):
    lm = SimpleNamespace(depth=depth, is_tied=tied)
    assert list(tl.DoLa(candidates=candidates).layers(lm)) == list(wanted)


def test_knn_lm_gives_the_mass_of_the_neighbors_to_their_next_tokens():
    space = space_of([0, 90, 180], tokens=[1, 2, 1])
    step = toy_step([0.0, 0.0, 0.0, 0.0], tokens=[0])  # window "0": at 0 degrees
    weights = [math.exp(-d) for d in (0, 2, 4)]  # squared distances on the unit circle
    total = sum(weights)
    found = tl.KNNLM(space, lam=0.5).adjust(step).logits.exp()[0].tolist()
    one, two = (weights[0] + weights[2]) / total, weights[1] / total
    assert found == pytest.approx([0.125, 0.125 + one / 2, 0.125 + two / 2, 0.125], abs=1e-5)
    near = tl.KNNLM(space, lam=0.5, k=1).adjust(step).logits.exp()[0].tolist()
    assert near == pytest.approx([0.125, 0.625, 0.125, 0.125], abs=1e-5)


def test_rad_changes_no_step_before_from_step():
    space = space_of([0, 5], values=[[0.0, 9.0, 0.0, 0.0]] * 2)
    rows = Rows(Toy(), [[0], [0, 0], [0, 0, 0]], [1, 1, 1])  # steps 0, 1 and 2 of an answer
    step = Step(rows, States(torch.zeros(3, 4), None))
    found = tl.RAD(space, from_step=2).adjust(step)
    assert found.evidence[0].hits.count(3).tolist() == [0, 0, 2]
    assert torch.equal(found.logits[:2], torch.zeros(2, 4))


def test_a_wrong_context_pushes_its_logits_away():
    # (0 0 1 0) + 0.5 * (2 0 0 0) - 0.25 * (0 0 4 0)
    wrong = space_of([5], values=[[0.0, 0.0, 4.0, 0.0]])
    space = space_of([0], values=[[2.0, 0.0, 0.0, 0.0]], wrong=wrong)
    step = toy_step([0.0, 0.0, 1.0, 0.0])
    found = tl.RAD(space, alpha=0.5, beta=0.25).adjust(step)
    assert found.logits[0].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])
    neutral = tl.RAD(space, alpha=0.5, beta=0.25, neutral=True).adjust(step)
    assert neutral.logits[0].tolist() == pytest.approx([2 / 3, 0.0, 0.0, 0.0])
    (against,) = found.evidence[1].neighbors(0, 0, 2, most=5)
    assert (against.is_wrong, against.push) == (True, pytest.approx(1.0))


@pytest.fixture(scope="module")
def spaces(embedder):
    lm = tiny.language_model("llama")
    return {
        context: tl.build(lm, EXAMPLES, embedder=embedder, context=context, wrong=True)
        for context in (8, "full")
    }


ON = {"kate": {"k": 2}}


def tokens(lm, method, **options):
    answers = tl.generate(lm, method, tiny.QUESTIONS, max_new_tokens=LENGTH, **options)
    return [answer.token_ids for answer in answers]


def transcribed(name, lm, space, question, sentence_transformer, length=LENGTH, **settings):
    """What the slow transcription of a method answers."""
    prompts, tok, model = prompts_with(space.prompt), lm.tokenizer, lm.model
    base, bare = (one.encode(question, tok) for one in (prompts.base, prompts.bare))
    noisy = chat_turn(prompts.base, question).preceded_by(prompts.noise).encode(tok)
    keys, following, pairs = [], [], []

    def embed(text):
        return torch.tensor(sentence_transformer.encode(text, show_progress_bar=False))

    for example in space.examples if name in ("kate", "knn-lm") else ():
        pairs.append((example.question, example.answers[0]))
        for text in example.answers if name == "knn-lm" else ():
            start = prompts.base.encode(example.question, tok)
            answer = prompts.base.encode_answer(example.question, text, tok)
            for i, token in enumerate(answer):
                keys.append(embed(tok.decode(start + answer[:i], skip_special_tokens=True)))
                following.append(token)

    before = slow.kate_text(question, pairs, embed, **settings) if name == "kate" else ""
    longer = chat_turn(prompts.base, question).preceded_by(before).encode(tok)

    def step(answer):
        read = base + answer
        match name:
            case "cad":
                return slow.cad(model, read, bare + answer)
            case "adacad":
                return slow.adacad(model, read, bare + answer)
            case "id":
                return slow.instructive(model, read, noisy + answer)
            case "dola":
                return slow.dola(model, read, layers=[*tl.DoLa().layers(lm)])
            case "sled":
                return slow.sled(model, read, layers=[*tl.SLED().layers(lm)])
            case "kate":
                return slow.last_logits(model, longer + answer)
            case "knn-lm":
                query = embed(tok.decode(read, skip_special_tokens=True))
                return slow.knn_lm(model, read, query, keys, following)

    return slow.decode(step, base, stop_ids=lm.stop_ids, length=length)


@pytest.mark.parametrize("name", ["cad", "adacad", "id", "dola", "sled", "kate", "knn-lm"])
def test_every_baseline_picks_the_tokens_of_its_transcription(
    name, lm, spaces, sentence_transformer
):
    space = spaces["full"]
    method = make_method(name, space=space, settings=ON.get(name, {}))
    found = tokens(lm, method)
    for question, answer in zip(tiny.QUESTIONS, found, strict=True):
        assert answer == transcribed(
            name, lm, space, question, sentence_transformer, **ON.get(name, {})
        )


def test_beta_without_wrong_entries_is_refused(lm, examples, embedder):
    space = tl.build(lm, examples, context=8, embedder=embedder)
    with pytest.raises(SettingError, match="build it with wrong=True"):
        tl.RAD(space, beta=0.5)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cad", {"a": -1}, "a must be 0 or more"),
        ("dola", {"candidates": "middle"}, r"candidates must be .*low, high"),
        ("dola", {"plausibility": 0}, "plausibility"),
        ("kate", {"k": -1}, "k must be"),
        ("rad", {"alpha": math.nan}, "alpha"),
        ("rad", {"tau": -1.1}, "tau"),
        ("rad", {"fusion": "sum"}, "fusion must be one of add, mix, prob"),
        ("cad", {"tau": 1}, "cad has no setting 'tau'"),
    ],
)
def test_an_impossible_setting_is_refused_by_name(name, settings, message, spaces):
    with pytest.raises(SettingError, match=message):
        make_method(name, space=spaces[8], settings=settings)


def test_dola_refuses_layers_the_model_does_not_have(lm):
    with pytest.raises(SettingError, match="layers from 0 to 1"):
        tl.generate(lm, tl.DoLa(candidates=(7,)), "Are bats blind?")


def test_the_prompt_sets_are_those_of_the_paper():
    sets = prompt_sets()
    assert sets["question"].base == tl.Prompt()
    assert sets["dialogue"] == sets["question"]
    assert sets["summary"].base.template.startswith("Summary the following document")
    assert sets["summary"].bare.template == "Document: {question} Summary:"
    own = tl.Prompt("Say: {question}", system="Be brief.")
    assert prompts_with(own).bare == tl.Prompt("Q: {question} A:", system="Be brief.")
    assert prompts_with(sets["summary"].base).demonstration.startswith("Document:")


def test_kate_shows_the_nearest_question_first_and_leaves_braces_alone(lm, embedder):
    examples = [
        tl.Example("Is {answer} a word?", "Yes, {question} too."),
        tl.Example("Does gold rust?", "Gold does not rust."),
        tl.Example("Are bats blind?", "Bats see well."),
    ]
    space = tl.build(lm, examples, context=8, embedder=embedder)
    bats = "Q: Are bats blind?\nA: Bats see well.\n\n"
    (given,) = tl.KATE(space, k=3).inputs(chat_turn(tl.Prompt(), "Are bats blind?"))
    assert given.before.startswith(bats)
    assert "Q: Is {answer} a word?\nA: Yes, {question} too.\n\n" in given.before
    last = tl.KATE(space, k=3, nearest_at="end")
    (given,) = last.inputs(chat_turn(tl.Prompt(), "Are bats blind?"))
    assert given.before.endswith(bats)
