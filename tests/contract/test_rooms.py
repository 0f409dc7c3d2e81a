"""The shape of the house, where no linter looks: rooms, their files, and who writes a state."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import corral
from corral.db import copy
from tests.support.cases import each_case

SOURCE = Path(corral.__file__).parent
TESTS = Path(__file__).parents[1]
FILES = sorted(SOURCE.rglob("*.py"))
ROOMS = sorted(path.parent.name for path in SOURCE.glob("rooms/*/__init__.py"))
LONGEST_FILE = 700
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "shared"}


def module_of(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imported(file: Path) -> tuple[str, ...]:
    """Every module, and every name out of a module, that a file imports, at any depth of it."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def texts(file: Path) -> tuple[str, ...]:
    """Every text constant of a file that is no docstring, the pieces of f-strings included."""
    return tuple(_texts(file))


def _texts(file: Path) -> Iterator[str]:
    tree = tree_of(file)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = node.values
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in parts)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            yield node.value


def test_there_is_something_to_look_at() -> None:
    assert len(FILES) > 40
    assert {"events", "mail", "nodes", "projects", "schedules", "settings"} <= {*ROOMS}


@each_case("room", ROOMS)
def test_the_statements_of_a_room_are_used_by_that_room_alone(room: str) -> None:
    own = SOURCE / "rooms" / room
    statements = re.compile(rf"corral\.rooms\.{room}\.(\w+_)?sql(\.|$)")
    for file in FILES:
        if own not in file.parents:
            assert not [name for name in imported(file) if statements.match(name)], file


@each_case("room", ROOMS)
def test_a_room_has_its_three_files_and_says_what_it_is(room: str) -> None:
    folder = SOURCE / "rooms" / room
    assert {"__init__.py", "model.py", "sql.py", "ops.py"} <= {f.name for f in folder.glob("*.py")}
    for name in ("__init__.py", "model.py", "ops.py"):
        assert ast.get_docstring(ast.parse((folder / name).read_text(encoding="utf-8"))), name


@each_case("room", ROOMS)
def test_every_operation_of_a_room_takes_the_open_transaction_first(room: str) -> None:
    tree = ast.parse((SOURCE / "rooms" / room / "ops.py").read_text(encoding="utf-8"))
    pure = re.compile(r"check_|parse_|real_")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            first = node.args.args[0].arg if node.args.args else ""
            assert first == "tx" or pure.match(node.name), node.name


# Rooms whose deaths are in the scenarios of a room that they go with.
DIE_WITH = {
    "agents": "sessions",  # its versions
    "boxes": "boxed",
    "events": "store",  # every scenario compares them with the states
    "memory": "notes",
    "plans": "projects",
    "search": "sessions",  # its index
}


@each_case("room", ROOMS)
def test_a_process_dies_at_every_commit_of_every_room(room: str) -> None:
    scenarios = TESTS / "crash" / f"test_{DIE_WITH.get(room, room)}.py"
    assert re.search(r"crash_at_every_commit\(|kill_at=", scenarios.read_text(encoding="utf-8"))


@each_case("room", ROOMS)
def test_no_room_asks_which_engine_it_is_on(room: str) -> None:
    for file in (SOURCE / "rooms" / room).glob("*.py"):
        tree = tree_of(file)
        asked = [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
        assert "engine" not in asked, file
        words = " ".join([*asked, *imported(file), *texts(file)]).lower()
        for word in ("postgres", "psycopg", "sqlite", "apsw"):
            assert word not in words, f"{file} speaks of {word}"


def test_no_state_is_written_but_by_the_one_function_that_moves() -> None:
    # `state = …` behind SET, up to the WHERE, RETURNING or end of the statement.
    written = re.compile(
        r"\bUPDATE\b.*?\bSET\b(?:(?!\bWHERE\b|\bRETURNING\b).)*?\bstate\s*=", re.I | re.S
    )
    inserted = re.compile(r"\bINSERT INTO\b[^(]*\([^)]*\bstate\b", re.I | re.S)
    guilty = []
    for file in FILES:
        if file in (SOURCE / "db" / "moves.py", SOURCE / "db" / "moves_many.py"):
            assert any(written.search(text) for text in texts(file)), "the search itself works"
            continue
        for text in texts(file):
            if text in copy._KEEP_PLACE.values():
                continue  # a row that only keeps the place of numbers given out before a restore
            if written.search(text) or inserted.search(text):
                guilty.append((module_of(file), text))
    assert guilty == []


def test_no_file_is_too_long_to_be_read() -> None:
    long = {
        module_of(file): count
        for file in FILES
        if (count := len(file.read_text(encoding="utf-8").splitlines())) > LONGEST_FILE
    }
    assert long == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [file for file in FILES if file.stem in VAGUE or file.parent.name in VAGUE] == []


def test_nothing_asks_the_system_for_the_time_but_the_clock() -> None:
    asking = re.compile(r"\btime\.time(?:_ns)?\(|\bdatetime\.now\(|\bdatetime\.utcnow\(")
    guilty = {module_of(file) for file in FILES if asking.search(file.read_text(encoding="utf-8"))}
    assert guilty == {"corral.kernel.clock"}


def test_no_list_is_paged_by_counting_rows() -> None:
    for file in FILES:
        assert not any(re.search(r"\bOFFSET\s+[:\d]", text) for text in texts(file)), file
