"""The files of the source tree and their syntax trees, parsed once per process."""

import ast
from functools import cache
from pathlib import Path

import corral

ROOT = Path(__file__).parents[2]
SOURCE = Path(corral.__file__).parent
SOURCE_FILES = tuple(sorted(SOURCE.rglob("*.py")))


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file. Callers must not change it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def list_nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(parse(path)))
