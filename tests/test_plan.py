"""Plans: what a table becomes, and that every mistake in it is named."""

import pytest

from trueline.errors import SettingError
from trueline.lab.plan import KEYS, BuildOptions, Plan, Variant, plan_from, read_plan_table
from trueline.types import Sampling

LEAST = {"benchmarks": ["facts"], "methods": ["greedy", "rad"], "controls": False}


def mistakes(table) -> list[str]:
    with pytest.raises(SettingError) as caught:
        plan_from(table, "run.toml")
    head, *rest = str(caught.value).split("\n  - ")
    assert head.startswith("run.toml has ")
    return rest


def test_a_short_plan_has_the_defaults_of_the_paper():
    plan = plan_from(LEAST)
    assert plan == Plan(benchmarks=("facts",), methods=("greedy", "rad"), controls=False)
    assert plan.variants == (Variant("greedy"), Variant("rad", {}, BuildOptions(context=8)))
    assert (plan.ground, plan.tasks, plan.seeds) == (100, ("generate",), (0,))
    assert plan.sampling == Sampling(max_new_tokens=64, temperature=0.0)


def test_options_of_sampling_are_keys_of_a_plan_and_declared_in_sampling_alone():
    plan = plan_from({**LEAST, "temperature": 0.7, "top_k": 5, "stop": ["Q:"], "seeds": [0, 1]})
    assert plan.sampling == Sampling(temperature=0.7, top_k=5, stop=("Q:",))
    assert {"temperature", "top_k", "top_p", "stop", "max_new_tokens"} <= {*KEYS}
    assert not {"seed", "trace", "logprobs"} & {*KEYS}


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
            "settings": {"rad": {"alpha": 0.3}},
            "sweep": {"rad.tau": [0.6]},
            "variants": [{"method": "rad", "beta": 0.5}],
        }
    )
    greedy, swept, named = plan.variants
    assert (swept.settings, named.settings) == (
        {"alpha": 0.3, "tau": 0.6},
        {"alpha": 0.3, "beta": 0.5},
    )
    assert greedy.build is None


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


def test_methods_that_look_at_no_windows_are_built_no_entries():
    table = {"benchmarks": ["facts"], "methods": ["greedy", "corrective", "lookup", "kate"]}
    plan = plan_from({**table, "build": {"context": 4, "embedder": "wordllama-256"}})
    built = {variant.build for variant in plan.variants if variant.build is not None}
    assert built == {BuildOptions(context=None, embedder="wordllama-256")}
    assert {one.control for one in plan.variants} >= {"wrong answers", "unrelated examples"}


def test_a_build_sweep_runs_kate_once_as_it_reads_no_window():
    table = {"benchmarks": ["facts"], "methods": ["rad", "kate"], "controls": False}
    plan = plan_from({**table, "sweep": {"build.context": [4, 16]}})
    assert [(v.method, v.build.context) for v in plan.variants] == [
        ("rad", 4),
        ("rad", 16),
        ("kate", None),
    ]


def test_lists_become_tuples_and_all_means_no_limit():
    plan = plan_from(
        {
            "benchmarks": ["facts"],
            "methods": ["dola"],
            "settings": {"dola": {"candidates": [0, 1]}},
            "test": "all",
            "ground": "all",
        }
    )
    assert plan.variants[0].settings == {"candidates": (0, 1)}
    assert (plan.test, plan.ground) == (None, None)


def test_every_mistake_is_listed_with_its_name_and_what_is_allowed():
    found = mistakes(
        {
            "benchmark": ["facts"],
            "methods": ["greedy", "rat"],
            "tasks": ["chat"],
            "test": 0,
            "temperature": -1.0,
            "build": {"context": 0, "depth": 3},
        }
    )
    told = "\n".join(found)
    assert len(found) == 8
    assert f"benchmark is not a key; the keys are {', '.join(KEYS)}" in told
    assert "benchmarks is missing" in told
    assert "tasks must be a list, each one of generate, choose; got ['chat']" in told
    assert 'test must be a whole number from 1 to 1,000,000,000 or "all"; got 0' in told
    assert "temperature must be 0 or more, got -1.0" in told
    assert "there is no method 'rat'; there are greedy, corrective, rad, " in told
    assert 'build.context must be a whole number from 1 to 1,000,000,000 or "full"; got' in told
    assert "build.depth is not a key; the keys are context, window, " in told


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        (
            {"settings": {"rad": {"alhpa": 0.3}}},
            "rad has no setting 'alhpa'; it has alpha, tau",
        ),
        ({"settings": {"rad": {"alpha": 3.0}}}, r"alpha must lie in \[0, 1\], got 3.0"),
        ({"settings": {"rad": {"alpha": "much"}}}, "rad: alpha must be a number, got 'much'"),
        ({"settings": {"kate": {"k": 3}}}, "settings.kate belongs to none of the methods"),
        ({"settings": {"rad": 3}}, "settings must be a table, each value a table; got"),
        ({"sweep": {"rad.alpha": 0.1}}, "sweep must be a table, each value a list of values"),
        ({"sweep": {"rad.alpha": [0.1, 7]}}, r"alpha must lie in \[0, 1\], got 7"),
        ({"sweep": {"alpha": [0.1]}}, "sweep has 'alpha'; write \"METHOD.SETTING\""),
        ({"sweep": {"cad.a": [0.1]}}, r"of one of the methods \(greedy, rad\)"),
        ({"sweep": {"build.context": ["x"]}}, "build.context must be a whole number"),
        ({"sweep": {"build.depth": [1]}}, "build.depth is not a key; the keys are context"),
        (
            {"settings": {"rad": {"beta": float("inf")}}},
            "settings has what results cannot hold",
        ),
        ({"sweep": {"rad.beta": [0.1, float("nan")]}}, "sweep has what results cannot hold"),
        (
            {"variants": [{"method": "rad", "beta": 2**63}]},
            "variants has what results cannot hold",
        ),
        ({"judge": {"per_hour": 3}}, "judge.per_hour is not a key; the keys are concurrency"),
        ({"judge": {"tries": 0}}, r"judge.tries must lie in \[1, 100\], got 0"),
        ({"judge": {"timeout": float("inf")}}, "judge has what results cannot hold"),
        ({"judge": {"questions": "mine"}}, "judge.questions must be one of ours, paper; got"),
        ({"judge": 3}, "judge must be a table; got 3"),
        ({"build": {"rad": 4}}, "build.rad must be a table; got 4"),
        ({"seeds": [0, 1]}, "seeds has several, which needs a temperature above 0"),
        ({"top_k": 3}, "top_k, top_p and seed need a temperature above 0"),
        ({"max_new_tokens": 10**10}, "max_new_tokens must be at most 1,000,000,000; got"),
        ({"variants": [{"beta": 0.5}]}, "variants must be a list, each a table with a method"),
        ({"bertscore": "folder"}, "bertscore and bertscore_layers go together"),
        ({"columns": {}}, "columns must be a table, each value a text; got {}"),
        ({"data": "\0"}, "data must be a text without NUL"),
        ({"stop": "\ud800"}, "stop has what results cannot hold; .* texts Unicode"),
        ({"benchmarks": []}, "benchmarks must be a list, each a text without NUL; got"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mistake_is_named(extra, told):
    with pytest.raises(SettingError, match=told):
        plan_from({**LEAST, **extra})


def test_a_sweep_of_the_space_needs_a_method_that_has_one():
    sweep = {"build.context": [4, 8]}
    assert mistakes(
        {"benchmarks": ["facts"], "methods": ["greedy", "kate"], "sweep": sweep}
    ) == ["sweep has 'build.context', which changes none of greedy, kate"]


def test_a_plan_needs_a_method():
    assert mistakes({"benchmarks": ["facts"]}) == [
        "methods is missing; name one or more, such as greedy and corrective"
    ]


def test_a_file_that_is_missing_or_no_toml_is_told(tmp_path):
    with pytest.raises(SettingError, match=r"run.toml cannot be read: No such file"):
        read_plan_table(tmp_path / "run.toml")
    (tmp_path / "run.toml").write_text("methods = [")
    with pytest.raises(SettingError, match=r"run.toml is not readable TOML"):
        read_plan_table(tmp_path / "run.toml")
