"""Pages of the documentation as programs: their blocks of code, in order, in one process.

A block marked `python` is run as it stands (one titled "with PyTorch" where that is installed), one
marked `sh` as commands of `secateur`, a line each.
A block marked `text` is what the block of code before it prints. There are no other fenced blocks.

Processors round differently, so numbers are compared with a tolerance: a thousandth, or the last
decimal that is shown. What a training ends with differs by more than rounding; a block of `text`
under the comment `<!-- about -->` has a quarter, or five of the last digit that is shown.
"""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from processes import output, start

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_TORCH = 'python title="with PyTorch"'
LANGUAGES = ("python", "sh", "text", WITH_TORCH)

FENCED = re.compile(r"^(<!-- about -->\n+)?^```(.*)\n((?:.*\n)*?)^```$", re.M)
NUMBER = re.compile(r"(?<![A-Za-z_])[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:e[-+]\d+)?")
SEPARATOR = "\x1e\n"
BEGIN = """
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


def run(path, folder, **environment):
    """Run a page's code in a folder; return what each block of code has printed, in order."""
    code = [block for block in blocks(path) if block.is_code]
    pieces = [f"print({SEPARATOR!r}, end='')\n{block.program}" for block in code]
    begin = BEGIN if any(block.language == "sh" for block in code) else ""
    printed = output(start(begin + "\n".join(pieces), folder=folder, **environment))
    return list(zip(code, printed.split(SEPARATOR)[1:], strict=True))


def agrees(printed, shown, *, is_about=False):
    """Whether a page shows what was printed: `…` stands for what is left out.

    Numbers are compared with a tolerance, and widths not at all.
    """
    printed, shown = plain(printed), plain(shown)
    pieces = NUMBER.split(shown)
    numbers = NUMBER.findall(shown)
    pattern = re.escape(pieces[0])
    for piece in pieces[1:]:
        pattern += f"({NUMBER.pattern})" + re.escape(piece)
    match = re.fullmatch(pattern.replace("…", ".*?"), printed)
    return match is not None and all(
        is_close(actual, number, is_about=is_about)
        for actual, number in zip(match.groups(), numbers, strict=True)
    )


def plain(text):
    """A text without what depends on the widths of its numbers."""
    text = " ".join(re.sub("([━─])+", r"\1", text).split())
    return text.replace("[ ", "[").replace(" ]", "]")


def is_close(actual, shown, *, is_about):
    actual_value, value = (float(n.replace(",", "").replace("−", "-")) for n in (actual, shown))
    mantissa, _, exponent = shown.partition("e")
    decimals = len(mantissa.partition(".")[2])
    last_digit = 10.0 ** (int(exponent or 0) - decimals)
    if is_about:
        tolerance = max(0.25 * abs(value), 5 * last_digit)
    else:
        tolerance = max(1e-3 * abs(value), 1.01 * last_digit if decimals else 0.0)
    return abs(actual_value - value) <= tolerance


def promises(path):
    """Pairs of a block of code and the block of text that says what it prints."""
    pairs = []
    for before, block in zip([None, *blocks(path)], blocks(path), strict=False):
        if block.language == "text":
            pairs.append((before, block))
    return pairs
