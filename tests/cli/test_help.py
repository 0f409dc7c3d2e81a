"""The help of the command line: complete, consistent, with examples that parse."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from corral.cli.click_classes import Command
from corral.cli.main import COMMANDS, root
from corral.cli.parameters import DURATION


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from walk(child, f"{path} {name}")


ALL = dict(walk(root, "corral"))


@pytest.mark.parametrize("path", ALL)
def test_every_command_and_option_has_help(path: str) -> None:
    command = ALL[path]
    assert command.help
    assert re.match(r"[A-Z].*[.:]", command.help.partition("\n")[0])
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts
            assert parameter.help.endswith("."), parameter.help


@pytest.mark.parametrize("path", [path for path, item in ALL.items() if isinstance(item, Command)])
def test_examples_parse(path: str) -> None:
    command = ALL[path]
    assert isinstance(command, Command)
    for example in command.examples:
        line = re.sub(r'^eval "\$\((.*)\)"$', r"\1", example)
        for part in re.split(r" (?:&& |> .*)", line):
            arguments = shlex.split(part)[1:]
            if not part.strip():
                continue
            target: click.Command = root
            while isinstance(target, click.Group):
                child = target.get_command(click.Context(target), arguments[0])
                assert child is not None, example
                target, arguments = child, arguments[1:]
            # With the settings of the root: click caches the help options of the first context.
            parent = click.Context(root, **root.context_settings)
            target.make_context(target.name, arguments, parent=parent)


def test_commands_have_the_help_of_their_module() -> None:
    context = click.Context(root)
    for name, (_, help) in COMMANDS.items():
        command = root.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            assert (command.help or "").partition("\n")[0] == help


@pytest.mark.parametrize("path", [path for path, item in ALL.items() if isinstance(item, Command)])
def test_help_has_one_style_of_defaults_and_durations(path: str) -> None:
    command = ALL[path]
    # The parent gives the names of the help option, which click caches in the command.
    parent = click.Context(root, **root.context_settings)
    text = command.get_help(click.Context(command, info_name=path, parent=parent))
    assert "[default" not in text
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert not parameter.multiple or "epeatable" in str(parameter.help), parameter.opts
            if isinstance(parameter.type, type(DURATION)):
                assert parameter.metavar is None, parameter.opts
