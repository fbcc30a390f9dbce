"""Plans: what a table becomes, and that every mistake in it is named."""

import pytest

from trueline.errors import SettingError
from trueline.lab.plan import BuildOptions, Plan, Variant, plan_from, read_plan_table
from trueline.types import Sampling

LEAST = {"benchmarks": ["facts"], "methods": ["greedy", "rad"], "controls": False}


def test_a_short_plan_has_the_defaults_of_the_paper():
    plan = plan_from(LEAST)
    assert plan == Plan(benchmarks=("facts",), methods=("greedy", "rad"), controls=False)
    assert plan.variants == (Variant("greedy"), Variant("rad", {}, BuildOptions(context=8)))
    assert (plan.ground, plan.tasks, plan.seeds) == (100, ("generate",), (0,))
    assert plan.sampling == Sampling(max_new_tokens=64, temperature=0.0)
    plan = plan_from({**LEAST, "temperature": 0.7, "top_k": 5, "stop": ["Q:"], "seeds": [0, 1]})
    assert plan.sampling == Sampling(temperature=0.7, top_k=5, stop=("Q:",))
    plan = plan_from({**LEAST, "ground": "all", "test": "all"})
    assert (plan.test, plan.ground) == (None, None)


def test_a_sweep_is_every_combination_of_its_values():
    sweep = {"rad.alpha": [0.1, 0.5], "rad.tau": [0.6, 0.7], "build.context": [4, 8]}
    plan = plan_from({**LEAST, "sweep": sweep})
    rad = [variant for variant in plan.variants if variant.method == "rad"]
    found = [(v.settings["alpha"], v.settings["tau"], v.build.context) for v in rad]
    assert found == [(a, t, c) for a in (0.1, 0.5) for t in (0.6, 0.7) for c in (4, 8)]
    assert plan.variants[0] == Variant("greedy")


def test_settings_are_the_base_of_a_sweep_and_of_named_variants():
    plan = plan_from(
        {
            **LEAST,
            "methods": ["greedy", "rad", "dola"],
            "settings": {"rad": {"alpha": 0.3}, "dola": {"candidates": [0, 1]}},
            "sweep": {"rad.tau": [0.6]},
            "variants": [{"method": "rad", "beta": 0.5}],
        }
    )
    assert [variant.settings for variant in plan.variants] == [
        {},
        {"alpha": 0.3, "tau": 0.6},
        {"candidates": (0, 1)},
        {"alpha": 0.3, "beta": 0.5},
    ]


def test_one_space_serves_rad_with_and_without_beta_and_knn_lm_has_its_own():
    plan = plan_from(
        {
            "benchmarks": ["facts"],
            "methods": ["rad", "knn-lm", "kate"],
            "variants": [{"method": "rad", "beta": 0.5}],
            "build": {"context": 4},
            "controls": False,
        }
    )
    rad, knn, kate, beta = (variant.build for variant in plan.variants)
    assert rad == beta == BuildOptions(context=4, wrong=True)
    assert kate == BuildOptions(context=None)
    assert knn == BuildOptions(context="full")
    own = {"benchmarks": ["facts"], "methods": ["knn-lm"], "build": {"knn-lm": {"context": 16}}}
    assert plan_from(own).variants[0].build == BuildOptions(context=16)


def test_methods_that_look_at_no_windows_are_built_no_entries_and_swept_over_none():
    table = {"benchmarks": ["facts"], "methods": ["rad", "kate"], "controls": False}
    plan = plan_from({**table, "build": {"context": 4, "embedder": "wordllama-256"}})
    assert plan.variants[1].build == BuildOptions(context=None, embedder="wordllama-256")
    plan = plan_from({**table, "sweep": {"build.context": [4, 16]}})
    found = [(v.method, v.build.context) for v in plan.variants]
    assert found == [("rad", 4), ("rad", 16), ("kate", None)]


NUMBER = r"must lie in \[{}, 1e\+09\], got"
MISTAKES = [  # one a check; tests/hostile/test_plan_attacks.py gives every key odd values
    ({"out": "\0"}, "out must be a text or none, got"),
    ({"methods": ["rat"]}, "there is no method 'rat'; there are greedy, corrective, rad, "),
    ({"tasks": ["chat"]}, r"tasks must be a list, each one of generate, choose, got"),
    ({"variants": [{"beta": 0.5}]}, "variants must be a list, each a table with a method"),
    ({"test": 0}, "test " + NUMBER.format(1)),
    ({"as": "x"}, "as must be \"paper\" or none, got 'x'"),
    ({"seeds": [0, 1]}, "seeds has several, which needs a temperature above 0"),
    ({"bertscore": "folder"}, "bertscore and bertscore_layers go together"),
    ({"bertscore_baseline": "encoder"}, "bertscore_baseline rescales BERTScore"),
    ({"temperature": -1.0}, "temperature must be 0 or more, got -1.0"),
    ({"temperature": 1e10}, "temperature " + NUMBER.format(0)),  # results read back
    ({"max_new_tokens": 10**10}, "max_new_tokens " + NUMBER.format(1)),
    ({"top_k": 3}, "top_k, top_p and seed need a temperature above 0"),
    ({"stop": "\ud800"}, "stop has a value that results cannot hold: .* surrogates"),
    ({"settings": {"rad": {"alhpa": 1}}}, "rad has no setting 'alhpa'; it has alpha, tau"),
    ({"settings": {"rad": {"alpha": 3.0}}}, r"rad: alpha must lie in \[0, 1\], got 3.0"),
    ({"settings": {"kate": {"k": 3}}}, "settings has 'kate', which is none of the methods"),
    ({"sweep": {"rad.alpha": [0.1, 7]}}, r"alpha must lie in \[0, 1\], got 7"),
    ({"sweep": {"alpha": [0.1]}}, r"sweep has 'alpha'; write .* methods \(greedy, rad\)"),
    ({"sweep": {"build.context": ["x"]}}, "build.context must be a whole number"),
    ({"sweep": {"build.context": [4]}, "methods": ["kate"]}, "sweep has 'build.context'"),
    ({"sweep": {f"rad.{n}": [0] * 50 for n in ("alpha", "tau", "beta")}}, "more than 1,000"),
    ({"build": {"depth": 1}}, "'build.depth' is not a key; the keys are context, window, "),
    ({"judge": {"per_hour": 3}}, "'judge.per_hour' is not a key; the keys are concurrency"),
    ({"\x1b[31m": 1}, r"'\\x1b\[31m' is not a key; the keys are out, models"),
]


@pytest.mark.parametrize(
    ("extra", "message"),
    MISTAKES,
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mistake_is_named(extra, message):
    with pytest.raises(SettingError, match=message) as caught:
        plan_from({**LEAST, **extra})
    assert str(caught.value).replace("\n", "").isprintable()


def test_all_mistakes_are_listed_together():
    table = {"methods": ["rat"], "tasks": ["chat"], "build": {"context": 0, "depth": 3}}
    with pytest.raises(SettingError) as caught:
        plan_from({**table, **{f"key{number}": 1 for number in range(2)}}, "run.toml")
    head, *rest = str(caught.value).split("\n  - ")
    assert head == "run.toml has 7 mistakes:"
    assert len(rest) == 7
    with pytest.raises(
        SettingError, match=r"benchmarks is missing \(--benchmark\)[^$]*--methods"
    ):
        plan_from({})


BAD_FILES = {
    "latin-1": (b'out = "caf\xe9"', "in line 1 the byte 0xe9 is not UTF-8; save the file"),
    "deep": (b"stop = " + b"[" * 5_000, "is not readable TOML"),
    "digits": (b"test = " + b"9" * 5_000, "is not readable TOML: Exceeds the limit"),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_file_without_a_plan_says_why(what, tmp_path):
    content, message = BAD_FILES[what]
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(SettingError) as caught:
        plan_from(read_plan_table(path), str(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
