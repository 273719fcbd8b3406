"""The front door: numbers of the README come from results, and its words are plain."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from pages import PAGES, RECORDED, ROOT, blocks, is_recorded, with_numbers

README = ROOT / "README.md"
SOURCES = sorted(
    path
    for folder, kinds in (("src", ("py", "html", "js")), ("docs", ("md",)))
    for kind in kinds
    for path in (ROOT / folder).rglob(f"*.{kind}")
    if "results" not in path.parts  # written by the programs that measured them
)
# Words of translations, of which there are none in what users read.
TRANSLATED = re.compile(
    r"(?<!there )\bis no\b(?! longer| further)|\bso many\b|\btold\b|\bin the place of\b"
    r"|\bbut for\b|\bwhat became of\b|\bright answers\b|\bleast free energy\b|\banew\b"
    r"|\bto the bit\b|\bfloating numbers\b|\bBayesian networks?\b|\bby now\b|\bnobody\b",
    re.I,
)


@pytest.fixture
def readme_table(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import readme_table

    yield readme_table
    sys.modules.pop("readme_table")


def test_the_tables_of_results_are_up_to_date(readme_table):
    for path, docs in readme_table.PAGES.items():
        page = path.read_text(encoding="utf-8")
        assert readme_table.with_table(page, docs) == page, "run benchmarks/readme_table.py"


def test_every_number_of_the_table_is_on_the_page_that_its_row_links_to():
    """Oracle: the pages, read as text and not by the script that makes the table."""
    rows = [line for line in README.read_text(encoding="utf-8").splitlines() if "](docs/" in line]
    rows = [line for line in rows if line.startswith("| [")]
    assert len(rows) >= 5
    for row in rows:
        label, *cells = row.strip("| ").split(" | ")
        page = re.search(r"\]\(([^)#]+)", label)[1]
        text = (ROOT / page).read_text(encoding="utf-8").replace(",", "")
        numbers = re.findall(r"\d+(?:\.\d+)?", " ".join(cells).replace(",", "").replace("1's", ""))
        for number in set(numbers) - {"1"}:  # of "the paper's Table 1"
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", text), (number, row)


def test_other_numbers_of_the_readme_are_facts():
    """Oracles: pyproject.toml, the example's table, and names that contain a number."""
    page = README.read_text(encoding="utf-8")
    assert page.count("```") == 2 * len(blocks(README))
    page = re.sub(r"^```.*?^```$|<!--.*?-->|^\|.*?$|\]\([^)]*\)", "", page, flags=re.M | re.S)
    page = RECORDED.sub("", page)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with open(ROOT / "examples" / "meat.csv", encoding="utf-8") as file:
        columns = len(file.readline().split(",")) - 1
    facts = {project["requires-python"].removeprefix(">="), str(columns), "95"}
    assert set(re.findall(r"(?<![A-Za-z\d])\d+(?:\.\d+)*", page)) <= facts


@pytest.mark.parametrize("path", [p for p in PAGES if is_recorded(p)], ids=lambda p: p.name)
def test_results_that_were_recorded_name_a_version_of_the_changelog(path):
    version, _ = RECORDED.search(path.read_text(encoding="utf-8")).groups()
    assert f"[{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("shown", "numbers", "result"),
    [
        ("81 → 15 weights", ["81", "7"], "81 → 7 weights"),
        ("free energy -94.0 nats", ["-101.27"], "free energy -101.3 nats"),
        ("│ free energy │ 1,969.1 │", ["842.13"], "│ free energy │   842.1 │"),
        ("[1.2 0. 0.]", ["1.1", "0.", "0.3"], "[1.1 0. 0.]"),
        ("−3.25 nats", ["-1.5"], "−1.50 nats"),
    ],
)
def test_results_are_updated_with_as_many_decimals(shown, numbers, result):
    assert with_numbers(shown, numbers) == result


def test_there_are_no_words_of_translations():
    found = [
        f"{Path(path).relative_to(ROOT)}: {line.strip()}"
        for path in (*SOURCES, README)
        for line in path.read_text(encoding="utf-8").splitlines()
        if TRANSLATED.search(line)
    ]
    assert not found, "\n".join(found)
