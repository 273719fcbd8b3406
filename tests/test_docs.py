"""The documentation is true: its code runs and prints what pages say, its links lead somewhere."""

import re
import subprocess
import sys

import pytest

from pages import (
    LANGUAGES,
    PAGES,
    ROOT,
    agrees,
    blocks,
    is_recorded,
    promises,
    run,
)

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
WITH_CODE = [name for name in NAMES if any(block.is_code for block in blocks(ROOT / name))]
README = "README.md"


@pytest.fixture
def printed(request, tmp_path, compilation_cache):
    """What a page's blocks of code print, with trainings cut short where results are recorded."""
    name = request.param
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **compilation_cache}
    folder = tmp_path / "page"
    folder.mkdir()
    return name, run(ROOT / name, folder, quickly=is_recorded(ROOT / name), **environment)


@pytest.mark.slow
@pytest.mark.parametrize("printed", WITH_CODE, indirect=True)
def test_the_code_of_every_page_runs_and_prints_what_the_page_says(printed):
    name, outputs = printed
    said = dict(promises(ROOT / name))
    for block, text in outputs:
        if block in said:
            place = f"{name}:{said[block].line}"
            shown = said[block]
            words_only = shown.is_about and is_recorded(ROOT / name)
            assert agrees(text, shown.text, is_about=shown.is_about, words_only=words_only), (
                f"{place} is not what was printed:\n{text}"
            )


@pytest.mark.parametrize("name", NAMES)
def test_no_code_is_left_out(name):
    """Every fence is closed and says what is in it, and code is nowhere but between fences."""
    page = (ROOT / name).read_text(encoding="utf-8")
    found = blocks(ROOT / name)
    assert len(re.findall(r"^ *```", page, re.M)) == 2 * len(found)
    assert {block.language for block in found} <= set(LANGUAGES)
    for before, block in promises(ROOT / name):
        assert before is not None, f"{name}:{block.line}"
        assert before.language != "text", f"{name}:{block.line} does not follow what prints it"
    outside = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    hidden = re.findall(r"^    +(?:secateur |import |from |.*\bsc\.).*", outside, re.M)
    assert not hidden, f"indented code of {name} is not run"


@pytest.mark.parametrize(
    ("printed", "shown", "is_about", "is_true"),
    [
        ("free energy -3.25 nats\n", "free energy -3.2 nats", False, True),
        ("free energy -3.25 nats\n", "free energy -3.1 nats", False, False),
        ("free energy -3.25 nats\n", "free energy -3.1 nats", True, True),
        ("free energy -3.25 nats\n", "free energy 3.25 nats", True, False),
        ("free energy -3.25 nats\n", "free energy −3.25 bits", True, False),
        ("8,571 rows, 17 weights", "8570 rows, 17 weights", False, True),
        ("8,571 rows, 17 weights", "8570 rows, 18 weights", False, False),
        ("8,571 rows, 17 weights", "8000 rows, 21 weights", True, True),
        ("['w1'] axis 1", "['w2'] axis 1", True, False),
        ("[[ 0.6871618 ]\n [-0.42505512]]", "[[0.687]\n [-0.425]]", False, True),
        ("a   1\nb  22\n", "a 1\n…\n", False, True),
        ("a\nb\n", "…c\n", False, False),
        ("a\nb\n", "a\n…\nb\n", False, True),
    ],
)
def test_what_is_shown_is_compared(printed, shown, is_about, is_true):
    assert agrees(printed, shown, is_about=is_about) == is_true


def test_links_lead_somewhere():
    for name in NAMES:
        page = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page):
            assert ((ROOT / name).parent / target).exists(), f"{name} links to {target}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"[\w/-]+\.md", navigation)
    assert sorted(listed) == sorted(n.removeprefix("docs/") for n in NAMES if n != README)


def test_the_reference_has_every_public_name():
    """Oracle: the names that `secateur` exports."""
    import secateur

    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^::: secateur\.(?:[a-z_]+\.)*(\w+)$", page, re.M))
    assert set(secateur.__all__) - {"importing", "networks"} <= told


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is in the extra `docs`")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    assert "free energy" in (tmp_path / "reference" / "index.html").read_text(encoding="utf-8")


def test_the_guide_to_the_command_line_lists_the_files_of_a_run():
    """Oracle: the names the code gives them."""
    from secateur.runs import folder

    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `([\w.]+)` \|", page, re.M)) == sorted(folder.FILES)
