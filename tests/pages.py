"""Pages of the documentation as programs: their blocks of code, in order, in one process.

A block marked `python` is run as it stands (one titled "with PyTorch" where that is installed), one
marked `sh` as commands of `secateur`, a line each.
A block marked `text` is what the block of code before it prints. There are no other fenced blocks.

Processors round differently, so numbers are compared with a tolerance: a thousandth, or the last
decimal that is shown. What a training ends with differs by more than rounding; a block of `text`
under the comment `<!-- about -->` has a quarter, or five of the last digit that is shown.

Pages show trainings with default settings, which take too long for the tests. Such a page says
which version printed its results, and when ("printed by secateur 0.2.0 on 2026-11-19"). Its code is
run with fewer steps of training, and of results under `<!-- about -->` only the words are compared.

    python tests/pages.py README.md docs/answers.md …     run pages as they stand, and update the
                                                          numbers of their results and the date
"""

import importlib.util
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from processes import output, start

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = ROOT / "examples"
WITH_TORCH = 'python title="with PyTorch"'
LANGUAGES = ("python", "sh", "text", WITH_TORCH)

FENCED = re.compile(r"^(<!-- about -->\n+)?^```(.*)\n((?:.*\n)*?)^```$", re.M)
NUMBER = re.compile(r"(?<![A-Za-z_])[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:e[-+]\d+)?")
RECORDED = re.compile(r"printed by\s+secateur\s+(\d+\.\d+\.\d+)\s+on\s+(\d{4}-\d\d-\d\d)")
SEPARATOR = "\x1e\n"
COMMANDS = """
import shlex, sys
from secateur.cli import main
def command(line):
    sys.argv = shlex.split(line)
    try:
        main()
    except SystemExit as end:
        assert not end.code, line
    except BaseException as error:
        raise AssertionError(line) from error
"""
QUICKLY = """
from dataclasses import replace
from secateur.training.recipe import RECIPES
RECIPES["default"] = replace(RECIPES["default"], steps=1200, retrain_steps=300)
"""


@dataclass(frozen=True)
class Block:
    """What a page has between two fences; `line` is that of its first."""

    language: str
    text: str
    line: int
    is_about: bool

    @property
    def is_code(self):
        if self.language == WITH_TORCH:
            return importlib.util.find_spec("torch") is not None
        return self.language in ("python", "sh")

    @property
    def program(self):
        if self.language != "sh":
            return self.text
        return "".join(f"command({line!r})\n" for line in self.text.splitlines())


def blocks(path):
    page = path.read_text(encoding="utf-8")
    return [
        Block(match[2], match[3], page[: match.start(2)].count("\n") + 1, bool(match[1]))
        for match in FENCED.finditer(page)
    ]


def is_recorded(path):
    """Whether a page shows what was printed on another day, by longer trainings."""
    return RECORDED.search(path.read_text(encoding="utf-8")) is not None


def run(path, folder, *, quickly=False, timeout=300, **environment):
    """Run a page's code in a folder; return what each block of code has printed, in order.

    The folder has a link to the examples, as a clone of the repository has.
    """
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(EXAMPLES, target_is_directory=True)
    code = [block for block in blocks(path) if block.is_code]
    pieces = [f"print({SEPARATOR!r}, end='')\n{block.program}" for block in code]
    begin = QUICKLY if quickly else ""
    begin += COMMANDS if any(block.language == "sh" for block in code) else ""
    process = start(begin + "\n".join(pieces), folder=folder, **environment)
    return list(zip(code, output(process, timeout).split(SEPARATOR)[1:], strict=True))


def agrees(printed, shown, *, is_about=False, words_only=False):
    """Whether a page shows what was printed: `…` stands for what is left out.

    Numbers are compared with a tolerance or not at all, and widths never.
    """
    match = match_numbers(printed, shown)
    return match is not None and (
        words_only
        or all(
            is_close(actual, number, is_about=is_about)
            for actual, number in zip(match, NUMBER.findall(shown), strict=True)
        )
    )


def match_numbers(printed, shown):
    """Return what was printed in the place of each number that is shown; None if words differ."""
    printed, shown = plain(printed), plain(shown)
    pieces = NUMBER.split(shown)
    pattern = re.escape(pieces[0])
    for piece in pieces[1:]:
        pattern += f"({NUMBER.pattern})" + re.escape(piece)
    pattern = pattern.replace(r"\ …\ ", r"\ (?:.*?\ )?").replace("…", ".*?")
    match = re.fullmatch(pattern, printed)
    return None if match is None else match.groups()


def plain(text):
    """A text without what depends on the widths of its numbers."""
    text = " ".join(re.sub("([━─])+", r"\1", text).split())
    return text.replace("[ ", "[").replace(" ]", "]")


def is_close(actual, shown, *, is_about):
    actual_value, value = (as_number(n) for n in (actual, shown))
    mantissa, _, exponent = shown.partition("e")
    last_digit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    if is_about:
        tolerance = max(0.25 * abs(value), 5 * last_digit)
    else:
        tolerance = max(1e-3 * abs(value), 1.01 * last_digit if "." in mantissa else 0.0)
    return abs(actual_value - value) <= tolerance


def as_number(text):
    return float(text.replace(",", "").replace("−", "-"))


def promises(path):
    """Pairs of a block of code and the block of text that says what it prints."""
    pairs = []
    for before, block in zip([None, *blocks(path)], blocks(path), strict=False):
        if block.language == "text":
            pairs.append((before, block))
    return pairs


# --- updating the pages ---------------------------------------------------------------------------


def update_page(path):
    """Run a page as it stands and write what it prints into its results, and the date."""
    with tempfile.TemporaryDirectory() as folder:
        printed = dict(run(path, Path(folder), timeout=None))
    page = path.read_text(encoding="utf-8")
    for block, result in promises(path):
        if not result.is_about or block not in printed:
            continue
        numbers = match_numbers(printed[block], result.text)
        if numbers is None:
            sys.stdout.write(f"{path.name}:{result.line} has to be changed:\n{printed[block]}\n")
            continue
        page = page.replace(result.text, with_numbers(result.text, numbers), 1)
    if RECORDED.search(page):
        from secateur import __version__

        today = f"printed by secateur {__version__} on {date.today():%Y-%m-%d}"
        page = RECORDED.sub(today, page)
    path.write_text(page, encoding="utf-8")


def with_numbers(shown, numbers):
    """Return a text with other numbers, with as many decimals; columns keep their width."""
    remaining = iter(numbers)

    def write(match):
        new = next(remaining)
        if "e" not in match[0] + new:
            decimals = len(match[0].partition(".")[2])
            new = f"{as_number(new):{',' if ',' in new else ''}.{decimals}f}"
            new += "." * match[0].endswith(".")
        return new.replace("-", "−") if "−" in match[0] else new

    lines = []
    for line in shown.split("\n"):
        new = NUMBER.sub(write, line)
        if "│" in line:  # right-aligned cells of a table
            cells = zip(line.split("│"), new.split("│"), strict=True)
            new = "│".join(aligned(old, cell) for old, cell in cells)
        lines.append(new)
    return "\n".join(lines)


def aligned(old, cell):
    if len(cell) == len(old) or not old.strip():
        return cell
    is_right = old.startswith("  ") or NUMBER.match(old.strip()) is not None
    return f" {cell.strip():>{len(old) - 2}} " if is_right else f"{cell.rstrip():{len(old)}}"


if __name__ == "__main__":
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp())
    for name in sys.argv[1:]:
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        update_page(ROOT / name)
