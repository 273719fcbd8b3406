"""Tables with target y that cannot be used, by what is wrong, and what must be said of each."""

import re


def content(kind):
    """The file's bytes."""
    return BAD[kind][0].encode("latin-1" if kind == "wrong encoding" else "utf-8")


def pattern(kind, *, option=False):
    """A pattern of the message; arguments are written as in Python, or as options of a command."""
    spelled = BAD[kind][1]
    if option:
        return spelled
    return re.sub(r"--(\w+) ([\w-]+)", r"\1=\\W*\2", spelled)


def rows(line, count=12):
    """Rows in which `{i}` is their number."""
    return "".join(line.format(i=i) + "\n" for i in range(count))


GOOD = "a,y\n" + rows("{i},{i}.5")

# Patterns have arguments as options of the command line.
BAD = {
    "missing values": (GOOD + ",3\n", r"'a' has no value in row 13\..*--missing drop.*--drop a"),
    "missing target": (GOOD + "1,\n", r"target 'y' has no value in row 13\..*--missing drop"),
    "dates": (
        "day,y\n" + rows("2024-01-{i:02d},{i}.5"),
        r"'day' holds dates.*--dates parts.*--drop day",
    ),
    "free text": ("note,y\n" + rows("word {i},{i}"), r"'note' holds 12 different.*--drop note"),
    "one value": (
        "a,y\n" + rows("{i},3"),
        r"'y' has the same value in all rows, 3: .*another target",
    ),
    "same names": ("a,a,y\n" + rows("1,2,{i}"), r"'a' occurs more than once.*different name"),
    "empty": ("", r"is empty\. Give a table"),
    "header only": ("a,y\n", r"a header but no rows"),
    "infinite": (GOOD + "inf,2\n", r"'a' is infinite in row 13.*--drop a"),
    "long row": (GOOD + "1,2,3\n", r"row 13 has 3 fields and the header 2"),
    "short row": ("a,b,y\n" + rows("1,{i},{i}") + "1,2\n", r"row 13 has 2 fields and the header 3"),
    "all long": ("a,y\n" + rows("{i},{i},5"), r"row 1 has 3 fields .* 2 \(so are 11 more\)"),
    "no name": ("a,,y\n" + rows("{i},{i},5"), r"column 2 has no name"),
    "no index": (",y\n" + rows("7,{i}.5"), r"'Unnamed: 0' has no name.*drop.*Unnamed: 0"),
    "no target": ("a,b\n" + rows("{i},{i}.5"), r"no target 'y' in the table.*'a', 'b'"),
    "few rows": ("a,y\n" + rows("{i},{i}.5", 9), r"9 rows are given, which are too few"),
    "stray text": (GOOD + "n0ne,2\n", r"not in row 13: 'n0ne'.*--drop a"),
    "huge": (GOOD + "1e200,2\n", r"beyond ±1e\+100 in row 13.*--drop a"),
    "wrong encoding": (
        "größe,y\n" + rows("{i},{i}.5"),
        r"not UTF-8.*--encoding latin-1",
    ),
    "open quote": (GOOD + '"1,2\n', r"quotation mark|fields"),
    "only target": ("y\n" + rows("{i}.5"), r"no column is left to predict from"),
}
