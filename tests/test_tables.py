"""Reading and encoding tables: what comes out, and what is said when nothing can."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from bad_tables import BAD, content, pattern
from secateur.tables import Encoding, TableError, encode_table, read_table


def table_of(tmp_path, text, name="data.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


GOOD = "size,fed,colour,y\n" + "".join(
    f"{0.5 * i},{i % 2 == 0},{('red', 'green', 'blue')[i % 3]},{i}.25\n" for i in range(12)
)


# --- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("a.csv", "size,y\n1.5,2\n3,4\n", "utf-8"),
        ("a.csv", "size;y\n1,5;2\n3;4\n", "utf-8-sig"),
        ("a.csv", '"size" | y\n1.5|2\n\n3|4\n', "utf-8"),
        ("a.TSV", "size\ty\r\n1.5\t2\r\n3\t4\r\n", "utf-8"),
        ("a.txt", "size,y\n1.5,2,\n3,4,\n", "utf-8"),
    ],
)
def test_text_files_of_every_kind_give_one_table(tmp_path, name, text, encoding):
    frame = read_table(table_of(tmp_path, text, name, encoding))
    assert frame.to_dict("list") == {"size": [1.5, 3.0], "y": [2, 4]}


def test_other_encodings_can_be_told(tmp_path):
    path = table_of(tmp_path, "größe,y\n1,2\n", encoding="latin-1")
    assert list(read_table(path, encoding="latin-1").columns) == ["größe", "y"]


def test_parquet_gives_what_csv_gives(tmp_path):
    frame = read_table(table_of(tmp_path, GOOD))
    frame.to_parquet(tmp_path / "data.parquet")
    again = read_table(tmp_path / "data.parquet")
    for a, b in zip(encode_table(frame, ["y"])[:2], encode_table(again, ["y"])[:2], strict=True):
        np.testing.assert_array_equal(a, b)


def test_text_is_kept_as_it_stands_where_asked(tmp_path):
    frame = read_table(table_of(tmp_path, "code,y\n01,1\n1,2\n"), text=["code", "absent"])
    assert frame["code"].tolist() == ["01", "1"]


# --- what columns and targets become --------------------------------------------------------------


def test_columns_become_inputs_by_kind(tmp_path):
    encoded = encode_table(read_table(table_of(tmp_path, GOOD)), ["y"])
    inputs = encoded.encoding.inputs
    assert [i["name"] for i in inputs] == [
        "size", "fed", "colour=blue", "colour=green", "colour=red",
    ]  # fmt: skip
    assert [i["kind"] for i in inputs] == ["number", "boolean"] + 3 * ["category"]
    assert encoded.x[:3].tolist() == [[0, 1, 0, 0, 1], [0.5, 0, 0, 1, 0], [1, 1, 1, 0, 0]]
    assert encoded.y.tolist() == [[i + 0.25] for i in range(12)]
    assert encoded.notes[0].startswith("task: regression, since 'y' holds numbers")


def test_two_categories_make_one_input():
    frame = pd.DataFrame({"sex": list("mf") * 6, "y": np.arange(12.0)})
    encoded = encode_table(frame, ["y"])
    assert encoded.encoding.inputs[0]["name"] == "sex=m"
    assert encoded.x[:2].tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["yes", "no"], "classification", ("no", "yes")),
        ([True, False], "classification", ("False", "True")),
        ([3, 7], "classification", ("3", "7")),
        ([0, 1, 2], "classification", ("0", "1", "2")),
        ([1, 2, 3, 4], "classification", ("1", "2", "3", "4")),
        ([2, 3, 4], "regression", None),
        ([0, 1, 2.5], "regression", None),
        (list(range(11)), "regression", None),
    ],
)
def test_the_target_decides_the_task(values, task, classes):
    y = (values * 12)[: 4 * len(values) if len(values) > 3 else 12]
    encoded = encode_table(pd.DataFrame({"x": np.arange(float(len(y))), "y": y}), ["y"])
    assert encoded.encoding.task == task
    assert encoded.encoding.targets[0].classes == classes
    if classes:
        assert [classes[label] for label in encoded.y] == list(map(str, y))


def test_the_task_can_be_told_and_several_targets_are_regression():
    frame = pd.DataFrame({"x": np.arange(12.0), "y": [0, 1, 2] * 4, "z": [0, 1] * 6})
    assert encode_table(frame, ["y"], task="regression").y.shape == (12, 1)
    both = encode_table(frame, ["z", "y"])
    assert both.y.tolist()[:3] == [[0, 0], [1, 1], [0, 2]]
    assert both.encoding.outputs == 2


def test_missing_values_are_dropped_or_filled():
    frame = pd.DataFrame({"x": np.arange(14.0), "c": [*"aabaabaabaabab"], "y": 1.5})
    frame["y"] += np.arange(14)
    frame.loc[1, "x"] = np.nan
    frame.loc[3, "c"] = "  "
    frame.loc[5, "y"] = np.nan
    dropped = encode_table(frame, ["y"], missing="drop")
    assert dropped.rows.tolist() == [0, 2, 4, *range(6, 14)]
    filled = encode_table(frame, ["y"], missing="mean")
    assert filled.rows.tolist() == [0, 1, 2, 3, 4, *range(6, 14)]
    # Oracle: pandas, on the rows whose target is there.
    there = frame.drop(index=5)
    assert filled.x[1, 0] == pytest.approx(there["x"].mean())
    assert filled.x[3, 1] == (there["c"].str.strip().replace("", None).mode()[0] == "b")
    assert "1 rows are left out, because 'y' has no value there" in filled.notes


def test_columns_of_one_value_are_left_out_and_named():
    frame = pd.DataFrame({"x": np.arange(12.0), "k": "same", "n": 7, "y": np.arange(12.0)})
    encoded = encode_table(frame, ["y"])
    assert [c.name for c in encoded.encoding.columns] == ["x"]
    assert any("'k', 'n'" in note for note in encoded.notes)


# --- new rows -------------------------------------------------------------------------------------


@pytest.fixture
def encoding(tmp_path):
    made = encode_table(read_table(table_of(tmp_path, GOOD)), ["y"]).encoding
    return Encoding.from_json(json.loads(json.dumps(made.to_json())))


def test_new_rows_are_encoded_alike_in_whatever_order(tmp_path, encoding):
    whole = encode_table(read_table(table_of(tmp_path, GOOD)), ["y"])
    assert encoding == whole.encoding
    frame = read_table(table_of(tmp_path, GOOD), text=encoding.text_columns)
    turned = frame[["colour", "fed", "size"]].iloc[::-1].reset_index(drop=True)
    np.testing.assert_array_equal(encoding.encode(turned).x, whole.x[::-1])


def test_categories_that_look_like_numbers_are_found_again(tmp_path):
    frame = read_table(table_of(tmp_path, "code,y\n" + "01,1.5\nx,2.5\n1,3\n" * 4), text=["code"])
    encoding = encode_table(frame, ["y"]).encoding
    new = read_table(table_of(tmp_path, "code\n01\n1\n", "new.csv"), text=encoding.text_columns)
    assert encoding.encode(new).x.tolist() == [[1, 0, 0], [0, 1, 0]]


def test_lacking_extra_and_unseen_are_told_by_name(encoding):
    good = pd.DataFrame({"size": [1.0, 2], "fed": [True, False], "colour": ["red", "blue"]})
    assert encoding.encode(good).notes == []
    assert "'hat'" in encoding.encode(good.assign(hat=1, y=2)).notes[0]
    with pytest.raises(TableError, match="no column 'fed', 'colour', which the model needs"):
        encoding.encode(good[["size"]])
    with pytest.raises(TableError, match=r"'colour' holds 'pink' in row 2, .*Known: 'blue', 'gre"):
        encoding.encode(good.assign(colour=["red", "pink"]))
    with pytest.raises(TableError, match="'size' holds numbers, but not in row 1: 'big'"):
        encoding.encode(good.assign(size=["big", "2"]))
    with pytest.raises(TableError, match="'fed' holds true and false, but 'perhaps' in row 2"):
        encoding.encode(good.assign(fed=[True, "perhaps"]))


def test_missing_values_of_new_rows(encoding):
    new = pd.DataFrame({"size": [1.0, np.nan], "fed": [True, False], "colour": ["red", None]})
    with pytest.raises(TableError, match="no value in row 2"):
        encoding.encode(new)
    assert encoding.encode(new, missing="drop").rows.tolist() == [0]
    filled = encoding.encode(new, missing="mean")
    assert filled.x[1, 0] == pytest.approx(0.5 * np.mean(range(12)))
    assert np.isfinite(filled.x).all()


# --- bad input: each says which column, and the way out ------------------------------------------


@pytest.mark.parametrize("kind", BAD)
def test_bad_tables_are_refused_with_the_way_out(tmp_path, kind):
    path = tmp_path / "data.csv"
    path.write_bytes(content(kind))
    with pytest.raises(TableError, match=pattern(kind)):
        encode_table(read_table(path), ["y"])


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("größe,y\n1,2\n".encode("latin-1"), "a.csv", "not UTF-8 .byte 0xf6.*encoding=.latin-1"),
        ("a,y\n1,2\n".encode("utf-16"), "a.csv", "not UTF-8 but UTF-16.*encoding=.utf-16"),
        (b"\x1f\x8b\x08\x00", "a.csv", "compressed"),
        (b"PK\x03\x04\x00\x00", "a.csv", "NUL"),
        (b"PK\x03\x04", "a.xlsx", "does not end in .*parquet"),
        (b"not parquet", "a.parquet", "not a Parquet file"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path, content, name, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TableError, match=message):
        read_table(path)


def test_files_that_are_not_there_are_refused(tmp_path):
    for name in ("a.csv", "a.parquet"):
        with pytest.raises(TableError, match="there is no file"):
            read_table(tmp_path / name)
    with pytest.raises(TableError, match="is not known to Python"):
        read_table(table_of(tmp_path, GOOD), encoding="klingon")


def test_parquet_columns_that_are_no_inputs_are_named(tmp_path):
    base = {"y": np.arange(12.0)}
    odd = {
        "lists": ([[1, 2]] * 12, "neither numbers nor texts"),
        "when": (pd.date_range("2024-01-01", periods=12), "dates"),
        "raw": ([b"x"] * 12, "'bytes'"),
    }
    for name, (values, message) in odd.items():
        pd.DataFrame(base | {name: values}).to_parquet(tmp_path / "a.parquet")
        with pytest.raises(TableError, match=message) as caught:
            encode_table(read_table(tmp_path / "a.parquet"), ["y"])
        assert name in str(caught.value)
        assert f"drop=[{name!r}]" in str(caught.value)


def test_options_that_are_wrong_are_named():
    frame = pd.DataFrame({"x": np.arange(12.0), "y": np.arange(12.0), "c": list("abc") * 4})
    for options, message in [
        ({"drop": ["hat"]}, "no column to drop 'hat' in the table"),
        ({"drop": ["y"]}, "both a target and a column to drop"),
        ({"task": "guess"}, "task=.guess. is not known"),
        ({"missing": "guess"}, "missing=.guess. is not known"),
    ]:
        with pytest.raises(TableError, match=message):
            encode_table(frame, ["y"], **options)
    with pytest.raises(TableError, match="more than once"):
        encode_table(frame, ["y", "y"])
    with pytest.raises(TableError, match=r"targets 'c' hold classes and the others numbers"):
        encode_table(frame, ["c", "y"])
    with pytest.raises(TableError, match="holds texts, which regression cannot predict"):
        encode_table(frame, ["c"], task="regression")


# --- damage of every kind -------------------------------------------------------------------------

NASTY = [
    b"\x00", b"\xff", b'"', b'""', b",", b",,", b";", b"\t", b"\n", b"\r", b"\r\n", b" ", b"nan",
    b"inf", b"-inf", b"1e999", b"NA", b"None", b"true", b"\xef\xbb\xbf", "é".encode(), b"1-1-2024",
    b"99999999999999999999999", b"0x1F", b"1_000", b"'", b"\\", b"#", b"1,5", b"\x1a", b"=1+1",
]  # fmt: skip


def mutated(rng, content):
    """Damage some bytes: changed, removed, doubled, inserted, swapped or cut off."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, len(data) + 1))
        match rng.integers(0, 7):
            case 0:
                data[at : at + 1] = bytes([rng.integers(0, 256)])
            case 1:
                del data[at : at + int(rng.integers(1, 8))]
            case 2:
                data[at:at] = data[at : at + int(rng.integers(1, 40))]
            case 3 | 4:
                data[at:at] = NASTY[rng.integers(0, len(NASTY))]
            case 5 if rng.random() < 0.2:
                lines = bytes(data).split(b"\n")
                rng.shuffle(lines)
                data = bytearray(b"\n".join(lines))
            case 6 if rng.random() < 0.2:
                del data[at:]
    return bytes(data)


@pytest.mark.slow
def test_600_damaged_tables_never_end_in_a_traceback(tmp_path):
    """Whatever is done to a table, it is read, or refused with a `TableError` and nothing else."""
    rng = np.random.default_rng(20240607)
    encoding = encode_table(read_table(table_of(tmp_path, GOOD)), ["y"]).encoding
    path = tmp_path / "damaged.csv"
    outcomes = Counter()
    for number in range(600):
        content = mutated(rng, GOOD.encode())
        path.write_bytes(content)
        how = ("error", "drop", "mean", "new rows")[number % 4]
        try:
            if how == "new rows":
                x = encoding.encode(read_table(path, text=encoding.text_columns), missing="mean").x
            else:
                encoded = encode_table(read_table(path), ["y"], missing=how)
                x = np.column_stack([encoded.x, encoded.y])
                json.dumps(encoded.encoding.to_json(), allow_nan=False)
            assert np.isfinite(x).all()
            outcomes[how, "read"] += 1
        except TableError:
            outcomes[how, "refused"] += 1
        except Exception as error:
            raise AssertionError(content) from error
    # The test would be empty if all were refused, or none.
    assert len(outcomes) == 8
    assert min(outcomes.values()) > 15, outcomes


# --- classes --------------------------------------------------------------------------------------

# The texts of a target, and the classes that they are.
SPELLINGS = {
    "versions": (["v2.0", "v10", "v2.1"], ("v10", "v2.0", "v2.1")),
    "leading zeros": (["01", "02", "10"], ("01", "02", "10")),
    "powers": (["1e3", "7"], ("7", "1e3")),
    "trailing zeros": (["1.0", "2.0"], ("1.0", "2.0")),
    "two spellings": (["1.0", "1", "2"], ("1", "2")),
    "booleans": (["True", "False"], ("False", "True")),
    "shouted booleans": (["TRUE", "FALSE"], ("FALSE", "TRUE")),
    "almost missing": (["Nan", "none", "inf"], ("Nan", "inf", "none")),
    "numbers and texts": (["1", "1.0", "x"], ("1", "1.0", "x")),
}


@pytest.mark.parametrize("kind", SPELLINGS)
def test_classes_are_called_what_they_are_called_in_the_table(tmp_path, kind):
    texts, classes = SPELLINGS[kind]
    rows = [texts[i % len(texts)] for i in range(12)]
    path = table_of(tmp_path, "x,y\n" + "".join(f"{i},{text}\n" for i, text in enumerate(rows)))
    spelled = read_table(path, columns=["y"], text=["y"])
    frame = read_table(path)
    encoded = encode_table(frame, ["y"], task="classification", texts=spelled)
    encoding = Encoding.from_json(encoded.encoding.to_json())
    assert encoding.targets[0].classes == classes
    # Oracle: the first encoding.
    again = read_table(path, text=encoding.text_columns)
    np.testing.assert_array_equal(encoding.encode_targets(again), encoded.y)
    if kind != "two spellings":
        assert [classes[code] for code in encoded.y] == rows


def test_other_tables_may_spell_numbers_and_booleans_otherwise(tmp_path):
    frame = pd.DataFrame({"x": np.arange(12.0), "y": ["01", "2"] * 6, "z": [True, False] * 6})
    by_number, by_truth = (encode_table(frame, [n], drop=[*{"y", "z"} - {n}]) for n in "yz")
    for encoded, texts in ((by_number, ["1", "2.00"]), (by_truth, ["true", "0"])):
        (target,) = encoded.encoding.targets
        codes = target.encode(pd.Series(texts, dtype=object))
        np.testing.assert_array_equal(codes, encoded.y[:2])
        with pytest.raises(TableError, match=f"'{target.name}' holds 'three' in row 2, .*not a cl"):
            target.encode(pd.Series([texts[0], "three"], dtype=object))
        with pytest.raises(TableError, match=f"'{target.name}' has no value in row 1"):
            target.encode(pd.Series([None, texts[0]], dtype=object))
    assert by_number.encoding.encode_targets(frame[["x"]]) is None
