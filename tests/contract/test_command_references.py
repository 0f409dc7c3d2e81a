"""Commands in backticks in the texts of the program can be executed as they are printed."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from corral.cli.main import root
from tests.contract.test_code_references import ROOT, SOURCE, parse

COMMAND = re.compile(r"`corral( [^`]+)`")
# Stands for a value that the program inserts. Like RUN or NAME, it is accepted everywhere.
INSERTED = "VALUE"
PLACEHOLDER = re.compile(r"'[A-Z]+'")


def list_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Return the strings of a file with their line numbers; inserted values are placeholders."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Expr):
            skipped.add(node.value)  # a docstring
        elif isinstance(node, ast.JoinedStr):
            skipped |= {*node.values}
            parts = (
                part.value if isinstance(part, ast.Constant) else INSERTED for part in node.values
            )
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and node not in skipped:
            yield node.lineno, str(node.value)


def list_commands() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for line, text in list_texts(path):
            for command in COMMAND.findall(text):
                yield f"{path.relative_to(ROOT)}:{line}: corral{command}", command


def find_mistake(text: str) -> str | None:
    """Return why a command line is wrong, if it is. A command may omit its arguments."""
    context = click.Context(root, **root.context_settings)
    try:
        _, arguments, _ = root.make_parser(context).parse_args(shlex.split(text))
        target: click.Command = root
        while isinstance(target, click.Group) and arguments:
            name, child, arguments = target.resolve_command(context, arguments)
            assert child is not None
            context, target = click.Context(child, parent=context, info_name=name), child
        if not isinstance(target, click.Group):
            target.make_context(target.name, arguments, parent=context.parent)
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError, click.exceptions.Exit):
        return None
    except click.UsageError as error:
        message = error.format_message()
        return None if PLACEHOLDER.search(message) else message
    return None


def test_commands_in_texts_are_valid() -> None:
    commands = [*list_commands()]
    assert len(commands) > 200
    mistakes = [(place, find_mistake(text)) for place, text in commands]
    assert [mistake for mistake in mistakes if mistake[1]] == []


@pytest.mark.parametrize("text", ["mail list --state unknown", "mail lst", "ps --sate running"])
def test_wrong_commands_are_found(text: str) -> None:
    assert find_mistake(text)
