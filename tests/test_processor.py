"""RAD in transformers' own generate: pads, beams, chance, streamers, and no memory."""

import pytest
import tiny
import torch
from transformers import TextIteratorStreamer

import trueline as tl
from trueline.errors import SettingError, SpaceMismatchError

TAU = 0.8


@pytest.fixture(scope="module")
def lm():
    return tiny.language_model("llama")


@pytest.fixture(scope="module")
def space(lm, embedder):
    from conftest import EXAMPLES

    return tl.build(lm, EXAMPLES, context=8, embedder=embedder)


@pytest.fixture(scope="module")
def processor(lm, space):
    return tl.RAD(space, tau=TAU).processor(lm.model, lm.tokenizer)


def padded(lm, questions):
    prompts = [tl.Prompt().encode(question, lm.tokenizer) for question in questions]
    return lm.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "temperature": 0.8, "top_p": 0.9},
        {"num_beams": 2, "num_return_sequences": 2, "do_sample": False},
    ],
    ids=["sampling", "beams"],
)
def test_transformers_other_ways_of_generating_work(options, lm, processor):
    batch, outs = padded(lm, tiny.QUESTIONS), []
    for processors in ([processor], [processor], []):
        torch.manual_seed(0)
        options |= {"max_new_tokens": 6, "logits_processor": processors}
        outs.append(lm.model.generate(**batch, **options).tolist())
    assert outs[0] == outs[1] != outs[2]


def test_a_streamer_gets_the_tokens_of_our_own_stream(lm, space, processor):
    question = tiny.QUESTIONS[1]
    streamer = TextIteratorStreamer(lm.tokenizer, skip_prompt=True, skip_special_tokens=True)
    ids = torch.tensor([tl.Prompt().encode(question, lm.tokenizer)])
    lm.model.generate(
        ids, max_new_tokens=10, do_sample=False, streamer=streamer, logits_processor=[processor]
    )
    ours = tl.generate(lm, tl.RAD(space, tau=TAU), question, max_new_tokens=10)
    assert "".join(streamer) == ours.text


def test_a_space_of_another_model_or_with_windows_of_the_answer_is_refused(lm, space, embedder):
    other = tiny.language_model("llama", seed=1)
    with pytest.raises(SpaceMismatchError, match="model tiny-llama"):
        tl.RAD(space).processor(other.model, other.tokenizer)
    from conftest import EXAMPLES

    space = tl.build(lm, EXAMPLES, context=8, embedder=embedder, window="answer")
    with pytest.raises(SettingError, match="where the answer begins"):
        tl.RAD(space).processor(lm.model, lm.tokenizer)
