"""The house is as docs/architecture.md says: one direction of imports, one name for each thing.

Sources are parsed, not imported, except the command line, which is asked for its options.
"""

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src"
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = "secateur"
# The rooms that train: everything they read of a trained model exists on every trained model.
ENGINE = ("training", "trained", "fitting", "pruning", "updating")
OUTERMOST = ("datasets", "paper")
# Of extras: a module that imports one is imported when it is used.
OPTIONAL_PACKAGES = ("onnx", "torch", "onnxruntime", "unicorn", "elftools", "ziglang")
LONGEST_FILE = 450


class Import(NamedTuple):
    """An import of one module of secateur by another."""

    importer: str
    imported: str
    is_at_module_level: bool
    line: int

    def __str__(self):
        return f"{self.importer}:{self.line} imports {self.imported}"


class Module(NamedTuple):
    name: str
    path: Path
    tree: ast.Module

    @property
    def is_package(self):
        return self.path.name == "__init__.py"

    @property
    def base_name(self):
        return self.name.rpartition(".")[2]

    @property
    def room(self):
        return find_room(self.name)

    @property
    def defined_names(self):
        """Functions and classes of the module; of a package, also the names it passes on."""
        names = [
            node.name
            for node in self.tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        ]
        if self.is_package:
            imports = [node for node in self.tree.body if isinstance(node, ast.ImportFrom)]
            names += [alias.name for node in imports for alias in node.names]
        return names


def find_room(name):
    """The first part of a module's name below the package's; nothing for the package itself."""
    return name.split(".")[1] if "." in name else ""


@cache
def read_modules():
    modules = {}
    for path in sorted((SOURCES / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        name = name.removesuffix(".__init__")
        modules[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8")))
    return modules


@cache
def read_order():
    """The rooms in their order: the first column of the table in docs/architecture.md."""
    return re.findall(r"^\| `(\w+)(?:\.py|/)` \|", PAGE.read_text(encoding="utf-8"), re.M)


@cache
def read_public_names():
    """Where each public name comes from, by the stub that says it."""
    stub = ast.parse((SOURCES / PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    origins = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = f"{PACKAGE}.{node.module or alias.name}"
                origins[alias.name] = module
    return origins


def find_origin(module, node):
    """The module that an import from a module names, relative or not."""
    if not node.level:
        return node.module
    parts = module.name.split(".")
    parts = parts[: len(parts) + module.is_package - node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])


def find_imports(module):
    """All imports of a module, and uses of public names as attributes of the package."""
    aliases = {
        alias.asname or alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == PACKAGE
    }
    imports = []

    def add(target, node, is_at_module_level):
        if target in read_modules() and target not in (PACKAGE, module.name):
            imports.append(Import(module.name, target, is_at_module_level, node.lineno))

    def visit(node, is_at_module_level):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return  # never made
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            is_at_module_level = False
        elif isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name, node, is_at_module_level)
        elif isinstance(node, ast.ImportFrom):
            origin = find_origin(module, node)
            for alias in node.names:
                target = f"{origin}.{alias.name}"
                if target not in read_modules():
                    target = read_public_names().get(alias.name) if origin == PACKAGE else origin
                add(target, node, is_at_module_level)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in aliases:
            add(read_public_names().get(node.attr), node, is_at_module_level)
        for child in ast.iter_child_nodes(node):
            visit(child, is_at_module_level)

    visit(module.tree, True)
    return imports


@cache
def all_imports():
    return [found for module in read_modules().values() for found in find_imports(module)]


def test_the_page_lists_every_room_once():
    rooms = {m.room for m in read_modules().values()} - {"", "__main__"}
    assert Counter(read_order()) == Counter(rooms)


def test_imports_go_one_way():
    """A room imports only from rooms above it in the table of docs/architecture.md."""
    places = {room: place for place, room in enumerate(read_order())}
    places["__main__"] = len(places)
    against = [
        str(found)
        for found in all_imports()
        if places[find_room(found.importer)] < places[find_room(found.imported)]
    ]
    assert not against, "\n".join(against)


@pytest.mark.parametrize("level", ["module", "any"])
def test_imports_have_no_cycle(level):
    """Neither those made when a module is imported nor those, too, that functions make later."""
    graph = defaultdict(set)
    for found in all_imports():
        if found.is_at_module_level or level == "any":
            graph[found.importer].add(found.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def needs_optional_package(module):
    return any(
        isinstance(node, ast.Import | ast.ImportFrom)
        and ast.unparse(node).split()[1].split(".")[0] in OPTIONAL_PACKAGES
        for node in read_modules()[module].tree.body
    )


def test_functions_import_only_for_the_command_line_or_an_optional_package():
    """Elsewhere an import stands at the top of its file."""
    late = [
        str(found)
        for found in all_imports()
        if not found.is_at_module_level
        and find_room(found.importer) != "cli"
        # An attribute of the package is looked up when it is used; nothing is imported late.
        and _is_import(found)
        and not needs_optional_package(found.imported)
    ]
    assert not late, "\n".join(late)


def _is_import(found):
    module = read_modules()[found.importer]
    return any(
        isinstance(node, ast.Import | ast.ImportFrom) and node.lineno == found.line
        for node in ast.walk(module.tree)
    )


def test_nothing_imports_the_outermost_rooms_but_the_command_line():
    wrong = [
        str(found)
        for found in all_imports()
        if find_room(found.imported) in OUTERMOST
        and find_room(found.importer) not in (*OUTERMOST, "cli", "__main__")
    ]
    assert not wrong, "\n".join(wrong)


def test_imported_modules_exist():
    """A module that was renamed leaves nobody behind, not even inside functions."""
    missing = []
    for module in read_modules().values():
        for node in ast.walk(module.tree):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [find_origin(module, node)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            missing += [
                f"{module.name}:{node.lineno} imports {name}"
                for name in names
                if name.split(".")[0] == PACKAGE and name not in read_modules()
            ]
    assert not missing, "\n".join(missing)


def test_module_names_are_unique():
    names = defaultdict(list)
    for module in read_modules().values():
        names[module.base_name].append(module.name)
    shared = [" and ".join(group) for group in names.values() if len(group) > 1]
    assert not shared, "\n".join(shared)


def test_class_names_are_unique():
    names = defaultdict(list)
    for module in read_modules().values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                names[node.name.lstrip("_")].append(f"{module.name}.{node.name}")
    shared = [" and ".join(group) for group in names.values() if len(group) > 1]
    assert not shared, "\n".join(shared)


def test_no_module_is_named_like_what_is_in_it():
    """Case counts: `layout.Layout` is the usual way to name a module after its one class."""
    wrong = [
        f"{module.name}.{name}"
        for module in read_modules().values()
        for name in module.defined_names
        if name == module.base_name
    ]
    assert not wrong, "\n".join(wrong)


def test_files_are_not_long():
    lengths = {m.name: len(m.path.read_bytes().splitlines()) for m in read_modules().values()}
    long = {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE}
    assert not long


def test_there_are_no_hidden_arguments():
    """A choice is an argument, never a ContextVar."""
    users = [
        module.name
        for module in read_modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and "contextvars" in ast.unparse(node)
    ]
    assert not users, "\n".join(users)


def test_the_engine_does_not_ask_whether_a_name_exists():
    calls = [
        f"{module.name}:{node.lineno} {ast.unparse(node)}"
        for module in read_modules().values()
        if module.room in ENGINE
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "getattr"
        and len(node.args) == 3
        and isinstance(node.args[1], ast.Constant)
    ]
    assert not calls, "\n".join(calls)


def find_flags():
    """The options of all commands, by asking the command line itself."""
    import typer.main

    from secateur.cli.application import app

    commands = [typer.main.get_command(app)]
    flags = set()
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        for parameter in command.params:
            flags |= {flag for flag in parameter.opts if flag.startswith("--")}
    return flags - {"--help"}


def find_messages(module):
    """All strings of a module but docstrings, with their lines."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(module.tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and " " in node.value  # a sentence, not an argument of another program
        ):
            yield node.lineno, node.value


def test_the_library_does_not_speak_in_options_of_the_command_line():
    flags = find_flags()
    assert "--target" in flags
    wrong = [
        f"{module.path.relative_to(ROOT)}:{line}: {flag}"
        for module in read_modules().values()
        if module.room not in ("cli", "__main__")
        for line, message in find_messages(module)
        for flag in re.findall(r"--[a-z][a-z-]*", message)
        if flag in flags
    ]
    assert not wrong, "\n".join(wrong)
