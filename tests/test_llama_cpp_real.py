"""SmolLM2 read by llama.cpp: its tokens, and a verified answer."""

import pytest
import torch
from test_llama_cpp import ODD, heads, logits

import trueline as tl
from trueline.engines.models import ALIASES
from trueline.examples import read_examples


@pytest.fixture(scope="module")
def lm():
    return tl.load("smollm2-135m", engine="llama.cpp")


@pytest.fixture(scope="module")
def corrective():
    return tl.Corrective(tl.build(None, "facts"))


@pytest.mark.real
def test_smollm2_is_tokenized_as_in_transformers(lm, smol):
    """Known to differ: spaces before digits, and signs that are numbers, such as ½."""
    examples = read_examples("facts")
    texts = [text for one in examples for text in (one.question, *one.answers)]
    for text in [*texts, *ODD, "<|im_end|> x", "1,234.5"]:
        tokens = smol.encode(text)
        assert lm.encode(text) == tokens, text
        assert lm.decode(tokens) == smol.decode(tokens)
    for question in (examples[0].question, "Is <|im_end|> a word?"):
        prompt = tl.Prompt(system="Be brief.")
        assert prompt.encode(question, lm.tokenizer) == prompt.encode(question, smol.tokenizer)
    assert smol.stop_ids <= lm.stop_ids
    head = lm.head
    hidden, own = lm._probe(lm.encode(texts[0] + texts[1]))
    assert 0 < heads.distance(head, hidden, own) < 0.03 < heads.TOLERANCE


@pytest.mark.real
def test_smollm2_gives_a_verified_answer(lm, corrective):
    example = read_examples("facts:ground")[0]
    answer = tl.generate(lm, corrective, example.question)
    assert answer.sources[0].example == example.id
    assert answer.text in example.answers


@pytest.mark.real
def test_a_row_of_smollm2_is_to_the_bit_what_it_is_alone(lm):
    assert moved_by_others(lm, _long_and_short(lm, (0, 330, 240, 150)), 16) == (0.0, 2)


@pytest.mark.real
@pytest.mark.slow
def test_a_row_of_qwen_is_to_the_bit_what_it_is_alone():
    folder = ALIASES["qwen2.5-coder-1.5b"].folder
    if not folder.with_name(f"{folder.name}-gguf").exists():
        pytest.skip("qwen2.5-coder-1.5b is optional and not in the cache")
    lm = tl.load("qwen2.5-coder-1.5b", engine="llama.cpp")
    texts = _long_and_short(lm, (0, 30, 60))
    assert moved_by_others(lm, texts, 4)[0] == 0.0
    # From eight tokens at once on, llama.cpp multiplies such weights in another way.
    together, alone = lm.start(), lm.start()
    together.join(texts[:1] * 9)
    alone.join(texts[:1])
    rows, (row,) = together.extend([5] * 9).logits, alone.extend([5]).logits
    assert torch.equal(rows, row.expand_as(rows))


def moved_by_others(lm, texts, steps):
    """How far a row's logits are from its own alone, and how many caches were used.

    Two rows begin; the eldest leaves and another joins, in gaps that rows have left.
    """
    cache = lm.start()
    found = {number: [row] for number, row in enumerate(logits(cache, *texts[:2]))}
    caches, live = list(cache._held), [0, 1]
    for step in range(1, steps + 1):
        rows = cache.extend([5 + len(found[number]) for number in live]).logits.clone()
        for number, row in zip(live, rows, strict=True):
            found[number].append(row)
        if step % (steps // 4) == 0 and len(found) < len(texts):
            cache.keep(range(1, len(live)))
            live = [*live[1:], len(found)]
            found[live[-1]] = [logits(cache, texts[live[-1]])[0]]
        caches += [one for one in cache._held if one not in caches]
    moves = []
    for number, rows in found.items():
        alone = lm.start()
        expected = [logits(alone, texts[number])[0]]
        for count in range(1, len(rows)):
            expected.append(alone.extend([5 + count]).logits[0].clone())
        moves.append((torch.stack(rows) - torch.stack(expected)).abs().max())
    return float(max(moves)), len(caches)


def _long_and_short(lm, lengths):
    """Prompts below and above the 64 tokens, and rows above the 256, at which llama.cpp would
    change how it computes attention."""
    examples = read_examples("facts:ground")
    prompts = [tl.Prompt().encode(one.question, lm.tokenizer) for one in examples]
    filling = lm.encode(" ".join(one.answers[0] for one in examples[:30]))
    return [[*prompt, *filling[:more]] for prompt, more in zip(prompts, lengths, strict=False)]
