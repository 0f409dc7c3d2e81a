"""The context of one invocation: the store, the output format and cached names."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from corral.api import Corral
    from corral.cli.columns import Columns, Fields
    from corral.kernel.identity import CallerIdentity
    from corral.kernel.pagination import Page


class App:
    """The object that every command receives.

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
            from corral.cli import render

            self._open.enter_context(render.use_clock(self._store.now))
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

    @property
    def caller(self) -> "CallerIdentity":
        """Whom this command acts as; opens the store, which knows the run of this process."""
        return self.store.caller

    def acting_agent(self, name: str | None) -> str | None:
        """Return the agent that acts: that of the caller, or for a person the given one.

        Raises Refused when an agent names another one.
        """
        own = self.caller.agent
        if own is not None and name is not None and name != own:
            from corral.kernel.errors import Refused

            raise Refused(
                f"Agent {own} cannot act as {name}. Remove --agent.",
                agent=own,
                reason="other_agent",
            )
        return name or own

    def require_agent(self, name: str | None) -> str:
        """Return the agent that acts, for commands that only an agent can call."""
        agent = self.acting_agent(name)
        if agent is None:
            from corral.kernel.errors import Invalid

            raise Invalid("No agent given. Pass --agent NAME or set CORRAL_AGENT.")
        return agent

    def acting_owner(self, name: str | None) -> str:
        """Return the owner of locks that acts: the caller, or for a person the given one."""
        own = self.caller.owner
        if name is None or name in (own, own.removeprefix("agent:")):
            return own
        if not own.startswith("user:"):
            from corral.kernel.errors import Refused

            raise Refused(f"{own} cannot act as {name}. Remove --agent.", agent=name)
        return name

    def open_unchecked(self) -> "Corral":
        """Open the store without checking its schema version, to migrate it."""
        from corral.api import open

        self._store = open(self.url, check_schema=False)
        return self._store

    def close(self) -> None:
        """Close the store if it is open. Idempotent."""
        self._open.close()
        if self._store is not None:
            self._store.close()
            self._store = None

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

    def show(self, record: Any, fields: "Fields | None" = None) -> None:
        """Print one record: its fields one per line, or JSON."""
        from corral.cli import render

        if self.json:
            render.write_json(record)
        else:
            render.write_fields(record, fields)

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
        if page.next is None:
            return
        if self.json:
            self.warn("more_results", f"More results: --after {page.next}", after=page.next)
        else:
            click.echo(f"More results: --after {page.next}", err=True)

    def show_mapping(self, values: Mapping[str, Any], key: str, value: str, *, empty: str) -> None:
        """Print a mapping: a table with two columns, or a JSON object."""
        if self.json:
            self.show(values)
        else:
            from corral.cli.columns import Column

            columns = [Column(key, lambda pair: pair[0]), Column(value, lambda pair: pair[1])]
            self.show_list([*values.items()], columns, empty=empty)


pass_app = click.make_pass_decorator(App, ensure=True)
