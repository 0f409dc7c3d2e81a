"""Names in backticks in docstrings and comments of the source exist.

A renamed function leaves no dead reference behind. Checked are file names, `owner.member` where the
owner is a module, package or class of ours, and single names in CamelCase or snake_case.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from corral.domain.settings.model import DEFINITIONS
from tests.support.source_tree import ROOT, SOURCE, SOURCE_FILES, list_nodes, parse

QUOTED = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(r"[\w./-]*\w\.(?:py|md|sql)")
SINGLE = re.compile(r"_?[A-Z]\w*[a-z]\w*|[a-z]+_\w*[a-z]")
# Placeholders, and attributes that are set from outside of their class.
EXAMPLES = {"foo_bar.py", "providers/NAME.py", "letters.body", "app.state.end"}


def test_references_in_docstrings_and_comments_exist() -> None:
    dead = [
        f"{path.relative_to(ROOT)}:{line}: `{name}`"
        for path in SOURCE_FILES
        for line, text in list_prose(path)
        for name in QUOTED.findall(text)
        if not exists(name.removesuffix("()"))
    ]
    assert dead == []


def exists(name: str) -> bool:
    """Return whether a name is known, or is not the kind of name that is checked."""
    if name in EXAMPLES or name in DEFINITIONS or name in list_words():
        return True
    if FILE.fullmatch(name):
        return any(path.endswith(f"/{name.removeprefix('./')}") for path in list_files())
    if DOTTED.fullmatch(name) and not name.endswith(".db"):
        members = list_members()
        return all(
            owner not in members or member in members[owner]
            for owner, member in pairwise(name.split("."))
        )
    return not SINGLE.fullmatch(name)


def list_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings, and the comments with backticks, with their line numbers."""
    yield from list_docstrings(path).items()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        _, sign, comment = line.partition("#")
        if sign and "`" in comment and not is_in_text(path, number):
            yield number, comment


def is_in_text(path: Path, line: int) -> bool:
    """Return whether a line is a part of a text that is no docstring, such as a SQL statement."""
    return line in list_text_lines(path)


@cache
def list_text_lines(path: Path) -> frozenset[int]:
    docstrings = list_docstrings(path)
    return frozenset(
        line
        for node in list_nodes(path)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.lineno not in docstrings
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )


@cache
def list_docstrings(path: Path) -> dict[int, str]:
    """Return the docstrings of a file by their first line."""
    return {
        node.lineno: node.value.value
        for node in list_nodes(path)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


@cache
def list_files() -> frozenset[str]:
    folders = (SOURCE, ROOT / "tests", ROOT / "docs", ROOT / "bench", ROOT / "tools")
    files = [path for folder in folders for path in folder.rglob("*.*")] + [*ROOT.glob("*.*")]
    return frozenset(f"/{path.relative_to(ROOT)}" for path in files)


@cache
def list_members() -> dict[str, set[str]]:
    """Return the names that follow the name of a module, package or class of ours and a dot.

    A package has the names of its modules, and a module the methods of its classes too:
    `runs.send` may be a function of `domain/runs/` or a method of the class in `api/runs.py`.
    """
    members: dict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE_FILES:
        owners = {path.stem, path.parent.name} - {"__init__"}
        tree = parse(path)
        names = {path.stem, *(part.stem for part in path.parent.iterdir())}
        names |= list_defined(tree.body)
        for node in list_nodes(path):
            if isinstance(node, ast.ClassDef):
                methods = list_defined(node.body) | list_assigned_attributes(node)
                members[node.name] |= methods
                bases[node.name] |= {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                names |= methods
        for owner in owners:
            members[owner] |= names
    members["store"] |= members["Corral"]
    for name in bases:
        for base in list_ancestors(name, bases):
            members[name] |= members.get(base, set())
    return dict(members)


def list_ancestors(name: str, bases: dict[str, set[str]]) -> set[str]:
    ancestors: set[str] = set()
    queue = [name]
    while queue:
        for base in bases.get(queue.pop(), set()) - ancestors:
            ancestors.add(base)
            queue.append(base)
    return ancestors


def list_defined(body: list[ast.stmt]) -> set[str]:
    """Return the functions, classes, variables and imports of a module or class."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.alias):
                names.add(node.asname or node.name.rpartition(".")[2])
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
    return names


def list_assigned_attributes(node: ast.ClassDef) -> set[str]:
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
    }


@cache
def list_words() -> frozenset[str]:
    """Return all words of the project's files that are not in a docstring or a comment."""
    words: set[str] = set()
    for path in SOURCE_FILES:
        words |= {path.stem, path.parent.name}
        docstrings = list_docstrings(path)
        for node in list_nodes(path):
            if isinstance(node, ast.Constant):
                if isinstance(node.value, str) and node.lineno not in docstrings:
                    words.update(re.findall(r"\w+", node.value))
                    words.update(DOTTED.findall(node.value))
            else:
                words.update(list_names(node))
    for suffix in ("sql", "html", "js", "json", "toml"):
        for path in SOURCE.rglob(f"*.{suffix}"):
            words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return frozenset(words)


def list_names(node: ast.AST) -> Iterator[str]:
    """Yield the identifiers of a node itself, without those of its children."""
    for field in ("id", "attr", "name", "asname", "arg", "module"):
        name = getattr(node, field, None)
        if isinstance(name, str):
            yield from name.split(".")
    for field in ("names", "kwd_attrs"):
        yield from (name for name in getattr(node, field, ()) if isinstance(name, str))
