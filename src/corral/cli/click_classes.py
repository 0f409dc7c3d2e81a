"""Classes of commands and options, and the options that many commands share."""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from corral.cli.context import App

CLICK_DEFAULT = re.compile(r"\.  \[default: ([^]]*)\]$")
"""The end of a help text to which Click has added the default of the option."""


class Command(click.Command):
    """A command with `--store` and `--json`, and examples in its help."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.params.extend(common_options())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, with Click's defaults in the style of the help texts."""
        options = (param for param in self.get_params(ctx) if isinstance(param, click.Option))
        records = filter(None, (option.get_help_record(ctx) for option in options))
        rows = [(names, CLICK_DEFAULT.sub(r" (default: \1).", text)) for names, text in records]
        with formatter.section("Options"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, each on a line of its own and never wrapped."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        super().format_epilog(ctx, formatter)


class CommandGroup(click.Group):
    """The commands of one noun, such as `corral mail`."""

    command_class = Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their complete one-line help, wrapped instead of truncated."""
        rows = [
            (name, self.commands[name].get_short_help_str(limit=500))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def common_options() -> list[click.Parameter]:
    """Return `--store` and `--json`, which are accepted before and after the command."""
    return [
        click.Option(
            ["--store"],
            metavar="URL",
            expose_value=False,
            callback=_set_store,
            help="URL of the store or of a daemon (default: $CORRAL_STORE, else corral.db in "
            "$CORRAL_HOME).",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            callback=_set_json,
            help="Print the result as one JSON value.",
        ),
    ]


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(App).json = True


def _set_store(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value:
        context.ensure_object(App).url = value


def literal_option() -> click.Option:
    """Return `--literal`, which turns off redaction by shape. Refused for agents."""
    return click.Option(
        ["--literal"],
        is_flag=True,
        expose_value=False,
        callback=_set_literal,
        help="Do not redact text that only looks like a secret. Known secret values are still "
        "redacted.",
    )


def _set_literal(context: click.Context, _: click.Parameter, value: bool) -> None:
    if not value:
        return
    if os.environ.get("CORRAL_AGENT") or os.environ.get("CORRAL_RUN"):
        from corral.kernel.errors import Refused

        raise Refused("Agents cannot turn off redaction. Remove --literal.")
    context.ensure_object(App).literal = True


def paging_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--after` and `--limit` to a command that prints one page of a list."""
    after = click.option("--after", metavar="CURSOR", help="Start after this cursor.")
    limit = click.option(
        "--limit", type=int, default=50, show_default=True, help="Maximum number of rows."
    )
    return after(limit(function))
