"""Shared by all commands: the application context, command and option classes, parsers."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from corral.api import Corral
    from corral.domain.runs.model import Run
    from corral.kernel.pagination import Page


class App:
    """The context of one invocation: the store, the output format and cached names.

    Results go to standard output, warnings to standard error. With `--json` a command prints
    exactly one JSON value.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self.json = False
        self.literal = False
        """Whether text that only looks like a secret is stored unredacted (`--literal`)."""
        self._store: Corral | None = None
        self._open = ExitStack()
        self._names: dict[str, str] = {}

    @property
    def store(self) -> "Corral":
        """The store, opened on first use."""
        if self._store is None:
            from corral.api import open

            self._store = open(self.url)
            self._open.enter_context(self._store.report_redactions(self._warn_redacted))
            if self.literal:
                self._store.redact_known_values_only()
            self._use_clock_of(self._store)
        return self._store

    @property
    def local_store(self) -> "Corral":
        """The store, for commands that act on this machine. Raises Invalid for a daemon URL."""
        from corral import config
        from corral.kernel.errors import Invalid

        if config.is_remote(config.store_url(self.url)):
            raise Invalid(
                "This command needs direct access to the store. Run it on the store's machine "
                "with --store sqlite:///… or postgresql://…."
            )
        return self.store

    def open_for_upgrade(self) -> "Corral":
        """Open the store without checking its schema version, to migrate it."""
        from corral.api import open

        self._store = open(self.url, upgrade=True)
        return self._store

    def close(self) -> None:
        """Close the store if it is open. Idempotent."""
        self._open.close()
        if self._store is not None:
            self._store.close()
            self._store = None
            self._use_clock_of(None)

    @staticmethod
    def _use_clock_of(store: "Corral | None") -> None:
        """Show ages relative to the store's clock, or to this machine's without a store."""
        from corral.cli import render
        from corral.kernel.clock import SystemClock

        render.now = store.now if store is not None else SystemClock().now

    # -- ids and names -------------------------------------------------------------------------

    def project_id(self, project: str | None) -> str | None:
        """Return the full id of a project given by id, id prefix, directory or name."""
        if project is None:
            return None
        projects = self.store.projects
        if os.path.isdir(project):  # absolute: a daemon has another working directory
            return projects.by_dir(os.path.abspath(project)).id
        return projects.get(project).id

    def current_project_id(self) -> str | None:
        """Return the id of the project that contains the working directory, if any."""
        from corral.kernel.errors import NotFound

        try:
            return self.project_id(".")
        except NotFound:
            return None

    def agent_name(self, id: str | None) -> str | None:
        """Return the name of an agent."""
        return self._cached_name(self.store.agents.get, id)

    def place_name(self, id: str | None) -> str | None:
        """Return the display name of a place."""
        return self._cached_name(self.store.places.get, id, "display_name")

    def channel_name(self, id: str | None) -> str | None:
        """Return the name of a channel."""
        return self._cached_name(self.store.channels.get, id)

    def project_name(self, id: str | None) -> str | None:
        """Return the name of a project."""
        return self._cached_name(self.store.projects.get, id)

    def task_key(self, id: str | None) -> str | None:
        """Return the key of a task."""
        return self._cached_name(self.store.tasks.get, id, "key")

    def _cached_name(
        self, get: Callable[[str], Any], id: str | None, field: str = "name"
    ) -> str | None:
        """Look up each id once. A record that was deleted is shown by its id."""
        from corral.kernel.errors import NotFound

        if id is not None and id not in self._names:
            try:
                self._names[id] = getattr(get(id), field)
            except NotFound:
                self._names[id] = id
        return None if id is None else self._names[id]

    def scope_id(self, scope: str) -> str:
        """Return the scope of a budget or a total, with names and directories resolved to ids."""
        kind, _, name = scope.partition(":")
        if kind == "agent" and name:
            return f"agent:{self.store.agents.get(name).id}"
        if kind == "project" and name:
            return f"project:{self.project_id(name)}"
        is_directory = scope in (".", "..") or "/" in scope
        return f"project:{self.project_id(scope)}" if is_directory and kind != "model" else scope

    def scope_name(self, scope: str) -> str:
        """Return a scope for display, with the agent's name instead of its id."""
        kind, _, id = scope.partition(":")
        return f"agent:{self.agent_name(id)}" if kind == "agent" else scope

    # -- output --------------------------------------------------------------------------------

    def report(self, sentence: str, record: Any = None) -> None:
        """Print what was done: one sentence, or the record with `--json`."""
        from corral.cli import render

        if self.json:
            render.write_json(record)
        else:
            render.write_line(sentence)

    def report_deferred(self, sentence: str, record: Any) -> None:
        """Print what a daemon will do; adds a hint when no daemon is running."""
        if not self.json and not self._has_daemon():
            sentence = f"{sentence} No daemon is running; start one with `corral up`."
        self.report(sentence, record)

    def _has_daemon(self) -> bool:
        from corral import config

        if config.is_remote(self.store.address):
            return True
        nodes, now = self.store.nodes.list(limit=200).items, self.store.now()
        return any(node.state == "up" and node.lease_until > now for node in nodes)

    def warn(self, code: str, message: str, **details: object) -> None:
        """Print a warning to standard error, as JSON with `--json`."""
        if self.json:
            import msgspec

            warning = {"warning": {"code": code, "message": message, "details": details}}
            click.echo(msgspec.json.encode(warning).decode(), err=True)
        else:
            from corral.kernel.display_text import escape_unprintable

            click.echo(f"corral: {escape_unprintable(message)}", err=True)

    def _warn_redacted(self, fields: Sequence[str]) -> None:
        """Warn that a secret was redacted from the input."""
        from corral.kernel.redaction_policy import redaction_notice

        self.warn("redacted", redaction_notice(fields), fields=fields)

    def show(self, record: Any, columns: "Columns | None" = None) -> None:
        """Print one record: its fields one per line, or JSON."""
        from corral.cli import render

        if self.json:
            render.write_json(record)
        else:
            render.write_fields(record, columns)

    def show_body(self, body: Any) -> None:
        """Print a body unchanged to a file or pipe; escape control characters on a terminal."""
        from corral.cli import render

        if self.json or not isinstance(body, str):
            render.write_json(body)
        elif sys.stdout.isatty():
            from corral.kernel.display_text import escape_unprintable

            click.echo("\n".join(map(escape_unprintable, body.splitlines())))
        else:
            click.echo(body)

    def show_list(self, records: Sequence[Any], columns: "Columns", *, empty: str) -> None:
        """Print a table or a JSON array; `empty` is printed instead of an empty table."""
        from corral.cli import render

        if self.json:
            render.write_json(records)
        elif records:
            render.write_table(records, columns)
        else:
            render.write_line(empty)

    def show_page(self, page: "Page[Any]", columns: "Columns", *, empty: str) -> None:
        """Print one page of a list, with the option for the next page on standard error."""
        self.show_list(page.items, columns, empty=empty)
        if page.next is not None:
            click.echo(f"More results: --after {page.next}", err=True)

    def show_mapping(self, values: Mapping[str, Any], key: str, value: str, *, empty: str) -> None:
        """Print a mapping: a table with two columns, or a JSON object."""
        if self.json:
            self.show(values)
        else:
            columns: Columns = [(key, lambda pair: pair[0]), (value, lambda pair: pair[1])]
            self.show_list([*values.items()], columns, empty=empty)


# The title of each column, and a function that gives its cell for a record.
Columns = Sequence[tuple[str, Callable[[Any], object]]]

pass_app = click.make_pass_decorator(App, ensure=True)


# -- commands and options ----------------------------------------------------------------------


class Option(click.Option):
    """An option with hidden aliases: former spellings that are accepted but not shown."""

    def __init__(self, *args: Any, aliases: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.aliases = tuple(aliases)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Register the aliases with the parser only, so that help and errors omit them."""
        visible = self.opts
        self.opts = [*visible, *self.aliases]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = visible


def option(*names: str, aliases: Sequence[str] = (), **attributes: Any) -> Callable[..., Any]:
    """Declare an option like `click.option`, with hidden aliases."""
    return click.option(*names, cls=Option, aliases=aliases, **attributes)


class Command(click.Command):
    """A command with `--store` and `--json`, examples in its help, and hidden aliases.

    `aliases` are former names of the command; they are accepted but not listed.
    """

    def __init__(
        self,
        *args: Any,
        aliases: Sequence[str] = (),
        examples: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.aliases = tuple(aliases)
        self.examples = tuple(examples)
        self.params.extend(common_options())

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

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name or hidden alias."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        commands = self.commands.values()
        return next((each for each in commands if cmd_name in getattr(each, "aliases", ())), None)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their complete one-line help, wrapped instead of truncated."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, each.get_short_help_str(limit=500)) for name, each in commands if each]
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
            help="URL of the store, or of a daemon (default: $CORRAL_STORE).",
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


# -- parsers -----------------------------------------------------------------------------------


class MillisecondsType(click.ParamType[int]):
    """Base class of parameter types whose values are milliseconds."""

    def parse(self, text: str) -> int:
        """Return the value of `text` in milliseconds. Raises Invalid."""
        raise NotImplementedError

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        from corral.kernel.errors import Invalid

        if isinstance(value, int):
            return value
        try:
            return self.parse(value)
        except Invalid as error:
            self.fail(error.message, param, context)


class DurationType(MillisecondsType):
    """A duration such as 90s, 10m or 7d."""

    name = "duration"

    def parse(self, text: str) -> int:
        from corral.kernel.clock import parse_duration

        return parse_duration(text)


class TimestampType(MillisecondsType):
    """An ISO 8601 time such as 2027-01-15T09:00; local time unless it has a UTC offset."""

    name = "time"

    def parse(self, text: str) -> int:
        from datetime import datetime

        from corral.kernel.errors import Invalid

        try:
            return round(datetime.fromisoformat(text).timestamp() * 1_000)
        except (ValueError, OverflowError, OSError):
            raise Invalid(
                f"Invalid time {text!r}: expected an ISO 8601 time such as 2027-01-15T09:00 or "
                "2027-01-15T09:00+01:00."
            ) from None


DURATION = DurationType()
TIMESTAMP = TimestampType()


def parse_pairs(values: Sequence[str], what: str) -> dict[str, str]:
    """Parse NAME=VALUE arguments; `what` is the option or argument, for the error message."""
    from corral.kernel.errors import Invalid

    pairs = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Invalid(f"Invalid {what} {text!r}: expected NAME=VALUE.", value=text)
        pairs[name] = value
    return pairs


def read_body(source: str, as_json: bool) -> Any:
    """Return `source` itself, the content of `@FILE`, or standard input for `-`.

    With `as_json` the text is decoded as JSON. Raises Invalid.
    """
    from corral.kernel.errors import Invalid

    text = source
    if source == "-" or source.startswith("@"):
        try:
            with click.open_file(source.removeprefix("@"), encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise Invalid(f"Cannot read {source[1:]}: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise Invalid("The body is not valid UTF-8. Convert it to UTF-8 first.") from None
    if not as_json:
        return text
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise Invalid(f"The body is not valid JSON: {error}.") from None


# -- runs and terminals ------------------------------------------------------------------------

RECOVERY_SECONDS = 5.0
"""Maximum time that a command which only reads waits for a write."""


def refresh_run(store: "Corral", id: str) -> "Run":
    """Return a run, after checking whether its supervisor is still alive."""
    run = store.runs.get(id)
    refreshed = store.try_upkeep(run.id, lambda: store.runs.refresh(run), seconds=RECOVERY_SECONDS)
    return refreshed or run


def is_terminal() -> bool:
    """Return whether standard input and standard output are terminals."""
    return os.isatty(0) and os.isatty(1)


def terminal_size() -> tuple[int, int]:
    """Return the rows and columns of the terminal, or 24 and 80 without one."""
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        return 24, 80
    return (rows, columns) if rows and columns else (24, 80)


def confirm(question: str) -> None:
    """Ask for confirmation; abort unless the answer is yes.

    Raises Refused when standard input is not a terminal.
    """
    if not os.isatty(0):
        from corral.kernel.errors import Refused

        raise Refused(
            f"{question} Confirm with --yes: standard input is not a terminal.",
            reason="not_confirmed",
        )
    click.confirm(question, abort=True, err=True)
