"""Golden files with the wording of help texts and error messages.

Other tests assert codes, details and states. A change of wording shows up here, as a diff for
review. `make golden` rewrites the files.
"""

import ast
import difflib
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCE = FOLDER.parent.parent / "src" / "corral"
WIDTH = 100

ERRORS = {
    "CorralError": 0,
    "Problem": 2,
    "BadParameter": 0,
    "ClickException": 0,
    "UsageError": 0,
}
"""Base classes of errors, with the position of the message among the arguments."""
CLASS = re.compile(r"^\s*class (\w+)\(([^()]*)\):", re.MULTILINE)


def help_texts() -> str:
    """Return the output of `--help` of every command, in the order of the command tree."""
    import click

    from corral.cli.main import root

    def walk(command: click.Command, path: str, parent: click.Context | None) -> Iterator[str]:
        context = command.make_context(
            path.rsplit(" ", 1)[-1],
            [],
            parent=parent,
            resilient_parsing=True,
            terminal_width=WIDTH,
            max_content_width=WIDTH,
            color=False,
        )
        yield f"$ {path} --help\n{command.get_help(context)}\n"
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                verb = command.get_command(context, name)
                assert verb is not None
                yield from walk(verb, f"{path} {name}", context)

    return "\n".join(walk(root, "corral", None))


def error_messages() -> str:
    """Return the template of every error message in the source.

    Sorted by class and text, so moving code between files does not change the result.
    """
    sources = [path.read_text() for path in sorted(SOURCE.rglob("*.py"))]
    positions = _error_classes(sources)
    call = re.compile(rf"\b(?:{'|'.join(positions)})\(")
    templates: dict[str, set[str]] = {}
    for source in filter(call.search, sources):  # parsing the other files takes seconds
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and (name := _name(node.func)) in positions:
                message = _message(node, positions[name])
                if message is not None:
                    templates.setdefault(name, set()).update(_templates(message))
    sections = []
    for name in sorted(templates):
        lines = [_wrapped(text) for text in sorted(templates[name])]
        sections.append(f"{name}\n" + "".join(lines))
    return "\n".join(sections)


KINDS: dict[str, Callable[[], str]] = {"help": help_texts, "errors": error_messages}


def check(kind: str) -> None:
    """Fail with a diff when the wording differs from the golden file of this kind."""
    path = FOLDER / f"{kind}.txt"
    expected, actual = path.read_text(), KINDS[kind]()
    if actual != expected:
        lines = difflib.unified_diff(
            expected.splitlines(), actual.splitlines(), "golden", "source", lineterm="", n=1
        )
        raise AssertionError(
            f"The wording differs from tests/golden/{kind}.txt: run `make golden` and review the "
            "diff.\n" + "\n".join(lines)
        )


def write() -> None:
    """Rewrite all golden files."""
    os.environ.pop("COLUMNS", None)
    for kind, render in KINDS.items():
        (FOLDER / f"{kind}.txt").write_text(render())


def _error_classes(sources: list[str]) -> dict[str, int]:
    """Return the names of all error classes, subclasses included, with their message position."""
    positions = dict(ERRORS)
    classes = [match.groups() for source in sources for match in CLASS.finditer(source)]
    count = 0
    while count != len(positions):
        count = len(positions)
        for name, bases in classes:
            for base in re.findall(r"\w+(?=\s*(?:,|$))", bases):
                if base in positions:
                    positions.setdefault(name, positions[base])
    return positions


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name, or an empty string."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _message(call: ast.Call, position: int) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == "message":
            return keyword.value
    return call.args[position] if len(call.args) > position else None


def _templates(message: ast.expr) -> list[str]:
    """Return the texts that an expression can have; variable parts are {placeholders}.

    An expression without any text of its own gives nothing.
    """
    if isinstance(message, ast.IfExp):
        return _templates(message.body) + _templates(message.orelse)
    if isinstance(message, ast.BinOp) and isinstance(message.op, ast.Add):
        left, right = _templates(message.left), _templates(message.right)
        if left or right:
            return [
                first + second
                for first in left or [_placeholder(message.left)]
                for second in right or [_placeholder(message.right)]
            ]
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return [message.value]
    if isinstance(message, ast.JoinedStr):
        return ["".join(_part(part) for part in message.values)]
    return []


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    return _placeholder(part.value)


def _placeholder(value: ast.expr) -> str:
    """Return a placeholder that a renamed variable rarely changes.

    `row.id` is {id}. A choice between texts shows the texts: {need|needs}. Others are {…}.
    """
    texts = [
        node.value
        for node in ast.walk(value)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and any(letter.isalpha() for letter in node.value)
    ]
    return "{" + (_name(value) or "|".join(texts) or "…") + "}"


def _wrapped(text: str) -> str:
    """Return a template as an item of a list, wrapped so that a diff is easy to read."""
    lines = textwrap.wrap(
        text.replace("\n", "\\n"),
        WIDTH,
        initial_indent="- ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines) + "\n"
