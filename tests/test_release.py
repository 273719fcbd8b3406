"""What a release says of itself is the same everywhere."""

import re

import pytest

import secateur
from pages import ROOT


def test_the_citation_has_the_version_of_the_package():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", text, re.M)[1] == secateur.__version__


def test_the_changelog_describes_this_version():
    """A released version has a heading with a date, and says who is affected."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(
        rf"^## \[{re.escape(secateur.__version__)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)",
        text,
        re.M | re.S,
    )
    assert section is not None
    assert "### Who is affected" in section[1]


@pytest.mark.parametrize("marker", ["py.typed", "__init__.pyi"])
def test_type_information_is_part_of_the_package(marker):
    assert (ROOT / "src" / "secateur" / marker).exists()
