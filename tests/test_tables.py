"""Reading and encoding tables: what comes out, and what is said when nothing can."""

import calendar
import cmath
import json
from collections import Counter
from datetime import datetime, timedelta

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
        ([0, 1, 3], "regression", None),
        ([-1, 0, 1], "regression", None),
        (list(range(30)), "classification", tuple(map(str, range(30)))),
        (list(range(1, 31)), "classification", tuple(map(str, range(1, 31)))),
        (list(range(31)), "regression", None),
    ],
)
def test_the_target_decides_the_task(values, task, classes):
    y = (values * 12)[: 4 * len(values) if len(values) > 3 else 12]
    encoded = encode_table(pd.DataFrame({"x": np.arange(float(len(y))), "y": y}), ["y"])
    assert encoded.encoding.task == task
    assert encoded.encoding.targets[0].classes == classes
    if classes:
        assert [classes[label] for label in encoded.y] == list(map(str, y))


@pytest.mark.parametrize(
    ("y", "task", "reason"),
    [
        ([0, 1, 2, 3] * 5, "classification", "the whole numbers 0 to 3, and no others"),
        ([0, 1, 2] * 6 + [3], "regression", "the whole numbers 0 to 3, but 3 in one row only"),
        (list(range(1, 7)) * 2, "regression", "the whole numbers 1 to 6 in 12 rows only"),
        (list(range(1, 7)) * 3, "classification", "the whole numbers 1 to 6, and no others"),
    ],
)
def test_whole_numbers_are_classes_only_with_enough_rows(y, task, reason):
    frame = pd.DataFrame({"x": np.arange(float(len(y))), "y": y})
    encoded = encode_table(frame, ["y"])
    assert encoded.encoding.task == task
    assert encoded.notes[0] == f"task: {task}, since 'y' holds {reason}"
    for asked in ("regression", "classification"):
        assert encode_table(frame, ["y"], task=asked).encoding.task == asked


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


# --- a first column without a name ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "index", "purpose"),
    [
        ("", range(12), "numbers"),
        ("  ", range(1, 13), "numbers"),
        ("Unnamed: 0", [3, 2, 1, 0, *range(4, 12)], "numbers"),
        ("", range(5, 41, 3), "numbers"),  # some rows of a larger table
        ('""', [f"Mazda RX{i}" for i in range(12)], "names"),
    ],
)
def test_a_first_column_without_a_name_is_an_index(tmp_path, header, index, purpose):
    text = f"{header},size,y\n" + "".join(f"{n},{i / 2},{i}.5\n" for i, n in enumerate(index))
    encoded = encode_table(read_table(table_of(tmp_path, text)), ["y"])
    assert [c.name for c in encoded.encoding.columns] == ["size"]
    sentence = f"the first column has no name and only {purpose} the rows: it is not used"
    assert any(note.startswith(sentence) for note in encoded.notes)
    new = read_table(table_of(tmp_path, "size\n1\n2\n"))
    assert encoded.encoding.encode(new).x.tolist() == [[1], [2]]
    assert encoded.encoding.encode(read_table(table_of(tmp_path, text))).notes == []


def test_other_columns_without_a_name_are_not_used_in_silence(tmp_path):
    for index in ([2, *range(2, 13)], [0.5, *range(1, 12)], ["a", "a", *"bcdefghijk"]):
        text = ",y\n" + "".join(f"{n},{i}.5\n" for i, n in enumerate(index))
        with pytest.raises(TableError, match=r"'Unnamed: 0' has no name.*drop=\['Unnamed: 0'\]"):
            encode_table(read_table(table_of(tmp_path, text)), ["y"])
    # A series of dates without a name is not a list of names.
    text = ",size,y\n" + "".join(f"2024-01-{i + 1:02d},{i},{i}.5\n" for i in range(12))
    with pytest.raises(TableError, match=r"'Unnamed: 0' holds dates.*dates='parts'"):
        encode_table(read_table(table_of(tmp_path, text)), ["y"])
    # A name makes it a column like others.
    frame = pd.DataFrame({"number": range(12), "y": np.arange(12.0) + 0.5})
    assert [c.name for c in encode_table(frame, ["y"]).encoding.columns] == ["number"]


# --- missing values as inputs ---------------------------------------------------------------------


def frame_with_gaps(**gaps):
    """Twelve or more rows; `gaps` says in how many of the first rows a column has no value."""
    frame = pd.DataFrame(
        {
            "x": np.arange(20.0),
            "z": np.arange(20.0) ** 2,
            "c": [*"abcbacbacabcbacabcab"],
            "b": [True, False] * 10,
            "y": np.arange(20) + 0.5,
        }
    ).astype({"b": object})
    for name, count in gaps.items():
        frame.loc[: count - 1, name] = None
    return frame


def test_where_values_are_often_missing_is_an_input():
    """Oracle: pandas' isna."""
    frame = frame_with_gaps(x=5, c=6, b=7, z=4)
    encoded = encode_table(frame, ["y"], missing="mean")
    names = [i["name"] for i in encoded.encoding.inputs]
    assert names == [
        "x", "x is missing", "z", "c=a", "c=b", "c=c", "c is missing", "b", "b is missing",
    ]  # fmt: skip
    for name in "xcb":
        indicator = encoded.x[:, names.index(f"{name} is missing")]
        np.testing.assert_array_equal(indicator, frame[name].isna().astype(float))
    assert encoded.x[0, 0] == pytest.approx(frame["x"].mean())
    kinds = {i["name"]: i["kind"] for i in encoded.encoding.inputs}
    assert (kinds["x is missing"], kinds["c is missing"], kinds["x"]) == (
        "boolean", "boolean", "number",
    )  # fmt: skip
    assert "inputs that say whether a value is missing are added for 'x', 'c', 'b'" in encoded.notes
    # Nothing of the sort where rows are left out.
    dropped = encode_table(frame, ["y"], missing="drop")
    assert not any("missing" in i["name"] for i in dropped.encoding.inputs)


@pytest.mark.parametrize(("missing", "is_input"), [(4, False), (5, True), (15, True), (16, False)])
def test_an_indicator_needs_five_rows_of_either_kind(missing, is_input):
    encoded = encode_table(frame_with_gaps(x=missing), ["y"], missing="mean")
    assert ("x is missing" in [i["name"] for i in encoded.encoding.inputs]) == is_input


def test_columns_that_are_missing_together_share_an_input():
    frame = frame_with_gaps(x=6, c=6)
    frame.loc[6:, "b"] = None  # there exactly where the others are missing
    encoded = encode_table(frame, ["y"], missing="mean")
    assert [i["name"] for i in encoded.encoding.inputs if "missing" in i["name"]] == [
        "x is missing"
    ]


def test_a_column_of_one_value_counts_by_being_there():
    frame = frame_with_gaps()
    frame["mark"] = [None, "x"] * 10
    encoded = encode_table(frame, ["y"], missing="mean")
    assert [i["name"] for i in encoded.encoding.inputs][-1] == "mark is missing"
    np.testing.assert_array_equal(encoded.x[:, -1], [1, 0] * 10)
    encoding = Encoding.from_json(json.loads(json.dumps(encoded.encoding.to_json())))
    new = frame.assign(mark=["X", "", *["x"] * 18])
    assert encoding.encode(new).x[:3, -1].tolist() == [0, 1, 0]
    # With missing="drop" it is a column of one value.
    dropped = encode_table(frame.assign(mark=["x"] * 15 + [None] * 5), ["y"], missing="drop")
    assert "mark" in dropped.encoding.unused


def test_new_rows_have_their_indicators_too():
    encoded = encode_table(frame_with_gaps(x=5), ["y"], missing="mean")
    encoding = Encoding.from_json(json.loads(json.dumps(encoded.encoding.to_json())))
    assert encoding == encoded.encoding
    # z has no value only in new rows: its mean is filled in, and there is no input for that.
    new = frame_with_gaps(z=2).iloc[[0, 7]].assign(x=[3.0, np.nan]).reset_index(drop=True)
    names = [i["name"] for i in encoding.inputs]
    rows = pd.DataFrame(encoding.encode(new).x, columns=names)
    assert rows["x is missing"].tolist() == [0, 1]
    assert rows["x"].tolist() == [3, np.mean(np.arange(5, 20))]
    assert rows["z"].tolist() == [np.mean(np.arange(20) ** 2), 49]
    complete = encoding.encode(new, missing="drop")
    assert complete.rows.tolist() == []
    assert encoding.encode(new.assign(x=1.0, z=1.0), missing="error").x[:, 1].tolist() == [0, 0]


def test_a_target_that_is_missing_too_is_repaired_by_one_argument():
    frame = frame_with_gaps(x=3)
    frame.loc[19, "y"] = None
    with pytest.raises(TableError, match=r"target 'y' has no value in row 20\.") as caught:
        encode_table(frame, ["y"])
    (advice,) = [r for r in caught.value.remedies if r.is_advised]
    assert (advice.argument, advice.value) == ("missing", "mean")
    assert len(encode_table(frame, ["y"], missing="mean").y) == 19


# --- dates ----------------------------------------------------------------------------------------

# Pairs of days that are near each other, on all weekdays, at all times.
DAYS = [
    datetime(2019, 11, 28)
    + timedelta(days=40 * (i // 2) + 3 * (i % 2), hours=5 * i, minutes=7 * i, seconds=i)
    for i in range(24)
]


def parts_of(moment):
    """Oracle: Python's datetime, and the unit circle in complex numbers."""
    days = 366 if calendar.isleap(moment.year) else 365
    day = cmath.exp(2j * cmath.pi * (moment.timetuple().tm_yday - 1) / days)
    seconds = (moment - moment.replace(hour=0, minute=0, second=0)).seconds
    time = cmath.exp(2j * cmath.pi * seconds / 86400)
    weekdays = [float(moment.strftime("%A") == name) for name in calendar.day_name]
    return [moment.year, day.imag, day.real, time.imag, time.real, *weekdays]


def dated(texts, **more):
    return pd.DataFrame({"when": texts, "size": np.arange(24.0), "y": np.arange(24) + 0.5} | more)


def test_dates_become_year_day_weekday_and_time():
    encoded = encode_table(dated([m.isoformat() for m in DAYS]), ["y"], dates="parts")
    names = [i["name"] for i in encoded.encoding.inputs]
    assert names == [
        "when year", "when sin(day of year)", "when cos(day of year)", "when sin(time of day)",
        "when cos(time of day)", *(f"when weekday={name}" for name in calendar.day_name), "size",
    ]  # fmt: skip
    expected = np.array([parts_of(m) for m in DAYS])
    np.testing.assert_allclose(encoded.x[:, :-1], expected, atol=1e-12)
    kinds = [i["kind"] for i in encoded.encoding.inputs]
    assert kinds == ["number"] * 5 + ["category"] * 7 + ["number"]
    assert any(
        "dates of 'when' (year-month-day) become year, sin(day of year)" in note
        for note in encoded.notes
    )
    encoding = Encoding.from_json(json.loads(json.dumps(encoded.encoding.to_json())))
    assert encoding == encoded.encoding
    new = pd.DataFrame({"when": ["2031-02-03 04:05:06", "2030-12-31"], "size": [1.0, 2.0]})
    expected = [parts_of(datetime(2031, 2, 3, 4, 5, 6)), parts_of(datetime(2030, 12, 31))]
    np.testing.assert_allclose(encoding.encode(new).x[:, :-1], expected, atol=1e-12)


@pytest.mark.parametrize(
    "form",
    [
        "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S.250+01:00", "%d.%m.%Y %H:%M",
        "%m/%d/%Y %I:%M:%S %p", "%d/%m/%Y %H:%M", "%d-%b-%Y", "%B %d, %Y", "%b %d, %Y %H:%M",
        "%Y/%m/%d", "%d.%m.%y", "%d %B %Y",
    ],
)  # fmt: skip
def test_dates_are_read_in_the_format_of_their_column(form):
    texts = [m.strftime(form) for m in DAYS]
    encoded = encode_table(dated(texts), ["y"], dates="parts")
    names = [i["name"] for i in encoded.encoding.inputs]
    assert ("when sin(time of day)" in names) == ("%H" in form or "%I" in form)
    for name, place in (("year", 0), ("sin(day of year)", 1), ("cos(day of year)", 2)):
        expected = [parts_of(m)[place] for m in DAYS]
        np.testing.assert_allclose(encoded.x[:, names.index(f"when {name}")], expected, atol=1e-12)
    # One row alone, which could be read otherwise, is read like the column.
    alone = encoded.encoding.encode(dated(texts).iloc[[5]])
    np.testing.assert_array_equal(alone.x, encoded.x[[5]])
    assert encoded.encoding.encode(dated(texts).iloc[:0]).x.shape == (0, len(names))


def test_dates_of_parquet_files_and_times_of_day(tmp_path):
    frame = dated(pd.Series(DAYS).dt.tz_localize("Europe/Berlin"))
    frame["at"] = [m.time() for m in DAYS]
    frame.to_parquet(tmp_path / "a.parquet")
    encoded = encode_table(read_table(tmp_path / "a.parquet"), ["y"], dates="parts")
    names = [i["name"] for i in encoded.encoding.inputs]
    assert names[-2:] == ["at sin(time of day)", "at cos(time of day)"]
    np.testing.assert_allclose(encoded.x[:, -2:], [parts_of(m)[3:5] for m in DAYS], atol=1e-12)
    np.testing.assert_allclose(encoded.x[:, :12], [parts_of(m) for m in DAYS], atol=1e-12)
    # The same rows as CSV.
    frame.drop(columns="y").to_csv(tmp_path / "a.csv", index=False)
    again = encoded.encoding.encode(read_table(tmp_path / "a.csv"))
    np.testing.assert_allclose(again.x, encoded.x, atol=1e-12)


def test_parts_that_do_not_differ_are_left_out():
    def names_of(moments, form="%Y-%m-%d"):
        frame = dated([m.strftime(form) for m in moments])
        inputs = encode_table(frame, ["y"], dates="parts").encoding.inputs
        return [i["name"].removeprefix("when ") for i in inputs if i["column"] == "when"]

    yearly = [datetime(1990 + i, 1, 1) for i in range(24)]
    assert names_of(yearly) == ["year"]
    monthly = [datetime(2020 + i // 12, i % 12 + 1, 1) for i in range(24)]
    assert names_of(monthly) == ["year", "sin(day of year)", "cos(day of year)"]
    assert names_of(monthly, "%b %Y") == ["year", "sin(day of year)", "cos(day of year)"]
    month_ends = [m - timedelta(days=1) for m in monthly]
    assert not any("weekday" in name for name in names_of(month_ends))
    two_days = [datetime(2024, 1, 1) + timedelta(days=7 * (i // 2) + i % 2) for i in range(24)]
    assert names_of(two_days)[-1] == "weekday=Tuesday"
    assert sum("weekday" in name for name in names_of(two_days)) == 1
    same = encode_table(dated(["2024-01-01"] * 24), ["y"], dates="parts")
    assert same.encoding.unused == ("when",)


def test_missing_dates_get_the_means_of_their_parts():
    texts = [None if i < 5 else m.isoformat() for i, m in enumerate(DAYS)]
    encoded = encode_table(dated(texts), ["y"], dates="parts", missing="mean")
    names = [i["name"] for i in encoded.encoding.inputs]
    assert names.index("when is missing") == 12
    means = np.mean([parts_of(m) for m in DAYS[5:]], axis=0)
    np.testing.assert_allclose(encoded.x[:5, :12], np.tile(means, (5, 1)), atol=1e-12)
    assert encoded.x[:, 12].tolist() == [1] * 5 + [0] * 19


def test_dates_that_cannot_be_read_are_named():
    texts = [m.strftime("%d.%m.%Y") for m in DAYS]
    with pytest.raises(TableError, match=r"'when' holds dates.*dates='parts' turns.*drop=\['when"):
        encode_table(dated(texts), ["y"])
    with pytest.raises(TableError, match=r"\(day.month.year\), but not in row 3: '30.02.2020'"):
        encode_table(dated([*texts[:2], "30.02.2020", *texts[3:]]), ["y"], dates="parts")
    first_days = [f"01/{i % 12 + 1:02d}/{2020 + i // 12}" for i in range(24)]
    with pytest.raises(TableError, match=r"as day/month/year or as month/day/year\. Write"):
        encode_table(dated(first_days), ["y"], dates="parts")
    with pytest.raises(TableError, match=r"'when' holds dates or times.*another target") as e:
        encode_table(dated(texts), ["when"], dates="parts")
    assert e.value.remedies == ()
    durations = dated(pd.to_timedelta(np.arange(24), unit="h"))
    with pytest.raises(TableError, match="durations or periods"):
        encode_table(durations, ["y"], dates="parts")
    working_days = [datetime(2024, 1, 1) + timedelta(days=7 * (i // 5) + i % 5) for i in range(24)]
    frame = dated([m.date().isoformat() for m in working_days])
    encoding = encode_table(frame, ["y"], dates="parts").encoding
    new = pd.DataFrame({"when": ["2024-03-01", "2024-03-02"], "size": 1.0})
    with pytest.raises(
        TableError, match="'when' holds dates on 'Saturday' in row 2, which the mod"
    ):
        encoding.encode(new)
    with pytest.raises(
        TableError, match=r"holds dates \(year-month-day\), but not in rows 1, 2: 'soon'"
    ):
        encoding.encode(new.assign(when="soon"))


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
    with pytest.raises(TableError, match="'size' holds numbers, but not in row 1: 'big'") as caught:
        encoding.encode(good.assign(size=["big", "2"]))
    assert "drop" not in str(caught.value)  # the model needs the column
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
        "lists": ([[1, 2]] * 12, "neither numbers nor text"),
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
        ({"dates": "guess"}, "dates=.guess. is not known. Supported: error, parts"),
    ]:
        with pytest.raises(TableError, match=message):
            encode_table(frame, ["y"], **options)
    with pytest.raises(TableError, match="more than once"):
        encode_table(frame, ["y", "y"])
    with pytest.raises(TableError, match=r"targets 'c' hold classes and the others numbers"):
        encode_table(frame, ["c", "y"])
    with pytest.raises(TableError, match="holds text, which regression cannot predict"):
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
    header, *lines = GOOD.splitlines()
    days = ["when", *(f"2024-0{i % 9 + 1}-{2 * i + 1:02d} 10:{i:02d}" for i in range(len(lines)))]
    whole = "".join(f"{day},{line}\n" for day, line in zip(days, [header, *lines], strict=True))
    encoding = encode_table(read_table(table_of(tmp_path, whole)), ["y"], dates="parts").encoding
    path = tmp_path / "damaged.csv"
    outcomes = Counter()
    for number in range(600):
        content = mutated(rng, whole.encode())
        path.write_bytes(content)
        how = ("error", "drop", "mean", "new rows")[number % 4]
        try:
            if how == "new rows":
                x = encoding.encode(read_table(path, text=encoding.text_columns), missing="mean").x
            else:
                encoded = encode_table(read_table(path), ["y"], missing=how, dates="parts")
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
