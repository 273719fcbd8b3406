"""Pages of the documentation as programs: their blocks of code, in order, in one process.

A block marked `python` is run as it stands, one marked `sh` as commands of `secateur`, a line each.
A block marked `text` is what the block of code before it prints. There are no other fenced blocks.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from processes import output, start

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = ("python", "sh", "text")

FENCED = re.compile(r"^```(.*)\n((?:.*\n)*?)^```$", re.M)
NUMBER = re.compile(r"[-−]?(\d{1,3}(,\d{3})+|\d+)(\.\d*)?(e[-+]\d+)?")
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

    @property
    def is_code(self):
        return self.language in ("python", "sh")

    @property
    def program(self):
        if self.language == "python":
            return self.text
        return "".join(f"command({line!r})\n" for line in self.text.splitlines())


def blocks(path):
    page = path.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], page[: match.start()].count("\n") + 1)
        for match in FENCED.finditer(page)
    ]


def run(path, folder, **environment):
    """Run a page's code in a folder; return what each block of code has printed, in order."""
    code = [block for block in blocks(path) if block.is_code]
    pieces = [f"print({SEPARATOR!r}, end='')\n{block.program}" for block in code]
    printed = output(start(BEGIN + "\n".join(pieces), folder=folder, **environment))
    return list(zip(code, printed.split(SEPARATOR)[1:], strict=True))


def agrees(printed, shown):
    """Whether a page shows what was printed: up to numbers and widths, `…` for what is left out."""

    def plain(text):
        return " ".join(re.sub("([━─])+", r"\1", NUMBER.sub("#", text)).split())

    pattern = ".*".join(map(re.escape, plain(shown).split("…")))
    return re.fullmatch(pattern, plain(printed)) is not None


def promises(path):
    """Pairs of a block of code and the block of text that says what it prints."""
    pairs = []
    for before, block in zip([None, *blocks(path)], blocks(path), strict=False):
        if block.language == "text":
            pairs.append((before, block))
    return pairs
