"""Rules for the structure of the source tree that no linter checks."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from corral.db import backup
from tests.support.grouped_cases import each_case
from tests.support.source_tree import SOURCE, SOURCE_FILES, list_nodes, parse

TESTS = Path(__file__).parents[1]
CONCEPTS = sorted(path.parent.name for path in SOURCE.glob("domain/*/__init__.py"))
LONGEST_FILE = 700
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "shared"}


def module_of(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def list_imports(file: Path) -> tuple[str, ...]:
    """Return every module, and every name of a module, that a file imports at any nesting level."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[str]:
    for node in list_nodes(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def list_texts(file: Path) -> tuple[str, ...]:
    """Return the text constants of a file without docstrings; an f-string is one text."""
    return tuple(_texts(file))


def _texts(file: Path) -> Iterator[str]:
    nodes = list_nodes(file)
    docstrings = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = node.values
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in parts)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            yield node.value


# Packages that read or connect several concepts and therefore have no table of their own.
WITHOUT_TABLES = {"insights"}
# Concepts whose operations are split over several modules.
SPLIT_OPS = {
    "mail": {"ops.py", "put.py", "claims.py", "outcomes.py"},
    "tasks": {"declare.py", "delegation.py", "lifecycle.py", "management.py", "review.py"},
}
WITHOUT_OPS = {"chat", "insights"}


def operation_modules(concept: str) -> set[str]:
    if concept in WITHOUT_OPS:
        return set()
    return SPLIT_OPS.get(concept, {"ops.py"})


def test_source_tree_has_the_expected_concepts() -> None:
    assert len(SOURCE_FILES) > 40
    assert {"chat", "events", "mail", "nodes", "projects", "runs", "settings"} <= {*CONCEPTS}


@each_case("concept", CONCEPTS)
def test_statements_are_imported_only_inside_their_concept(concept: str) -> None:
    concept_folder = SOURCE / "domain" / concept
    # Importers insert foreign rows with the statements of the tables that they fill.
    importers = SOURCE / "importers" / "target"
    statements = re.compile(rf"corral\.domain\.{concept}\.(\w+\.)*(\w+_)?sql(\.|$)")
    for file in SOURCE_FILES:
        if concept_folder not in file.parents and importers not in file.parents:
            assert not [name for name in list_imports(file) if statements.match(name)], file


@each_case("concept", CONCEPTS)
def test_concept_has_model_sql_and_docstrings(concept: str) -> None:
    folder = SOURCE / "domain" / concept
    expected = {"__init__.py", "model.py", "sql.py"} | operation_modules(concept)
    assert expected <= {file.name for file in folder.glob("*.py")}
    for name in expected - {"sql.py"}:
        assert ast.get_docstring(ast.parse((folder / name).read_text(encoding="utf-8"))), name


@each_case("concept", CONCEPTS)
def test_operations_take_the_open_transaction_first(concept: str) -> None:
    pure = re.compile(r"check_|parse_|require_|resolve_")
    names = {"ops.py"} | operation_modules(concept)
    for file in (SOURCE / "domain" / concept).rglob("*.py"):
        if file.name not in names:
            continue
        for node in parse(file).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                first = node.args.args[0].arg if node.args.args else ""
                assert first == "tx" or pure.match(node.name), node.name


# Concepts whose crash scenarios are in the file of another concept.
CRASH_TESTS = {
    "agents": "sessions",  # its versions
    "events": "store",  # every scenario compares them with the states
    "plans": "projects",
    "search": "sessions",  # its index
}


@each_case("concept", CONCEPTS)
def test_every_concept_is_crashed_at_every_commit(concept: str) -> None:
    if concept in WITHOUT_TABLES:
        return  # it only reads
    scenarios = TESTS / "crash" / f"test_{CRASH_TESTS.get(concept, concept)}.py"
    assert re.search(r"crash_at_every_commit\(|kill_at=", scenarios.read_text(encoding="utf-8"))


@each_case("concept", CONCEPTS)
def test_no_concept_depends_on_the_engine(concept: str) -> None:
    for file in (SOURCE / "domain" / concept).rglob("*.py"):
        attributes = [n.attr for n in list_nodes(file) if isinstance(n, ast.Attribute)]
        assert "engine" not in attributes, file
        # A comment in a statement may explain what one of the engines does.
        statements = [re.sub(r"--.*", "", text) for text in list_texts(file)]
        content = " ".join([*attributes, *list_imports(file), *statements]).lower()
        for word in ("postgres", "psycopg", "sqlite", "apsw"):
            assert word not in content, f"{file} names {word}"


def test_only_transitions_write_a_state_column() -> None:
    # `state = …` right behind SET or a comma, up to the WHERE, RETURNING or end of the statement.
    # A comparison such as `CASE WHEN state = …` is not an assignment.
    state_update = re.compile(
        r"\bUPDATE\b.*?\bSET\b(?:(?:(?!\bWHERE\b|\bRETURNING\b).)*?,)?\s*state\s*=", re.I | re.S
    )
    assert state_update.search("UPDATE tasks SET state = 'done'")
    assert state_update.search("UPDATE tasks SET reason = 'x',\n    state='done' WHERE id = 1")
    assert not state_update.search("UPDATE tasks SET a = CASE WHEN state = 'x' THEN 1 END, b = 2")
    state_insert = re.compile(r"\bINSERT INTO\b[^(]*\([^)]*\bstate\b", re.I | re.S)
    violations = []
    for file in SOURCE_FILES:
        if file == SOURCE / "db" / "bulk_transitions.py":
            continue
        if file == SOURCE / "db" / "stateful_table.py":
            assert any(state_update.search(text) for text in list_texts(file)), (
                "the pattern matches"
            )
            continue
        for text in list_texts(file):
            if text in backup._PLACEHOLDERS.values():
                continue  # a placeholder row that reserves numbers used before a restore
            statement = re.sub(r"--.*", "", text)  # comments may follow a comma
            if state_update.search(statement) or state_insert.search(statement):
                violations.append((module_of(file), text))
    assert violations == []


def test_no_file_is_longer_than_the_limit() -> None:
    long = {
        module_of(file): count
        for file in SOURCE_FILES
        if (count := len(file.read_text(encoding="utf-8").splitlines())) > LONGEST_FILE
    }
    assert long == {}


def test_no_module_has_a_vague_name() -> None:
    assert [file for file in SOURCE_FILES if file.stem in VAGUE or file.parent.name in VAGUE] == []


def test_only_the_clock_reads_the_system_time() -> None:
    time_call = re.compile(r"\btime\.time(?:_ns)?\(|\bdatetime\.now\(|\bdatetime\.utcnow\(")
    modules = {
        module_of(file)
        for file in SOURCE_FILES
        if time_call.search(file.read_text(encoding="utf-8"))
    }
    assert modules == {"corral.kernel.clock"}


def test_no_list_is_paginated_by_offset() -> None:
    for file in SOURCE_FILES:
        assert not any(re.search(r"\bOFFSET\s+[:\d]", text) for text in list_texts(file)), file
