"""The vLLM processors without vLLM: arguments of requests, and which rows are changed."""

import sys
from abc import ABCMeta, abstractmethod
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest
import torch
from test_contract import BATS, ENDS, FISH, TOKENIZER, Params, spaces  # noqa: F401  # a fixture

import trueline as tl
from trueline.corrective.votes import Correction
from trueline.errors import SettingError
from trueline.integrations import vllm
from trueline.integrations.vllm.requests import Requests, V1Rows, named_spaces, read_arguments

COVERED, OTHER = "Are bats blind?", "Does water boil?"
LOGITS = torch.zeros(1, len(TOKENIZER))
pytestmark = pytest.mark.usefixtures("spaces")


@pytest.fixture
def requests():
    return Requests(named_spaces(), TOKENIZER)


def prompt(question):
    return tl.Prompt().encode(question, TOKENIZER)


def added(rows, *requests):
    """Make these requests, (params, prompt, output), the batch."""
    found = [(place, *request) for place, request in enumerate(requests)]
    rows.update_state(SimpleNamespace(removed=[], added=found, moved=[]))


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"trueline_strenght": 1}, "no argument trueline_strenght; there are trueline_space"),
        ({"trueline_strength": 2}, "strength must lie in"),
        ({"trueline_margin": [1]}, "margin must be a number"),
        ({"trueline_only_covered": 2}, "trueline_only_covered must be 0 or 1, got 2"),
        ({"trueline_off": "maybe"}, "trueline_off must be 0 or 1"),
        ({"trueline_space": "nobody"}, "no space 'nobody'; it has facts, others"),
        ({"trueline_space": [3]}, "no space"),
        ({"trueline_question": 7}, "trueline_question must be text"),
        ({"trueline_method": "rad"}, "rad needs more than logits, and vLLM"),
        ({"trueline_method": "nothing"}, "there is no method 'nothing'"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(given, wrong):
    with pytest.raises(SettingError, match=wrong) as refused:
        read_arguments({"session_id": "1", **given})
    assert isinstance(refused.value, ValueError)  # which vLLM answers with 400


def test_true_has_many_spellings_and_arguments_of_other_processors_are_ignored():
    for yes in (1, 1.0, True, "1", "True"):
        given = read_arguments({"trueline_off": yes, "trueline_only_covered": yes, "kv": "x"})
        assert given.is_off
        assert given.settings == {"only_covered": True}
    assert read_arguments({"space": 1}) == read_arguments(None)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("facts", "must be name=folder,name=folder; "),
        ("=facts", "must be name=folder"),
        ("a=x, a=y", "names 'a' twice"),
        ("", "set TRUELINE_SPACES=facts="),
    ],
)
def test_wrong_names_of_spaces_are_refused(text, wrong, monkeypatch):
    monkeypatch.setenv("TRUELINE_SPACES", text)
    with pytest.raises(SettingError, match=wrong):
        Requests(named_spaces(), TOKENIZER)


def test_a_server_without_a_tokenizer_is_refused():
    with pytest.raises(SettingError, match="without --skip-tokenizer-init"):
        Requests(named_spaces(), None)


def test_out_of_scope_logits_are_the_same_tensor(requests, monkeypatch):
    monkeypatch.setattr(Correction, "votes", lambda *_: pytest.fail("it was in scope"))
    rows = V1Rows(requests)
    added(rows, (Params(), prompt(OTHER), []))
    assert rows.apply(LOGITS) is LOGITS
    added(rows, (Params({"trueline_off": 1}), prompt(COVERED), []))
    assert rows.apply(LOGITS) is LOGITS


def test_the_question_may_be_given_and_the_first_space_is_the_default(requests):
    def first(arguments, prompt_ids=None):
        begun = requests.begin(Params(arguments), prompt_ids)
        return begun and begun.scope[0].example.id

    assert first({}) is None
    assert first({"trueline_question": COVERED}) == "bats"
    assert first({"trueline_question": OTHER}, prompt(COVERED)) is None
    assert first(None, prompt(COVERED)) == "bats"
    assert first({"trueline_space": "others"}, prompt(COVERED)) == "other"


def test_a_request_that_ignores_the_end_is_not_ended(requests):
    output = TOKENIZER.encode(BATS.answers[0], add_special_tokens=False)
    for params, ends in (
        (Params(), ENDS),
        (Params(ignore_eos=True, stop_token_ids=[7]), {7}),
    ):
        lifted = requests.begin(params, prompt(COVERED)).lift(output, LOGITS[0])
        assert set(lifted.nonzero()[:, 0].tolist()) == ends


def test_a_hidden_token_is_an_error_that_names_the_flag(requests):
    rows = V1Rows(requests)
    added(rows, (Params(), prompt(COVERED), [5, -1]))
    with pytest.raises(SettingError, match="--logits-processors trueline"):
        rows.apply(LOGITS)


def test_a_space_is_reloaded_between_requests_and_a_request_goes_on_as_it_began(
    tmp_path, caplog
):
    tl.build(None, [FISH]).save(tmp_path / "space")
    requests = Requests({"facts": tmp_path / "space"}, TOKENIZER)
    assert requests.begin(Params(), prompt(COVERED)) is None
    tl.open(tmp_path / "space").add([BATS])
    begun = requests.begin(Params(), prompt(COVERED))
    before = begun.lift([], LOGITS[0])
    tl.open(tmp_path / "space").remove(["bats"])
    assert requests.begin(Params(), prompt(COVERED)) is None
    assert torch.equal(begun.lift([], LOGITS[0]), before)
    (tmp_path / "space" / "space.json").write_text("{}")
    assert requests.begin(Params(), prompt("Do fish ever sleep?")) is not None
    assert "the space facts stays as it was" in caplog.text


def test_a_model_whose_prompts_hide_the_question_is_warned_of_at_the_start(caplog, monkeypatch):
    monkeypatch.setattr("trueline.corrective.method.find_question", lambda *_: None)
    Requests(named_spaces(), TOKENIZER)
    assert "only requests with trueline_question" in caplog.text


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is here")
def test_without_vllm_the_processor_says_what_to_install():
    with pytest.raises(SettingError, match=r"vLLM 0.32 or newer .*docs/vllm.md"):
        _ = vllm.Corrective
    with pytest.raises(AttributeError, match="no 'Nothing'"):
        _ = vllm.Nothing


def interface(*abstract):
    """Stands for an interface of vLLM, with these methods to be written."""
    return ABCMeta("Interface", (), dict.fromkeys(abstract, abstractmethod(lambda *_: None)))


V1Interface = interface("__init__", "apply", "is_argmax_invariant", "update_state")
V2Interface = interface("apply")


@pytest.fixture
def processors(monkeypatch):
    """The classes that vLLM makes, over stand-ins of its own."""
    v1, v2 = "vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor"
    homes = {
        "vllm.tokenizers": {"cached_tokenizer_from_config": lambda config: TOKENIZER},
        f"{v1}.interface": {"LogitsProcessor": V1Interface},
        f"{v2}.interface": {"LogitsProcessor": V2Interface},
    }
    for name, content in homes.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType("stand-in"))
        sys.modules[name].__dict__.update(content)
    from trueline.integrations.vllm import processors

    yield processors
    del sys.modules["trueline.integrations.vllm.processors"], vllm.processors


def config(*, named=(), is_async=False):
    return SimpleNamespace(
        model_config=SimpleNamespace(logits_processors=list(named)),
        scheduler_config=SimpleNamespace(async_scheduling=is_async),
    )


V1_GIVEN, V2_GIVEN = (torch.device("cpu"), False), (SimpleNamespace(),)


def test_one_class_implements_both_interfaces_and_makes_that_of_its_caller(processors):
    for cls in (processors.Corrective, processors.Plugin):
        assert issubclass(cls, V1Interface)
        assert issubclass(cls, V2Interface)
        v1, v2 = cls(config(), *V1_GIVEN), cls(config(), *V2_GIVEN)
        assert isinstance(v1, V1Interface)
        assert isinstance(v2, V2Interface)
        assert v1.is_argmax_invariant() is False
        assert v2.add_request(0, Params()) is True
        with pytest.raises(SettingError, match="no argument"):
            cls.validate_params(Params({"trueline_nothing": 1}))
    added(v1, (Params(), prompt(COVERED), []))
    assert v1.apply(LOGITS) is not LOGITS
    assert vllm.Corrective is processors.Corrective


@pytest.mark.parametrize("named", [[], ["trueline.integrations.vllm:Corrective"]])
def test_the_plugin_does_nothing_without_spaces_or_with_the_flag(
    named, processors, monkeypatch
):
    if not named:
        monkeypatch.delenv("TRUELINE_SPACES")
    given = config(named=named, is_async=True)
    v1, v2 = processors.Plugin(given, *V1_GIVEN), processors.Plugin(given, *V2_GIVEN)
    added(v1, (Params(), prompt(COVERED), []))
    assert v1.is_argmax_invariant()
    assert v1.apply(LOGITS) is LOGITS
    assert v2.add_request(0, Params()) is False
    v2.apply_staged_writes()
    assert v2.apply(LOGITS, None) is LOGITS


def test_the_plugin_is_refused_where_vllm_would_hide_tokens_from_it(processors):
    with pytest.raises(SettingError, match="--no-async-scheduling"):
        processors.Plugin(config(is_async=True), *V1_GIVEN)
    processors.Plugin(config(is_async=True), *V2_GIVEN)  # V2 shows all of them
