"""Every fast path picks the tokens of the slow transcription, on tiny models of real kinds."""

import pytest
import tiny
import torch
from oracle import Oracle
from test_processor import padded

import trueline as tl

TAU = 0.8
LENGTH = 12


def slow(lm, examples, sentence_transformer, **settings):
    """The oracle with its space built."""
    end = settings.pop("end", False)
    made = Oracle(lm.model, lm.tokenizer, sentence_transformer, **settings)
    prompt = tl.Prompt()
    for example in examples:
        for answer in example.answers:
            made.add(
                prompt.encode(example.question, lm.tokenizer),
                prompt.encode_answer(example.question, answer, lm.tokenizer),
                end=end,
                question=example.question,
            )
    return made


def expected(oracle, lm, *, alpha=0.5, tau=TAU):
    options = dict(alpha=alpha, tau=tau, stop_ids=lm.stop_ids, max_new_tokens=LENGTH)
    answers = []
    for question in tiny.QUESTIONS:
        prompt = tl.Prompt().encode(question, lm.tokenizer)
        answers.append(tuple(oracle.decode(prompt, question=question, **options)))
    return answers


def tokens(lm, method, **options):
    answers = tl.generate(lm, method, tiny.QUESTIONS, max_new_tokens=LENGTH, **options)
    return [answer.token_ids for answer in answers]


@pytest.mark.parametrize("architecture", tiny.mostly_slow(tiny.ARCHITECTURES))
@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_rad_picks_the_tokens_of_the_oracle(
    architecture, chat, examples, embedder, sentence_transformer
):
    lm = tiny.language_model(architecture, chat=chat)
    oracle = slow(lm, examples, sentence_transformer)
    wanted = expected(oracle, lm)
    greedy = tokens(lm, tl.Greedy())
    assert wanted != greedy, "the space must change something, or this test shows nothing"
    for values in ("auto", "logits"):
        rad = tl.RAD(
            tl.build(lm, examples, context=8, embedder=embedder, values=values), tau=TAU
        )
        for batch_size in (1, 16):
            assert tokens(lm, rad, batch_size=batch_size) == wanted, (values, batch_size)


@pytest.mark.parametrize("architecture", tiny.mostly_slow(tiny.ARCHITECTURES))
def test_greedy_picks_the_tokens_of_the_oracle_and_of_transformers(
    architecture, examples, embedder, sentence_transformer
):
    lm = tiny.language_model(architecture)
    oracle = slow(lm, examples, sentence_transformer)
    wanted = expected(oracle, lm, alpha=0.0)
    space = tl.build(lm, examples, context=8, embedder=embedder)
    for method in (tl.Greedy(), tl.RAD(space, alpha=0.0, tau=TAU), tl.RAD(space, tau=1.0)):
        for batch_size in (1, 16):
            assert tokens(lm, method, batch_size=batch_size) == wanted
    for question, answer in zip(tiny.QUESTIONS, wanted):
        ids = torch.tensor([tl.Prompt().encode(question, lm.tokenizer)])
        out = lm.model.generate(ids, max_new_tokens=LENGTH, do_sample=False)
        assert tuple(out[0, ids.shape[1] :].tolist()) == answer


@pytest.mark.parametrize("context", [1, 4, "full"])
@pytest.mark.parametrize("window", ["template", "text", "answer"])
@pytest.mark.parametrize("end", [False, True], ids=["open", "end"])
def test_every_form_of_the_window_picks_the_tokens_of_the_oracle(
    context, window, end, lm, examples, embedder, sentence_transformer
):
    oracle = slow(lm, examples, sentence_transformer, context=context, window=window, end=end)
    settings = {"context": context, "window": window, "end": end}
    space = tl.build(lm, examples, embedder=embedder, **settings)
    assert len(space.entries) == len(oracle.keys)
    assert tokens(lm, tl.RAD(space, tau=TAU)) == expected(oracle, lm)


@pytest.mark.parametrize("architecture", tiny.mostly_slow(tiny.ARCHITECTURES))
def test_the_processor_picks_the_tokens_of_the_oracle_in_transformers_own_loop(
    architecture, examples, embedder, sentence_transformer
):
    lm = tiny.language_model(architecture)
    wanted = expected(slow(lm, examples, sentence_transformer), lm)
    processor = tl.RAD(tl.build(lm, examples, context=8, embedder=embedder), tau=TAU).processor(
        lm.model, lm.tokenizer
    )
    batch = padded(lm, tiny.QUESTIONS)
    for _ in range(2):  # one instance, several calls
        out = lm.model.generate(
            **batch, max_new_tokens=LENGTH, do_sample=False, logits_processor=[processor]
        )
        for row, answer in zip(out[:, batch["input_ids"].shape[1] :].tolist(), wanted):
            assert tuple(row[: len(answer)]) == answer
            assert set(row[len(answer) :]) <= {lm.tokenizer.pad_token_id}


def test_the_processor_knows_question_and_answer_where_windows_are_their_text(
    lm, examples, embedder, sentence_transformer
):
    wanted = expected(slow(lm, examples, sentence_transformer, window="text"), lm)
    rad = tl.RAD(tl.build(lm, examples, context=8, window="text", embedder=embedder), tau=TAU)
    for question, answer in zip(tiny.QUESTIONS, wanted):
        ids = torch.tensor([tl.Prompt().encode(question, lm.tokenizer)])
        processor = rad.processor(
            lm.model, lm.tokenizer, question=question, prompt_length=ids.shape[1]
        )
        options = {"max_new_tokens": LENGTH, "logits_processor": [processor]}
        out = lm.model.generate(ids, do_sample=False, **options)
        assert tuple(out[0, ids.shape[1] :].tolist()) == answer
    with pytest.raises(tl.TruelineError, match="needs the question"):
        rad.processor(lm.model, lm.tokenizer, prompt_length=9)
