"""Plans and benchmark files as strangers and slips of the pen write them."""

import gzip
import json
import tomllib

import pytest
import tiny
from attack import IS_LONG, mutated, mutated_bytes, rounds, within
from click.testing import CliRunner
from conftest import EXAMPLES
from tiny_run import LOAD

import trueline as tl
from trueline.cli import cli
from trueline.errors import ExampleError, SettingError, TruelineError
from trueline.lab.cells import benchmark_of, cells_of
from trueline.lab.plan import BUILD, JUDGE, KEYS, plan_from, read_plan_table
from trueline.lab.run import run_plan

pytestmark = pytest.mark.usefixtures("parts")
PLAN = """
out = "results"
models = ["tiny"]
benchmarks = ["GROUND:TEST"]
methods = ["greedy", "rad", "kate"]
tasks = ["generate", "choose"]
judges = ["fake"]
ground = 4
test = 3
draw = 7
rule = "all"
max_new_tokens = 2
batch_size = 2
temperature = 0.7
seeds = [0, 1]
stop = ["\\n\\n"]
threads = 1
trust_remote_code = false
controls = false

[judge]
per_minute = 60.5
tries = 2
max_tokens = 9

[settings.rad]
alpha = 0.5

[sweep]
"rad.tau" = [0.6, 0.7]
"build.context" = [4, 8]

[[variants]]
method = "rad"
beta = 0.5

[build]
window = "template"
values = "auto"

[build.rad]
end = true
"""


def plan_text(data) -> str:
    return PLAN.replace("GROUND:TEST", f"{data / 'ground.jsonl'}:{data / 'test.jsonl'}")


def evaluate(*arguments):
    """The exit code and output of `eval`; anything but an orderly end fails the test."""
    with within(60):
        return CliRunner().invoke(cli, ["eval", *map(str, arguments)], catch_exceptions=False)


WRONG = ["1979-05-27", "07:32:00", "inf", "nan", "-1", "''", "{}", "[]", "[[]]", "0.5", "1e300"]
WRONG += ["'\\u0000'", '"\\u0000"', str(2**63), "true", "[1979-05-27]", "[{}]", '["\\u0000"]']


def mistakes_of(**table) -> str:
    """What is wrong with a plan of these texts; empty if it is accepted."""
    try:
        text = "".join(f"{name} = {value}\n" for name, value in table.items())
        plan_from(tomllib.loads(text), "run.toml")
    except SettingError as error:
        return str(error)
    return ""


def test_a_wrong_value_at_every_key_is_named_with_its_place():
    """Each key takes few of these; each of the others is named, alone and all together."""
    least = {"benchmarks": '["facts"]', "methods": '["greedy"]'}
    keys = [*KEYS, *(f"judge.{key}" for key in JUDGE), *(f"build.{key}" for key in BUILD)]
    named = 0
    for key in keys:
        for value in WRONG:
            text = mistakes_of(**{**least, key: value})
            named += bool(text)
            assert not text or key.partition(".")[0] in text, (key, value, text)
    assert named > 500
    text = mistakes_of(**dict.fromkeys(KEYS, "1979-05-27"))
    assert all(f"- {key} must be " in text for key in KEYS)


def test_a_plan_alone_cannot_have_code_run(tmp_path, monkeypatch):
    path, given = tmp_path / "run.toml", []
    path.write_text(
        'benchmarks = ["facts"]\nground = 4\ntest = 1\nmax_new_tokens = 2\n'
        'methods = ["greedy"]\ncontrols = false\ntrust_remote_code = true\n'
    )

    def load(name, **options):
        given.append(options["trust_remote_code"])
        return tiny.language_model("llama")

    monkeypatch.setattr(LOAD, load)
    with pytest.raises(SettingError, match=r"a plan alone may not; .* --trust-remote"):
        evaluate(path, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done = evaluate(path, "--out", tmp_path / "out", "--trust-remote-code")
    assert (done.exit_code, given) == (0, [True])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--benchmark", "\x1b[31m"], r"no file '\x1b[31m'"),
        (["--benchmark", "wikiqa", "--data", "FILE"], "there is no data folder"),
        (["--benchmark", "FOLDER"], "there is no benchmark and no file"),
        (["--benchmark", "facts", "--out", "FILE"], "cannot be written (File exists)"),
        (["--benchmark", "facts", "--test", "9" * 5_000], "test must be a whole number"),
    ],
)
def test_odd_paths_and_numbers_of_eval_are_one_line(flags, message, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    names = {"FILE": tmp_path / "file", "FOLDER": tmp_path}
    given = [str(names.get(flag, flag)) for flag in flags]
    monkeypatch.chdir(tmp_path)
    if "--out" not in given:
        given += ["--out", str(tmp_path / "out")]
    with pytest.raises(TruelineError) as caught:
        evaluate("--methods", "greedy", *given)
    assert message in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


DATA = {  # of a table: its suffix, its content, and what is wrong with it
    "half": (".jsonl", b'{"document": "\\ud800", "right_summary": "a"}', ":1: "),
    "deep": (".jsonl", b"[" * 100_000 + b"\n", ":1: "),
    "long line": (".jsonl", b"x" * 17_000_000, "it has a line of more than 16,000,000"),
    "no gzip": (".jsonl.gz", b"{}\n", "Not a gzipped file"),
    "cut gzip": (".jsonl.gz", gzip.compress(b"{}\n" * 900)[:-8], "Compressed file ended"),
    "bomb": (".jsonl.gz", gzip.compress(b"x" * 40_000_000, 1), "it has a line of more than"),
}


@pytest.mark.parametrize("what", DATA)
def test_damaged_data_is_named_with_its_line(what, tmp_path):
    suffix, content, message = DATA[what]
    path = tmp_path / "halueval" / f"halueval_summarization_short700{suffix}"
    path.parent.mkdir()
    path.write_bytes(content)
    plan = {"benchmarks": ["halueval-summary"], "methods": ["greedy"], "data": str(tmp_path)}
    with pytest.raises(ExampleError) as caught, within(60):
        benchmark_of(plan_from(plan), "halueval-summary")
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def attacked(chance, text):
    """A plan that was changed: its table or its bytes, which a file then holds."""
    if chance.random() < 0.5:
        return mutated_bytes(chance, text.encode())
    lines = text.split("\n")
    for _ in range(chance.choice([1, 1, 2, 4])):
        at = chance.randrange(len(lines))
        kind = chance.randrange(4)
        key, _, _ = lines[at].partition(" = ")
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(chance.randrange(len(lines)), lines[at])
        elif kind == 2:
            lines[at] = f"{key} = {chance.choice(WRONG)}"
        else:
            lines[at] = f"{key}.{chance.choice(['x', 'rad', '0', 'alpha'])} = 1"
    return "\n".join(lines).encode()


def plan_cells(plan, lm, space):
    """Everything of a run that comes before the model answers."""
    for name in plan.benchmarks:
        benchmark = benchmark_of(plan, name)
        for variant in plan.variants:
            given = space if variant.build is not None else None
            yield from cells_of(plan, lm, benchmark, variant, given)


def test_mutated_plans_are_refused_or_planned(data, embedder, tmp_path, monkeypatch):
    """A round is refused by a TruelineError, or its cells are planned, each with its own id.

    Damage used silently would be a value that no key takes in the plan: every value of an
    accepted plan is checked again here, by rules of this file.
    """
    monkeypatch.chdir(tmp_path)
    lm, text = tiny.language_model("llama"), plan_text(data)
    space = tl.build(lm, EXAMPLES, context=8, embedder=embedder, wrong=True)
    table, path = tomllib.loads(text), tmp_path / "run.toml"
    assert len(list(plan_cells(plan_from(table), lm, space))) == 21  # 7 variants, 2 + 1 cells
    counts = {"refused": 0, "planned": 0, "run": 0}
    for number, chance in enumerate(rounds("plans", 150, 2_000)):
        is_file = number % 2 == 0
        given = attacked(chance, text) if is_file else mutated(chance, table)
        if not isinstance(given, dict | bytes):
            continue  # a plan is a table
        try:
            with within(60):
                if is_file:
                    path.write_bytes(given)
                    given = read_plan_table(path)
                plan = plan_from(given, "run.toml")
                cells = list(plan_cells(plan, lm, space))
                is_cheap = plan.sampling.max_new_tokens <= 4 and len(plan.variants) <= 8
                if is_cheap and counts["run"] < (40 if IS_LONG else 3):
                    run_plan(plan, tmp_path / f"out-{number}", max_samples=1)
                    counts["run"] += 1
        except TruelineError as error:
            counts["refused"] += bool(str(error))
            continue
        except BaseException as error:
            error.add_note(f"{chance.name}: {given!r}")
            raise
        counts["planned"] += 1
        assert is_sound(plan), f"{chance.name}: {plan}"
        for cell in cells:
            json.loads(json.dumps(cell.head.settings))
    print(f"plans: {counts}")
    assert min(counts.values()) > 0


def is_sound(plan) -> bool:
    """Whether every value is one that a run can take, by rules written down once more."""
    numbers = [plan.ground, plan.test, plan.draw, plan.threads, plan.bertscore_layers]
    numbers += [plan.sampling.max_new_tokens, plan.batch_size, *plan.seeds]
    names = [*plan.models, *plan.benchmarks, *plan.judges, plan.device, plan.ground_from]
    names += [str(plan.data), plan.bertscore]
    return (
        all(n is None or (type(n) is int and 0 <= n <= 10**9) for n in numbers)
        and all(n is None or (isinstance(n, str) and n and "\0" not in n) for n in names)
        and (plan.sampling.temperature == 0 or 0.001 <= plan.sampling.temperature <= 10**9)
        and type(plan.trust_remote_code) is bool
        and {*plan.tasks} <= {"generate", "choose"}
        and plan.rule in ("answered", "all")
        and 0 < len(plan.variants) <= 2_000
    )
