"""Files of examples that nobody should hand in: examples, or an error that names the rows."""

import gzip
import json
import re
from collections import Counter

import pytest
from attack import ODD_TEXTS, Hang, mutated, mutated_bytes, odd_value, rounds, within
from conftest import EXAMPLES

from trueline.errors import ExampleError, SettingError
from trueline.examples import read_examples, to_lines
from trueline.types import Example

ROWS = [
    {"question": one.question, "answers": list(one.answers), "id": one.id, "source": "x"}
    for one in EXAMPLES
]


def csv_text(separator):
    rows = [["question", "answers", "id"]]
    rows += [[row["question"], row["answers"][0], row["id"]] for row in ROWS]
    return "\r\n".join(separator.join(f'"{cell}"' for cell in row) for row in rows) + "\r\n"


SOUND = {
    "facts.jsonl": "".join(to_lines(EXAMPLES)).encode(),
    "facts.json": json.dumps(ROWS, indent=1).encode(),
    "facts.csv": csv_text(",").encode(),
    "facts.tsv": csv_text("\t").encode(),
    "facts.jsonl.gz": gzip.compress("".join(to_lines(EXAMPLES)).encode(), mtime=0),
}


def parquet_bytes(folder):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(ROWS), folder / "facts.parquet")
    return (folder / "facts.parquet").read_bytes()


@pytest.mark.parametrize("name", ["facts.csv", "facts.jsonl.gz"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_another_encoding_is_refused_in_words(tmp_path, name, encoding):
    data = SOUND[name]
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    data = text.replace("bats", "b\u00e9ts").encode(encoding)
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(ExampleError, match=f"{re.escape(str(path))}.*UTF-8"):
        read_examples(path)


BLANKS, LINE = b" " * 40_000_000, "a line of more than 16,000,000 characters"


@pytest.mark.parametrize(
    ("name", "content", "most", "reason"),
    [
        ("x.jsonl.gz", BLANKS, None, LINE),
        ("x.csv.gz", BLANKS, None, LINE),
        ("x.jsonl.gz", b"\n" * 40_000_000, "files._MOST_UNPACKED", "more than 1,000,000 char"),
        ("x.json", BLANKS, "examples._MOST_JSON", "more than 1,000,000 characters"),
    ],
)
def test_a_small_file_that_unpacks_without_an_end_is_refused(
    name, content, most, reason, tmp_path, monkeypatch
):
    if most:
        monkeypatch.setattr(f"trueline.{most}", 1_000_000)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    with within(20), pytest.raises(ExampleError, match=reason):
        read_examples(path)


def mutated_file(chance, name, data):
    """A sound file with its rows or its bytes changed."""
    if chance.random() < 0.5 or name.endswith((".gz", ".parquet")):
        return mutated_bytes(chance, data)
    if name.endswith((".csv", ".tsv")):
        separator = "," if name.endswith("csv") else "\t"
        cells = [line.split(separator) for line in data.decode().split("\r\n")]
        row = chance.choice(cells)
        odd = [*ODD_TEXTS, '"', '""', '"\n', "[", '["a"']
        row[chance.randrange(len(row))] = chance.choice(odd)
        if chance.random() < 0.3:
            row.insert(0, "more")
        text = "\r\n".join(separator.join(row) for row in cells)
        return text.encode("utf-8", "surrogatepass")
    rows = mutated(chance, ROWS)
    if chance.random() < 0.2:
        rows = odd_value(chance)
    if name.endswith(".json"):
        return json.dumps(rows).encode()
    lines = rows if isinstance(rows, list) else [rows]
    return "\n".join(map(json.dumps, lines)).encode()


def check_examples(found):
    """What is read is whole: texts that can be kept, and ids that tell apart."""
    assert found
    assert all(isinstance(one, Example) and one.id and one.answers for one in found)
    assert len({one.id for one in found}) == len(found)
    assert read_examples(found) == found
    "".join(to_lines(found)).encode()


def test_no_file_of_examples_breaks_anything(tmp_path):
    sound = {**SOUND, "facts.parquet": parquet_bytes(tmp_path)}
    counts = Counter()
    for chance in rounds("examples", 300, 2_000):
        name = chance.choice([*sound])
        data = mutated_file(chance, name, sound[name])
        options = {}
        if chance.random() < 0.3:
            names = [*ODD_TEXTS, "answers", "answers.x", None]
            options["columns"] = {"answers": chance.choice(names)}
        if chance.random() < 0.2:
            options["separator"] = chance.choice([*ODD_TEXTS, ";"])
        path = tmp_path / name
        path.write_bytes(data)
        try:
            with within(30):
                check_examples(read_examples(path, **options))
            counts["used"] += 1
        except (ExampleError, SettingError) as error:
            counts["refused" if str(path) in str(error) else chance.name] += 1
        except (Exception, Hang) as error:
            case = f"{chance.name}: {name} {options!r} {data[:2000]!r}"
            raise AssertionError(case) from error
    assert {*counts} == {"used", "refused"}  # any other row of it is a refusal without the file
