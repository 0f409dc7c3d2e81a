"""`corral session`: manage sessions, the conversations with agents."""

from collections.abc import Iterable
from typing import Any

import click

from corral.cli import render
from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app
from corral.cli.parameters import read_body
from corral.cli.render import format_age
from corral.kernel.clock import format_duration
from corral.kernel.money import format_usd


def _columns(app: App) -> Columns:
    return [
        Column("ID", lambda session: session.id),
        Column("STATE", lambda session: session.state, is_state=True),
        Column("TURNS", lambda session: session.turns),
        Column("CHANGED", lambda session: format_age(session.updated_at)),
        Column("AGENT", lambda session: app.agent_name(session.agent_id), drop=1),
        Column("PROVIDER", lambda session: session.provider),
        Column("TITLE", lambda session: session.title, shrink="truncate"),
    ]


TURNS = [
    Column("TURN", lambda turn: turn.number),
    Column("ROLE", lambda turn: turn.role),
    Column("AT", lambda turn: format_age(turn.at)),
    Column("TOOL", lambda turn: turn.tool_name),
    Column(
        "CONTENT", lambda turn: turn.content or turn.arguments or turn.result, shrink="truncate"
    ),
]

HANDOFFS = [
    Column("NUMBER", lambda handoff: handoff.number),
    Column("AT TURN", lambda handoff: handoff.at_turn),
    Column("FROM", lambda handoff: handoff.from_agent_id, drop=2),
    Column("TO", lambda handoff: handoff.to_agent_id),
    Column("POLICY", lambda handoff: f"{handoff.policy} {handoff.last_n or ''}".strip(), drop=1),
    Column("CONTENT", lambda handoff: handoff.note, shrink="truncate"),
]

RETROS = [
    Column("NUMBER", lambda retro: retro.number),
    Column("CREATED", lambda retro: format_age(retro.created_at)),
    Column("BODY", lambda retro: retro.body, shrink="truncate"),
]


def _join(parts: Iterable[str]) -> str | None:
    return ", ".join(parts) or None


RETRO_FIELDS = [
    ("turns", lambda retro: ", ".join(f"{count} {role}" for role, count in retro.turns.items())),
    ("tools", lambda retro: _join(f"{count} {tool}" for tool, count in retro.tools.items())),
    ("files", lambda retro: _join(retro.files)),
    ("failures", lambda retro: _join(retro.failures)),
    ("runs", lambda retro: retro.runs),
    ("run time", lambda retro: format_duration(retro.running_ms)),
    ("started", lambda retro: format_age(retro.began_at) if retro.began_at else None),
    ("tokens", lambda retro: retro.tokens),
    ("cost", lambda retro: format_usd(retro.cost_micros)),
    ("last message", lambda retro: (retro.last_words or "").strip() or None),
]


@click.group("session", cls=CommandGroup, help="Manage sessions: conversations with agents.")
def command() -> None:
    pass


@command.command("open")
@click.option("--agent", help="Agent of the session.")
@click.option("--project", metavar="ID|DIR", help="Project of the session.")
@click.option("--title", help="Title.")
@click.option("--provider", help="Agent CLI (default: that of the agent).")
@click.option("--reply-to", metavar="MAILBOX", help="Mailbox that gets the answers.")
@pass_app
def open_(app: App, /, agent: str | None, project: str | None, **options: Any) -> None:
    """Open a session."""
    session = app.store.sessions.open(agent, project=app.project_id(project), **options)
    app.report(f"Opened {session.id}.", session)


@command.command("list")
@click.option("--project", metavar="ID|DIR", help="Only list sessions of this project.")
@click.option("--agent", help="Only list sessions of this agent.")
@click.option("--all", "all_", is_flag=True, help="Include closed sessions.")
@paging_options
@pass_app
def list_(app: App, /, project: str | None, all_: bool, **options: Any) -> None:
    """List open sessions, newest first."""
    page = app.store.sessions.list(project=app.project_id(project), all=all_, **options)
    app.show_page(page, _columns(app), empty="No open sessions.")


@command.command()
@click.argument("session")
@pass_app
def show(app: App, session: str) -> None:
    """Show a session without its turns."""
    app.show(app.store.sessions.get(session))


@command.command()
@click.argument("session")
@click.option("--newest", is_flag=True, help="Show the newest turns first.")
@click.option("--after", metavar="TURN", help="Start after this turn.")
@click.option("--limit", type=int, default=100, show_default=True, help="Maximum number of turns.")
@pass_app
def turns(app: App, session: str, newest: bool, after: str | None, limit: int) -> None:
    """List the turns of a session in order."""
    page = app.store.sessions.turns(session, after=after, limit=limit, newest=newest)
    app.show_page(page, TURNS, empty="The session has no turns.")


@command.command()
@click.argument("session")
@pass_app
def context(app: App, session: str) -> None:
    """Show the context that the current agent of a session gets."""
    context = app.store.sessions.context(session)
    if not app.json:
        for text in (context.note, context.summary):
            if text:
                render.write_line(text)
        app.show_list(context.turns, TURNS, empty="The context has no turns.")
    else:
        app.show(context)


@command.command()
@click.argument("session")
@click.argument("role", type=click.Choice(["user", "assistant", "system", "tool"]))
@click.argument("content")
@click.option("--key", help="Idempotency key: a repeated key in the session adds one turn.")
@click.option("--tool", "tool_name", help="Tool that is called, or that returns a result.")
@click.option(
    "--call-id",
    "tool_call_id",
    metavar="ID",
    help="Id of the tool call, from the provider.",
)
@click.option("--agent", help="Author of the turn.")
@click.option("--run", metavar="ID", help="Run that made the turn.")
@click.option("--error", "is_error", is_flag=True, help="Mark the tool call as failed.")
@pass_app
def append(app: App, /, session: str, role: str, content: str, **options: Any) -> None:
    """Append a turn to an open session; CONTENT `-` reads standard input, `@FILE` a file."""
    turn = app.store.sessions.append(session, role, read_body(content, False), **options)
    app.report(f"Appended turn {turn.number} to {turn.session_id}.", turn)


@command.command()
@click.argument("session")
@pass_app
def undo(app: App, session: str) -> None:
    """Undo the latest turn; it remains readable."""
    turn = app.store.sessions.undo(session)
    sentence = (
        f"Undid turn {turn.number} of {turn.session_id}." if turn else "There is no turn to undo."
    )
    app.report(sentence, turn)


@command.command()
@click.argument("session")
@click.argument("name", required=False)
@click.argument("value", required=False)
@click.option("--as-json", is_flag=True, help="Parse VALUE as JSON; null deletes it.")
@pass_app
def state(app: App, session: str, name: str | None, value: str | None, as_json: bool) -> None:
    """Show the state of a session; with NAME and VALUE, set a value."""
    if name is not None and value is not None:
        entry = app.store.sessions.set_state(session, name, read_body(value, as_json))
        app.report(f"{'Set' if entry else 'Deleted'} {name}.", entry)
        return
    values = app.store.sessions.state(session)
    if name is not None:
        values = {name: values[name]} if name in values else {}
    app.show_mapping(values, "NAME", "DATA", empty="No state.")


@command.command()
@click.argument("session")
@pass_app
def clear(app: App, session: str) -> None:
    """Clear the context of a session; earlier turns remain readable."""
    cleared = app.store.sessions.clear(session)
    app.report(
        f"Cleared {cleared.id}; its context starts after turn {cleared.cleared_turn}.", cleared
    )


@command.command()
@click.argument("session")
@click.option("--at", type=int, metavar="TURN", help="Last turn to share (default: the latest).")
@click.option("--title", help="Title (default: that of the session).")
@pass_app
def fork(app: App, session: str, at: int | None, title: str | None) -> None:
    """Create a session that continues from a turn of this one."""
    forked = app.store.sessions.fork(session, at, title=title)
    app.report(f"Created {forked.id}, which continues after turn {forked.parent_turn}.", forked)


@command.command()
@click.argument("session")
@click.argument("to", metavar="AGENT")
@click.option(
    "--policy",
    type=click.Choice(["all", "last", "summary"]),
    default="all",
    show_default=True,
    help="Context for the new agent: all turns, the last ones, or a summary.",
)
@click.option("--last", type=int, metavar="N", help="Number of turns, with --policy last.")
@click.option("--note", help="Note for the new agent.")
@click.option("--summary", metavar="TEXT|@FILE", help="Summary of the session.")
@click.option("--run", metavar="ID", help="Run that hands the session off.")
@pass_app
def handoff(app: App, /, session: str, to: str, summary: str | None, **options: Any) -> None:
    """Hand a session off to another agent."""
    text = read_body(summary, False) if summary else None
    handoff = app.store.sessions.handoff(session, to, summary=text, **options)
    app.report(f"Handed {handoff.session_id} off to {to} at turn {handoff.at_turn}.", handoff)


@command.command()
@click.argument("session")
@paging_options
@pass_app
def handoffs(app: App, session: str, after: str | None, limit: int) -> None:
    """List the hand-offs of a session."""
    page = app.store.sessions.handoffs(session, after=after, limit=limit)
    app.show_page(page, HANDOFFS, empty="No hand-offs.")


@command.command()
@click.argument("session")
@click.argument("title")
@pass_app
def rename(app: App, session: str, title: str) -> None:
    """Change the title of a session; an empty text removes it."""
    renamed = app.store.sessions.rename(session, title or None)
    if renamed.title:
        sentence = f"Renamed {renamed.id} to {renamed.title}."
    else:
        sentence = f"Removed the title of {renamed.id}."
    app.report(sentence, renamed)


@command.command()
@click.argument("session")
@pass_app
def close(app: App, session: str) -> None:
    """Close a session: it accepts no more turns."""
    closed = app.store.sessions.close(session)
    app.report(f"Closed {closed.id}.", closed)


@command.command()
@click.argument("session")
@pass_app
def reopen(app: App, session: str) -> None:
    """Reopen a closed session."""
    reopened = app.store.sessions.reopen(session)
    app.report(f"Reopened {reopened.id}.", reopened)


@command.command("retro")
@click.argument("session")
@click.option("--list", "kept", is_flag=True, help="List earlier retrospectives instead.")
@paging_options
@pass_app
def retro(app: App, session: str, kept: bool, after: str | None, limit: int) -> None:
    """Create a retrospective of a session: turns, tools, files, failures, time and cost."""
    if kept:
        page = app.store.sessions.retros(session, after=after, limit=limit)
        app.show_page(page, RETROS, empty="No retrospectives.")
        return
    retro = app.store.insights.retrospective(session)
    app.store.sessions.record_retro(session, retro)
    app.show(retro, RETRO_FIELDS)
