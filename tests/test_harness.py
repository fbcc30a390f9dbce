"""lm-evaluation-harness over trueline: its numbers are those of `score` and `generate`."""

import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import tiny
from conftest import EXAMPLES
from lm_eval.api.instance import Instance

import trueline as tl
from trueline.errors import SettingError, SpaceMismatchError
from trueline.integrations.lm_eval import LEAST, TruelineLM, main
from trueline.methods import make_method

TASKS = Path(__file__).parent / "harness_tasks"
SAMPLES = [json.loads(line) for line in (TASKS / "samples.jsonl").read_text().splitlines()]
ALWAYS = ("--model", "trueline", "--include_path", str(TASKS))
SETTINGS = {
    "greedy": {},
    "corrective": {"strength": 0.9},
    "rad": {"alpha": 0.9, "tau": 0.2},
    "dola": {"repetition_penalty": 1.0},
    "lookup": {"threshold": 0.3},
}
TEXT = "Is it true that gold rusts? Gold does not rust. Do fish sleep? Fish rest."


@pytest.fixture(scope="module")
def space(embedder):
    return tl.build(tiny.language_model("llama"), EXAMPLES, context=8, embedder=embedder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, space):
    """A model and a space as the command line finds them."""
    folder, lm = tmp_path_factory.mktemp("harness"), tiny.language_model("llama")
    lm.model.save_pretrained(folder / "model")
    lm.tokenizer.save_pretrained(folder / "model")
    space.save(folder / "facts.space")
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The tasks of the folder next to this file, as the harness reads them."""
    import datasets
    from lm_eval.tasks import TaskManager

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(TASKS)
        cache = tmp_path_factory.mktemp("datasets")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
        manager = TaskManager(include_path=str(TASKS), include_defaults=False)
        yield manager, manager.load(["trueline_choice", "trueline_answer"])


@pytest.fixture(scope="module", params=SETTINGS)
def ran(request, tasks, space):
    """A method, and what the harness finds with it."""
    import lm_eval

    model = opened(tiny.language_model("llama"), request.param, space, batch_size=2)
    results = lm_eval.evaluate(lm=model, task_dict=tasks[1], bootstrap_iters=0)
    method = make_method(request.param, space=space, settings=SETTINGS[request.param])
    return method, results["samples"]


def opened(lm, method="greedy", space=None, **options):
    return TruelineLM(lm, space=space, method=method, **SETTINGS[method], **options)


def inputs(*arguments, kind="loglikelihood"):
    return [Instance(kind, {}, args, place) for place, args in enumerate(arguments)]


def until(lm, *contexts, **options):
    return lm.generate_until(
        inputs(*((context, options) for context in contexts), kind="generate_until"),
        disable_tqdm=True,
    )


def test_multiple_choice_is_scored_as_score_does_it(ran, lm):
    method, samples = ran
    for sample, given in zip(samples["trueline_choice"], SAMPLES, strict=True):
        exact = tl.score(lm, method, given["question"], given["choices"])
        scores = [max(score, LEAST) for score in exact]  # the harness has no infinities
        found = [score for [(score, _)] in sample["resps"]]
        assert found == pytest.approx(scores, abs=1e-3)
        assert sample["acc"] == float(scores.index(max(scores)) == given["label"])


def test_an_answer_is_written_as_generate_does_it(ran, lm):
    method, samples = ran
    questions = [given["question"] for given in SAMPLES]
    answers = tl.generate(lm, method, questions, max_new_tokens=12, stop="\n")
    assert [row["resps"] for row in samples["trueline_answer"]] == [[[a.text]] for a in answers]


@pytest.mark.slow
def test_the_results_have_what_they_were_made_with(tasks, folders, embedder_folder, lm, space):
    from lm_eval import simple_evaluate

    names = {"model": folders / "model", "space": folders / "facts.space"}
    names |= {"embedder": embedder_folder, "method": "rad"}
    found = simple_evaluate(
        model="trueline",
        model_args={**{name: str(value) for name, value in names.items()}, **SETTINGS["rad"]},
        tasks=["trueline_choice"],
        task_manager=tasks[0],
        device="cuda:0",  # the default of lm_eval
        limit=1,
        bootstrap_iters=0,
    )
    config = found["config"]
    assert config["model_fingerprint"] == lm.fingerprint
    assert config["space_hash"] == space.plan
    assert (config["method"], config["settings"]) == ("rad", SETTINGS["rad"])
    (sample,) = found["samples"]["trueline_choice"]
    given = SAMPLES[0]
    scores = tl.score(lm, tl.RAD(space, **SETTINGS["rad"]), given["question"], given["choices"])
    assert [score for [(score, _)] in sample["resps"]] == pytest.approx(scores, abs=1e-3)


@pytest.mark.parametrize("positions", [512, 16])
def test_greedy_gives_the_numbers_of_the_harness_own_model(positions):
    """Also of texts that are longer than what the model reads."""
    from lm_eval.models.huggingface import HFLM

    lm = tiny.language_model("llama", positions=positions)
    theirs = HFLM(pretrained=lm.model, tokenizer=lm.tokenizer, batch_size=1)
    ours = opened(lm, batch_size=4)
    pairs = inputs(
        ("Do fish sleep?", " Yes, fish rest."),
        ("Do fish sleep? ", "No."),  # the blank goes to the continuation
        ("Answer:\n", "It is."),
        ("", "Gold does not rust."),
        ("<bos>Gold", " does not"),  # it has begun already
        (TEXT, " No."),
    )
    found = ours.loglikelihood(pairs, disable_tqdm=True)
    expected = theirs.loglikelihood(pairs, disable_tqdm=True)
    assert [score for score, _ in found] == pytest.approx([s for s, _ in expected], abs=1e-3)
    assert [flag for _, flag in found] == [flag for _, flag in expected]
    whole = inputs((TEXT,), ("No.",), kind="loglikelihood_rolling")
    assert ours.loglikelihood_rolling(whole, disable_tqdm=True) == pytest.approx(
        theirs.loglikelihood_rolling(whole, disable_tqdm=True), abs=1e-3
    )
    contexts = ["Do fish sleep?\n", "Gold", "<bos>Gold does", TEXT]
    texts = theirs.generate_until(
        inputs(*((c, {"until": ["."], "max_gen_toks": 9}) for c in contexts)),
        disable_tqdm=True,
    )
    assert until(ours, *contexts, until=["."], max_gen_toks=9) == texts
    if positions == 16:
        with pytest.raises(SettingError, match="max_gen_toks is 16, and tiny-llama reads 16"):
            until(ours, TEXT, max_gen_toks=16)
        with pytest.raises(SettingError, match=r"a continuation has \d+ tokens, .* reads 16"):
            ours.loglikelihood(inputs(("No.", TEXT)), disable_tqdm=True)


def test_the_batch_size_changes_nothing(lm, space):
    requests = inputs(*((text, " No.") for text in (TEXT, "Gold", "Do fish")))
    one = opened(lm, "rad", space, batch_size=1).loglikelihood(requests, disable_tqdm=True)
    all_ = opened(lm, "rad", space, batch_size="8").loglikelihood(requests, disable_tqdm=True)
    assert [a for a, _ in one] == pytest.approx([b for b, _ in all_], abs=1e-3)


def test_options_of_generation_are_those_of_each_request(lm):
    ours = opened(lm)
    requests = inputs(*(("Gold", {"max_gen_toks": n}) for n in (2, 5, 2)))
    texts = ours.generate_until(requests, disable_tqdm=True)
    assert texts == [until(ours, "Gold", max_gen_toks=n)[0] for n in (2, 5, 2)]
    assert texts[0] != texts[1]
    greedy = {"do_sample": False, "temperature": 0.7, "top_p": 0.9}
    assert until(ours, "Gold", **greedy, max_gen_toks=5) == [texts[1]]
    options = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 12, "top_p": 0.95}
    drawn = until(ours, "Gold", "Gold", **options)
    assert drawn[0] != drawn[1]
    assert drawn == until(opened(lm), "Gold", "Gold", **options)
    assert drawn != until(opened(lm, seed=7), "Gold", "Gold", **options)


def test_a_chat_template_is_applied_and_its_text_is_read_as_it_is():
    lm = tiny.language_model("llama", chat=True)
    ours = opened(lm)
    text = ours.apply_chat_template([{"role": "user", "content": "Do fish sleep?"}])
    assert text == "<|start|>user\nDo fish sleep?<|end|>\n<|start|>assistant\n"
    assert ours.chat_template(True) == tiny.CHAT
    assert lm.tokenizer_hash[:12] in ours.tokenizer_name
    prompt = ours.tok_encode(text)
    assert lm.tokenizer.decode(prompt) == f"<bos>{text}"  # nothing stripped, nothing twice


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "cad"},
            "cad needs a second prompt, .* you can use greedy, corrective, rad, knn-lm, dola, "
            "sled, lookup",
        ),
        ({"method": "kate"}, "kate writes its own prompt, .*--num_fewshot"),
        ({"method": "magic"}, "there is no method 'magic'"),
        ({"method": "rad", "space": None}, "rad needs a space; add space=FOLDER"),
        ({"method": "rad", "beat": 0.5}, "rad has no setting 'beat'"),
        ({"method": "rad", "batch_size": "auto"}, "batch_size must be a whole number"),
        ({"method": "greedy", "model": None, "space": None}, "name a model: add model=NAME"),
    ],
)
def test_arguments_of_the_model_are_checked(options, message, lm, space):
    with pytest.raises(SettingError, match=message):
        TruelineLM(**{"model": lm, "space": space, **options})


def test_requests_are_checked(lm, space):
    with pytest.raises(SettingError, match="no generation option num_beams; it has do_sample"):
        until(opened(lm), "Gold", num_beams=4)
    with pytest.raises(SettingError, match="tiny-llama has no chat template; leave --apply"):
        opened(lm).apply_chat_template([{"role": "user", "content": "Do fish sleep?"}])
    with pytest.raises(SpaceMismatchError, match="built with the model tiny-llama"):
        TruelineLM(tiny.language_model("gpt2"), space=space, method="rad")
    TruelineLM(tiny.language_model("gpt2"), space=space)  # corrective decoding takes any model


def test_model_args_win_over_what_lm_eval_fills_in(lm):
    made = TruelineLM.create_from_arg_obj(
        {"model": lm, "method": "greedy", "batch_size": 3},
        {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"},
    )
    assert made.batch_size == 3


def test_the_entry_point_names_the_class_and_leaves_the_other_models():
    from lm_eval.api.registry import get_model

    (entry,) = entry_points(group="lm_eval.models", name="trueline")
    assert entry.load() is TruelineLM is get_model("trueline")
    assert get_model("dummy").__name__ == "DummyLM"


def test_a_mistake_is_one_line_on_the_command_line(monkeypatch):
    # The harness reads the 14,000 files of its own tasks at every start: they are not needed.
    monkeypatch.setattr("lm_eval.tasks.manager.__file__", str(TASKS / "manager.py"))
    monkeypatch.chdir(TASKS)
    args = ["--model_args", "model=smollm2-135m,method=cad", "--tasks", "trueline_choice"]
    monkeypatch.setattr("sys.argv", ["trueline-lm-eval", "run", *ALWAYS, *args])
    with pytest.raises(SystemExit, match=r"^Error: cad needs a second prompt") as caught:
        main()
    assert "\n" not in caught.value.code
