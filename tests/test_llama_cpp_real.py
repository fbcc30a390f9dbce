"""SmolLM2 read by llama.cpp: its tokens, and a verified answer."""

import pytest

import trueline as tl
from trueline.examples import read_examples

pytest.importorskip("xllamacpp", reason="SKIPPED: xllamacpp is not installed")

from test_llama_cpp import ODD, heads


@pytest.mark.real
def test_smollm2_cuts_texts_as_transformers_does():
    """Known to differ: blanks before digits, and signs that are numbers, as ½."""
    lm, theirs = tl.load("smollm2-135m", engine="llama.cpp"), tl.load("smollm2-135m")
    examples = read_examples("facts")
    texts = [
        text for one in examples for text in (one.question, *one.answers, *one.wrong_answers)
    ]
    for text in [
        *texts,
        *(text for text in ODD if "<|" not in text),
        "<|im_end|> x",
        "1,234.5",
    ]:
        tokens = theirs.encode(text)
        assert lm.encode(text) == tokens, text
        assert lm.decode(tokens) == theirs.decode(tokens)
    for question in (examples[0].question, "Is <|im_end|> a word?"):
        prompt = tl.Prompt(system="Be brief.")
        assert prompt.encode(question, lm.tokenizer) == prompt.encode(
            question, theirs.tokenizer
        )
    assert theirs.stop_ids <= lm.stop_ids
    head = lm.head
    hidden, own = lm._probe(lm.encode(texts[0] + texts[1]))
    assert 0 < heads.distance(head, hidden, own) < 0.03 < heads.TOLERANCE


@pytest.mark.real
def test_smollm2_tells_a_verified_answer():
    lm = tl.load("smollm2-135m", engine="llama.cpp")
    example = read_examples("facts:ground")[0]
    method = tl.Corrective(tl.build(None, "facts"))
    answer = tl.generate(lm, method, example.question)
    assert answer.sources[0].example == example.id
    assert answer.text in example.answers
