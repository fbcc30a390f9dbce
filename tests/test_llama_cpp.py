"""The llama.cpp engine on a tiny random GGUF file, against transformers, same weights."""

import gc
import subprocess
import sys
import weakref
from dataclasses import replace
from importlib import util

import pytest
import tiny
import torch

import trueline as tl
from trueline.engines.llama_cpp import library as libraries
from trueline.engines.llama_cpp import model as heads
from trueline.engines.llama_cpp.tokenizer import compile_chat
from trueline.engines.models import ALIASES
from trueline.engines.transformers import open as opening
from trueline.errors import MissingExtraError, ModelError, SpaceMismatchError

if not util.find_spec("xllamacpp"):
    pytest.skip("llama.cpp is not installed: pip install xllamacpp", allow_module_level=True)

NEAR = 0.05  # logits: llama.cpp keeps keys and values in 16 bits
ODD = [
    "",
    " ",
    "two  spaces and a tab\t.",
    "é 日本 🙂 a\u0301",
    "\u202eabc\u200d👩‍👩‍👧",
    "don't I'LL we've",
    "\x00\x01",
    "naïve café",
    "हिन्दी ไทย العربية",
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tiny.write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", context_length=2048)


@pytest.fixture(scope="module")
def lm(file):
    return tl.load(file, engine="llama.cpp")


@pytest.fixture(scope="module")
def reference():
    return tiny.language_model("llama", chat=True)


@pytest.fixture(scope="module")
def contexts(reference):
    return [reference.encode(text, special=True) for text in tiny.TEXTS]


def logits(cache, *rows):
    return cache.join(rows).logits


def test_its_tokens_and_texts_are_those_of_transformers(lm, reference):
    for text in [*tiny.TEXTS, *tiny.QUESTIONS, *ODD]:
        for special in (False, True):
            tokens = reference.encode(text, special=special)
            assert lm.encode(text, special=special) == tokens, text
        assert lm.decode(tokens) == reference.decode(tokens)
        assert lm.pieces(tokens) == reference.pieces(tokens)
    half = reference.encode("日")[:-1]
    assert lm.decode(half) == reference.decode(half) == "\ufffd"
    assert lm.decode_all([half, tokens]) == reference.decode_all([half, tokens])
    assert lm.decode_settled(tokens) == reference.decode_settled(tokens)


def test_prompts_and_control_tokens_in_questions_are_those_of_transformers(lm, reference):
    ours, theirs = lm.tokenizer, reference.tokenizer
    assert len(ours) == len(theirs)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    own, known = (
        {id: one.special for id, one in words.added_tokens_decoder.items()}
        for words in (ours, theirs)
    )
    assert own == known
    for prompt in (tl.Prompt(), tl.Prompt(system="Be brief."), tl.Prompt(chat=False)):
        for question in (*tiny.QUESTIONS, "Is <bos> a word?"):
            assert prompt.encode(question, ours) == prompt.encode(question, theirs)
            answers = [prompt.encode_answer(question, "No.", one) for one in (ours, theirs)]
            assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "template",
    [
        "{%- for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n"
        "{%- endfor %}",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}"
        "{% endif %}{{ m | tojson }}{% endfor %}{% if add_generation_prompt %}>{% endif %}",
    ],
)
def test_a_chat_template_is_written_as_transformers_writes_it(template, reference):
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(
        tokenizer_object=reference.tokenizer.backend_tokenizer, bos_token="<bos>"
    )
    messages = [{"role": "user", "content": "é <b>?"}, {"role": "assistant", "content": "No."}]
    expected = theirs.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    ours = compile_chat(template).render(
        messages=messages, add_generation_prompt=True, bos_token="<bos>"
    )
    assert ours == expected


def test_its_facts_are_those_of_the_file(lm, reference):
    names = ("vocabulary", "depth", "is_tied", "dtype", "device")
    assert all(getattr(lm, name) == getattr(reference, name) for name in names)
    assert (lm.limit, lm.id, lm.stop_ids) == (2048, "tiny.gguf", {2})
    assert lm.fingerprint.startswith("gguf-")


def test_its_logits_are_those_of_transformers_up_to_its_cache_of_16_bits(
    lm, reference, contexts
):
    ours = logits(lm.start(), *contexts)
    theirs = reference.head(reference.start(states=True).join(contexts).hidden)
    assert (ours - theirs).abs().max() < NEAR < theirs.std()
    pair = [contexts[1][:20], [*contexts[1][:15], 40, 41, 42]]  # the start is read once
    apart = torch.cat([logits(lm.start(), one) for one in pair])
    assert (logits(lm.start(), *pair) - apart).abs().max() < NEAR


def test_rows_that_join_and_leave_do_not_move_the_others(file, contexts):
    """By rounding alone: the order of a product of 32-bit weights depends on the rows."""
    lm = tl.load(file, engine="llama.cpp")
    texts = [(context * 40)[: 90 + 60 * number] for number, context in enumerate(contexts)]
    cache, live = lm.start(), [0, 1]
    found = {number: [row] for number, row in enumerate(logits(cache, *texts[:2]))}
    caches = set(cache._held)
    for step in range(1, 121):  # the eldest leaves, and another joins in the gap it has left
        rows = cache.extend([5 + len(found[number]) for number in live]).logits.clone()
        for number, row in zip(live, rows, strict=True):
            found[number].append(row)
        if step % 30 == 0 and len(found) < len(texts):
            cache.keep(range(1, len(live)))
            live = [*live[1:], len(found)]
            found[live[-1]] = [logits(cache, texts[live[-1]])[0]]
        caches |= set(cache._held)
    assert len(caches) == 3
    for number, rows in found.items():
        alone = lm.start()
        assert (logits(alone, texts[number])[0] - rows[0]).abs().max() < NEAR
        for count, row in enumerate(rows[1:], 1):
            assert (alone.extend([5 + count]).logits[0] - row).abs().max() < NEAR


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Weights of a K format, which llama.cpp multiplies in two ways, by the number of rows."""
    size = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    path = tmp_path_factory.mktemp("gguf") / "packed.gguf"
    tiny.write_gguf(path, change=tiny.packed, size=size, context_length=2048)
    return tl.load(path, engine="llama.cpp")


def rows_of(lengths, contexts):
    """Contexts of so many tokens, which differ from their first one on."""
    text = [token for context in contexts for token in context] * 40
    return [[3 + at, *text[at : at + length - 1]] for at, length in enumerate(lengths)]


def outputs(states):
    """Logits or states, whichever there are, as a copy."""
    return (states.logits if states.hidden is None else states.hidden).clone()


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize(
    "lengths",
    [[47] * 8, [40, 50, 60] * 6, [1, 2, 5, 7, 8, 9, 10, 40], [513, 515, 520, 9]],
    ids=str,
)
def test_packed_rows_are_what_each_is_alone(packed, contexts, lengths, states):
    rows = rows_of(lengths, contexts)
    many = packed.start(states=states)
    found = [outputs(many.join(rows)), outputs(many.extend([5] * len(rows)))]
    for number, row in enumerate(rows):
        alone = packed.start(states=states)
        for step, own in zip(found, [outputs(alone.join([row])), outputs(alone.extend([5]))]):
            assert torch.equal(step[number], own[0])


@pytest.mark.parametrize("tail", [1, 2, 5, 8, 12])
def test_packed_rows_that_share_a_start_are_what_each_is_alone(packed, contexts, tail):
    (start,) = rows_of([60], contexts)
    rows = [[*start, *([7 + number] * tail)] for number in range(3)]
    assert packed.start().join([start, start]).logits.unique(dim=0).shape[0] == 1
    for many in ([*rows], [start, start]):
        together = logits(packed.start(), *many)
        for row, own in zip(many, together):
            assert torch.equal(logits(packed.start(), row)[0], own)


def test_packed_continuations_are_what_each_is_alone(packed, contexts):
    start = rows_of([30], contexts)[0]
    after = rows_of([4, 12, 3, 140, 9], contexts)
    many = packed.start()
    many.join([start])
    many.keep([0] * len(after))
    found = many.extend_many(after).logits
    for row, tokens in zip(found, after):
        alone = packed.start()
        alone.join([start])
        assert torch.equal(alone.extend_many([tokens]).logits[0], row[: len(tokens)])


def test_a_row_kept_twice_goes_on_as_two(lm, contexts):
    cache = lm.start()
    cache.join([contexts[0], contexts[3]])
    cache.keep([1, 0, 1])
    first = cache.extend([8, 8, 8]).logits.clone()
    assert torch.equal(first[0], first[2])
    second = cache.extend([9, 9, 10]).logits
    expected = logits(
        lm.start(), [*contexts[3], 8, 9], [*contexts[0], 8, 9], [*contexts[3], 8, 10]
    )
    assert (second - expected).abs().max() < NEAR
    assert not torch.equal(second[0], second[2])


def test_a_cache_that_grows_goes_on_to_the_bit(file, contexts):
    texts = [(context * 40)[:700] for context in contexts[:3]]
    found = []
    for cells in (512, 16_384):  # the first has to be moved twice, the second never
        lm = tl.load(file, engine="llama.cpp")
        lm.pool.give_back([lm.pool.take(cells, 1)])
        cache = lm.start()
        rows = [cache.join([texts[0][:100]]).logits]
        assert cache._held[0].cells == cells
        cache.join([text[:300] for text in texts[1:]])
        for token in texts[0][100:140]:
            rows.append(cache.extend([token] * 3).logits.clone())
        cache.join([texts[2]])
        rows.append(cache.extend([5, 6, 7, 8]).logits.clone())
        found.append(torch.cat(rows))
        assert cache._held[0].cells == (2048 if cells == 512 else cells)
    assert torch.equal(*found)


def test_the_states_of_a_step_are_its_own_memory_which_lives_as_long(file, contexts):
    """The model too, or it would be freed before a cache that refers to it."""
    lm = tl.load(file, engine="llama.cpp")
    cache = lm.start()
    cache.join([contexts[2]])
    first = cache.extend([7]).logits
    before = first.clone()
    second = cache.extend([8]).logits
    assert second.data_ptr() == first.data_ptr()  # no copy is made of 49,152 numbers
    assert not torch.equal(second, before)
    expected = second.clone()
    memory, weights = weakref.ref(cache._held[0].pointer), weakref.ref(lm.weights)
    del cache, lm, first
    gc.collect()
    assert torch.equal(second, expected)
    assert memory() is not None is not weights()
    del second
    gc.collect()
    assert memory() is None is weights()


def test_a_whole_continuation_is_read_as_token_by_token(lm, contexts):
    after = [[5, 6, 7], [8], []]
    whole = lm.start()
    whole.join(contexts[:3])
    found = whole.extend_many(after).logits
    assert found.shape == (3, 3, lm.vocabulary)
    for row, tokens in enumerate(after):
        cache = lm.start()
        cache.join([contexts[row]])
        for step, token in enumerate(tokens):
            assert (cache.extend([token]).logits[0] - found[row, step]).abs().max() < NEAR


def test_more_candidates_than_sequences_are_scored(lm):
    candidates = [f"Bats {number}." for number in range(300)]
    scores = tl.score(lm, tl.Greedy(), "Are bats blind?", candidates)
    few = tl.score(lm, tl.Greedy(), "Are bats blind?", candidates[:3])
    assert scores[:3] == pytest.approx(few, abs=0.02)


def test_a_corrective_space_serves_it_as_it_is(lm, reference, examples, embedder):
    method = tl.Corrective(tl.build(None, examples, embedder=embedder), threshold=0.0)
    questions = [one.question for one in examples]
    ours = tl.generate(lm, method, questions, max_new_tokens=24, batch_size=3)
    theirs = tl.generate(reference, method, questions, max_new_tokens=24)
    for own, other, example in zip(ours, theirs, examples, strict=True):
        assert own.text == other.text
        assert own.text.strip() in [text for one in examples for text in one.answers]
        pieces = tl.stream(lm, method, example.question, max_new_tokens=24)
        assert "".join(map(str, pieces)) == own.text


def test_its_head_gives_its_logits_of_its_states(lm, reference, contexts):
    tokens = contexts[0]
    assert lm.head_kind(tokens) == "linear"
    hidden, own = lm._probe(tokens)
    assert heads.distance(lm.head, hidden, own) < 1e-4
    few = torch.tensor([3, 5])
    assert torch.allclose(lm.head.at(hidden, few), lm.head(hidden)[:, few])
    theirs = reference.start(states=True).join([tokens]).hidden
    ours = lm.start(states=True).join([tokens]).hidden
    assert torch.cosine_similarity(ours, theirs).min() > 0.9999


def test_a_head_is_found_by_the_form_that_gives_its_logits(lm, contexts):
    hidden, own = lm._probe(contexts[0])
    scaled = replace(lm.weights.header, settings={**lm.weights.header.settings})
    scaled.settings.update({"llama.logit_scale": 4.0, "llama.final_logit_softcapping": 2.0})
    weights = type("Stand", (), {**vars(lm.weights), "header": scaled})
    for given, multiplier, divisor in [(own, 1, 1), (own * 4, 4, 1), (own / 4, 1, 4)]:
        head = heads.find_head(weights, hidden, given)
        assert (head.multiplier, head.divisor) == (multiplier, divisor)
    capped = heads.find_head(weights, hidden, torch.tanh(own / 2) * 2)
    assert (capped.cap, capped.is_linear) == (2.0, False)
    assert heads.find_head(weights, hidden, own.flip(1)) is None


def test_rad_entries_belong_to_the_engine_that_made_them(lm, reference, embedder, examples):
    space = tl.build(lm, examples, context=8, embedder=embedder)
    assert (space.info()["values"], space.info()["head"]) == ("hidden", "linear")
    tl.generate(lm, tl.RAD(space), tiny.QUESTIONS[1], max_new_tokens=1)
    with pytest.raises(SpaceMismatchError, match=r"\(fingerprint gguf-.*build it anew"):
        tl.generate(reference, tl.RAD(space), "Are bats blind?")


def test_an_alias_is_opened_from_its_own_gguf_and_nothing_is_converted(
    file, tmp_path, monkeypatch
):
    import json

    monkeypatch.setenv("TRUELINE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    alias = ALIASES["smollm2-135m"]
    folder = alias.folder.with_name(f"{alias.folder.name}-gguf")
    folder.mkdir(parents=True)
    (folder / "model.gguf").symlink_to(file)
    (folder / "source.json").write_text(json.dumps(alias.facts), "utf-8")
    monkeypatch.setattr(opening, "convert_gguf", None)
    lm = tl.load(alias.name, engine="llama.cpp")
    assert lm.id == alias.name
    assert not alias.folder.exists()


def test_no_model_of_torch_is_opened(file):
    code = (
        "import sys, trueline as tl\n"
        f"lm = tl.load({str(file)!r}, engine='llama.cpp')\n"
        "print(tl.generate(lm, tl.Greedy(), 'Is air gold?', max_new_tokens=3).finish)\n"
        "assert not {'transformers', 'gguf'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "length\n", "")


def test_the_command_line_opens_it(file, tiny_home, monkeypatch):
    from test_cli import run

    command = ["ask", "--model", str(file), "--method", "greedy", "Is air gold?"]
    first = run(*command, "--engine", "llama.cpp")
    monkeypatch.setenv("TRUELINE_ENGINE", "llama.cpp")
    assert (first.code, first.out) == (0, run(*command).out)
    assert "llama.cpp" in run(*command, "--engine", "nothing").err


open_library = libraries.open_library.__wrapped__  # not the one of this process


def test_another_package_than_the_pinned_one_is_refused(monkeypatch):
    monkeypatch.setattr(libraries.metadata, "version", lambda name: "2027.1.1")
    with pytest.raises(ModelError, match=r"2027\.1\.1 .* not known .* install xllamacpp==2026"):
        open_library()
    monkeypatch.setattr(libraries.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"xllamacpp: pip install 'trueline\[llama\]'"):
        open_library()


def test_a_library_that_is_laid_out_in_another_way_is_refused(monkeypatch):
    monkeypatch.setitem(libraries._FIELDS["context"], "n_batch", (8, "i", 2048))
    with pytest.raises(ModelError, match="n_batch of its context parameters is not where it"):
        open_library()


def test_a_corrector_reads_with_the_engine_itself(lm, examples, embedder):
    space = tl.build(examples, embedder=embedder)
    for engine in (lm, tiny.language_model("llama")):
        corrector = tl.Corrective(space).corrector(engine)
        assert corrector.begin(question=examples[0].question) is not None
