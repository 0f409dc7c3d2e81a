"""What every command shares: the store it speaks to, how it answers, and to whom."""

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
    """One call of the command line."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.json = False
        self.literal = False
        """Whether words are kept as they are, though they look like a key."""
        self._store: Corral | None = None
        self._open = ExitStack()
        self._names: dict[str, str] = {}

    @property
    def store(self) -> "Corral":
        """The store, opened when the first command asks for it."""
        if self._store is None:
            from corral.api import open

            self._store = open(self.url)
            self._open.enter_context(self._store.telling(self._tell_taken))
            if self.literal:
                self._store.keep_shapes()
            self._show_times_of(self._store)
        return self._store

    def _tell_taken(self, fields: Sequence[str]) -> None:
        """A secret was in what somebody wrote: they are told, beside the answer."""
        from corral.kernel.redaction_policy import taken_out

        self.warn("redacted", taken_out(fields), fields=fields)

    def warn(self, code: str, told: str, **details: object) -> None:
        """What somebody should know beside the answer: on standard error, as errors are."""
        if self.json:
            import msgspec

            warning = {"warning": {"code": code, "message": told, "details": details}}
            click.echo(msgspec.json.encode(warning).decode(), err=True)
        else:
            from corral.kernel.text import printable

            click.echo(f"corral: {printable(told)}", err=True)

    @property
    def store_here(self) -> "Corral":
        """The store itself, for what is done on this machine; a daemon's address is refused."""
        from corral import config
        from corral.kernel.errors import Invalid

        if config.is_afar(config.store_url(self.url)):
            raise Invalid("This is done where the store is; name the store, not its daemon.")
        return self.store

    @staticmethod
    def _show_times_of(store: "Corral | None") -> None:
        """Ages are told by the time of the store that is open, else by this machine's."""
        from corral.cli import render
        from corral.kernel.clock import SystemClock

        render.now = store.now if store is not None else SystemClock().now

    def open_for_upgrade(self) -> "Corral":
        """The store with whatever schema it has, for the command that migrates it."""
        from corral.api import open

        self._store = open(self.url, upgrade=True)
        return self._store

    def close(self) -> None:
        self._open.close()
        if self._store is not None:
            self._store.close()
            self._store = None
            self._show_times_of(None)

    def project_id(self, typed: str | None) -> str | None:
        """The whole id of a project that was named by its id, shortened or not, its directory,
        or its name."""
        if typed is None:
            return None
        projects = self.store.projects
        if os.path.isdir(typed):  # whole: a store that is served knows no directory of ours
            return projects.by_dir(os.path.abspath(typed)).id
        return projects.get(typed).id

    def project_here(self) -> str | None:
        """The id of the project that this directory is in, if it is in one."""
        from corral.kernel.errors import NotFound

        try:
            return self.project_id(".")
        except NotFound:
            return None

    def agent_name(self, id: str | None) -> str | None:
        """What an agent is called, for people."""
        return self._name(self.store.agents.get, id)

    def place_name(self, id: str | None) -> str | None:
        """What a place is called, for people."""
        return self._name(self.store.places.get, id, "called")

    def channel_name(self, id: str | None) -> str | None:
        """What a channel is called, for people."""
        return self._name(self.store.channels.get, id)

    def project_name(self, id: str | None) -> str | None:
        """What a project is called, for people."""
        return self._name(self.store.projects.get, id)

    def task_key(self, id: str | None) -> str | None:
        """What a task is called in its project, for people."""
        return self._name(self.store.tasks.get, id, "key")

    def _name(self, get: Callable[[str], Any], id: str | None, of: str = "name") -> str | None:
        """Asked for once; what is not there any more keeps its id."""
        from corral.kernel.errors import NotFound

        if id is not None and id not in self._names:
            try:
                self._names[id] = getattr(get(id), of)
            except NotFound:
                self._names[id] = id
        return None if id is None else self._names[id]

    def scope_id(self, typed: str) -> str:
        """What money is counted for: an agent by its name, a project by its directory, or ids."""
        kind, _, name = typed.partition(":")
        if kind == "agent" and name:
            return f"agent:{self.store.agents.get(name).id}"
        if kind == "project" and name:
            return f"project:{self.project_id(name)}"
        is_place = typed in (".", "..") or "/" in typed
        return f"project:{self.project_id(typed)}" if is_place and kind != "model" else typed

    def scope_name(self, scope: str) -> str:
        """What money is counted for, for people."""
        kind, _, id = scope.partition(":")
        return f"agent:{self.agent_name(id)}" if kind == "agent" else scope

    def show(self, record: Any, columns: "Columns | None" = None) -> None:
        """One record: as JSON, or its fields one below the other."""
        from corral.cli import render

        if self.json:
            render.write_json(record)
        else:
            render.write_fields(record, columns)

    def show_body(self, body: Any) -> None:
        """Text as it is, for a file or a pipe; a terminal gets it without what would steer it."""
        from corral.cli import render

        if self.json or not isinstance(body, str):
            render.write_json(body)
        elif sys.stdout.isatty():
            from corral.kernel.text import printable

            click.echo("\n".join(map(printable, body.splitlines())))
        else:
            click.echo(body)

    def show_all(self, records: Sequence[Any], columns: "Columns", *, empty: str) -> None:
        """Several records: a JSON array, or a table; `empty` says what to do without any."""
        from corral.cli import render

        if self.json:
            render.write_json(records)
        elif records:
            render.write_table(records, columns)
        else:
            render.write_line(empty)

    def show_page(self, page: "Page[Any]", columns: "Columns", *, empty: str) -> None:
        self.show_all(page.items, columns, empty=empty)
        if page.next is not None:
            click.echo(f"There is more: --after {page.next}", err=True)

    def show_pairs(self, pairs: Mapping[str, Any], name: str, value: str, *, empty: str) -> None:
        """Values by their names: a JSON object, or a table of two columns."""
        if self.json:
            self.show(pairs)
        else:
            columns: Columns = [(name, lambda pair: pair[0]), (value, lambda pair: pair[1])]
            self.show_all([*pairs.items()], columns, empty=empty)

    def say_later(self, sentence: str, record: Any) -> None:
        """What a daemon will do: as `say`, and whether there is one."""
        if not self.json and not self._is_served():
            sentence = f"{sentence} No daemon is up to do it; `corral up` starts one."
        self.say(sentence, record)

    def _is_served(self) -> bool:
        from corral import config

        if config.is_afar(self.store.address):
            return True
        nodes, now = self.store.nodes.list(limit=200).items, self.store.now()
        return any(node.state == "up" and node.lease_until > now for node in nodes)

    def say(self, sentence: str, record: Any = None) -> None:
        """What was done: the record as JSON, or one sentence for a person."""
        from corral.cli import render

        if self.json:
            render.write_json(record)
        else:
            render.write_line(sentence)


# A column's title and how its cell is made from a record.
Columns = Sequence[tuple[str, Callable[[Any], object]]]


def _set_json(context: click.Context, _: click.Parameter, given: bool) -> None:
    if given:
        context.ensure_object(App).json = True


def _set_store(context: click.Context, _: click.Parameter, given: str | None) -> None:
    if given:
        context.ensure_object(App).url = given


def literal_option() -> click.Option:
    """--literal, for a person who knows that what looks like a key is none."""
    return click.Option(
        ["--literal"],
        is_flag=True,
        expose_value=False,
        callback=_set_literal,
        help="Keep words that look like a key as they are; secrets that are known go all the same.",
    )


def _set_literal(context: click.Context, _: click.Parameter, given: bool) -> None:
    if not given:
        return
    if os.environ.get("CORRAL_AGENT") or os.environ.get("CORRAL_RUN"):
        from corral.kernel.errors import Refused

        raise Refused("An agent does not say what is no secret; leave --literal out.")
    context.ensure_object(App).literal = True


def common_options() -> list[click.Parameter]:
    """--store and --json, which are understood before the noun and behind the verb alike."""
    return [
        click.Option(
            ["--store"],
            metavar="URL",
            expose_value=False,
            callback=_set_store,
            help="sqlite:///relative.db, sqlite:////absolute.db, postgresql://user@host/db, or a "
            "daemon: http://host:7717.",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            callback=_set_json,
            help="Print one JSON value.",
        ),
    ]


class Verb(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(common_options())


class Noun(click.Group):
    command_class = Verb

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Each verb with its whole sentence, on as many lines as it takes."""
        verbs = ((name, self.get_command(context, name)) for name in self.list_commands(context))
        rows = [(name, verb.get_short_help_str(limit=500)) for name, verb in verbs if verb]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def paging(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a list that comes in pages."""
    after = click.option("--after", metavar="CURSOR", help="Go on where a page ended.")
    limit = click.option("--limit", type=int, default=50, show_default=True, help="Rows a page.")
    return after(limit(function))


class Milliseconds(click.ParamType[int]):
    """What is written in some way and is a number of milliseconds."""

    def read(self, text: str) -> int:
        """The number; Invalid when it is not written so."""
        raise NotImplementedError

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        from corral.kernel.errors import Invalid

        if isinstance(value, int):
            return value
        try:
            return self.read(value)
        except Invalid as error:
            self.fail(error.message, param, context)


class Duration(Milliseconds):
    """A duration such as 90s, 10m or 7d."""

    name = "duration"

    def read(self, text: str) -> int:
        from corral.kernel.clock import parse_duration

        return parse_duration(text)


class Moment(Milliseconds):
    """A moment such as 2027-01-15T09:00; without a zone it is the user's own."""

    name = "time"

    def read(self, text: str) -> int:
        from datetime import datetime

        from corral.kernel.errors import Invalid

        try:
            return round(datetime.fromisoformat(text).timestamp() * 1_000)
        except (ValueError, OverflowError, OSError):
            raise Invalid(
                f"{text!r} is no moment; write one like 2027-01-15T09:00 or 2027-01-15T09:00+01:00."
            ) from None


RECOVERY_SECONDS = 5.0
"""Maximum time that a command which only reads waits for a write."""


def run_as_it_is(store: "Corral", id: str) -> "Run":
    """Return a run, after checking whether its supervisor is still alive."""
    found = store.runs.get(id)
    seen = store.try_upkeep(found.id, lambda: store.runs.refreshed(found), seconds=RECOVERY_SECONDS)
    return seen or found


def is_terminal() -> bool:
    """Whether a person sits in front of this command."""
    return os.isatty(0) and os.isatty(1)


def terminal_size() -> tuple[int, int]:
    """Rows and columns of the terminal that this command has."""
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        return 24, 80
    return (rows, columns) if rows and columns else (24, 80)


DURATION = Duration()
MOMENT = Moment()
pass_app = click.make_pass_decorator(App, ensure=True)


def sure(question: str) -> None:
    """Go on only when a person says yes; where nobody can be asked, say how to do without."""
    if not os.isatty(0):
        from corral.kernel.errors import Refused

        raise Refused(
            f"{question} Nobody is there to answer; say --yes if you are sure.",
            reason="not_confirmed",
        )
    click.confirm(question, abort=True, err=True)


def pairs(given: Sequence[str], what: str) -> dict[str, str]:
    """What was given as NAME=VALUE, by name; `what` is the option, or what comes before it."""
    from corral.kernel.errors import Invalid

    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise Invalid(f"Write {what} NAME=VALUE, not {what} {each}.", value=each)
        found[name] = value
    return found


def read_body(given: str, as_json: bool) -> Any:
    """A body from the command line: the text itself, `@FILE`, or `-` for standard input."""
    from corral.kernel.errors import Invalid

    text = given
    if given == "-" or given.startswith("@"):
        try:
            with click.open_file(given.removeprefix("@"), encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise Invalid(f"{given[1:]} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise Invalid("The body is not valid UTF-8; convert it first.") from None
    if not as_json:
        return text
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise Invalid(f"The body is not JSON: {error}.") from None
