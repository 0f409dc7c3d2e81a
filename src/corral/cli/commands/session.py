from collections.abc import Iterable
from typing import Any

import click

from corral.cli import render
from corral.cli.app import App, Columns, Noun, paging, pass_app, read_body
from corral.cli.render import ago
from corral.kernel.clock import format_duration
from corral.kernel.money import format_usd


def _columns(app: App) -> Columns:
    return [
        ("ID", lambda session: session.id),
        ("STATE", lambda session: session.state),
        ("TURNS", lambda session: session.turns),
        ("CHANGED", lambda session: ago(session.updated_at)),
        ("AGENT", lambda session: app.agent_name(session.agent_id)),
        ("PROVIDER", lambda session: session.provider),
        ("TITLE", lambda session: session.title),
    ]


TURNS = [
    ("TURN", lambda turn: turn.number),
    ("ROLE", lambda turn: turn.role),
    ("AT", lambda turn: ago(turn.at)),
    ("TOOL", lambda turn: turn.tool_name),
    ("CONTENT", lambda turn: turn.content or turn.arguments or turn.result),
]

HANDOFFS = [
    ("NUMBER", lambda handoff: handoff.number),
    ("AT TURN", lambda handoff: handoff.at_turn),
    ("FROM", lambda handoff: handoff.from_agent_id),
    ("TO", lambda handoff: handoff.to_agent_id),
    ("POLICY", lambda handoff: f"{handoff.policy} {handoff.last_n or ''}".strip()),
    ("CONTENT", lambda handoff: handoff.note),
]

RETROS = [
    ("NUMBER", lambda retro: retro.number),
    ("MADE", lambda retro: ago(retro.created_at)),
    ("BODY", lambda retro: retro.body),
]


def _listed(parts: Iterable[str]) -> str | None:
    return ", ".join(parts) or None


LOOK_BACK = [
    ("turns", lambda found: ", ".join(f"{count} {role}" for role, count in found.turns.items())),
    ("tools", lambda found: _listed(f"{count} {tool}" for tool, count in found.tools.items())),
    ("files", lambda found: _listed(found.files)),
    ("failures", lambda found: _listed(found.failures)),
    ("runs", lambda found: found.runs),
    ("running", lambda found: format_duration(found.running_ms)),
    ("began", lambda found: ago(found.began_at) if found.began_at else None),
    ("tokens", lambda found: found.tokens),
    ("cost", lambda found: format_usd(found.cost_micros)),
    ("last words", lambda found: (found.last_words or "").strip() or None),
]


@click.group("session", cls=Noun, help="Conversations of agents, turn by turn.")
def command() -> None:
    pass


@command.command("open")
@click.option("--agent", help="Whose it is.")
@click.option("--project", metavar="ID|DIR", help="The project that it belongs to.")
@click.option("--title", help="For people.")
@click.option("--provider", help="The kind of program that has it; the agent's by default.")
@click.option("--reply-to", metavar="MAILBOX", help="Where answers go.")
@pass_app
def open_(app: App, /, agent: str | None, project: str | None, **options: Any) -> None:
    """Begin a conversation."""
    session = app.store.sessions.open(agent, project=app.project_id(project), **options)
    app.say(f"{session.id} is open.", session)


@command.command("list")
@click.option("--project", metavar="ID|DIR", help="Only those of a project.")
@click.option("--agent", help="Only those of an agent.")
@click.option("--all", "all_", is_flag=True, help="Also those that are closed.")
@paging
@pass_app
def list_(app: App, /, project: str | None, all_: bool, **options: Any) -> None:
    """Sessions that are open, newest first."""
    page = app.store.sessions.list(project=app.project_id(project), all=all_, **options)
    app.show_page(page, _columns(app), empty="No session is open.")


@command.command()
@click.argument("session")
@pass_app
def show(app: App, session: str) -> None:
    """One session, whole but for its turns."""
    app.show(app.store.sessions.get(session))


@command.command()
@click.argument("session")
@click.option("--newest", is_flag=True, help="The newest first.")
@click.option("--after", metavar="TURN", help="Go on behind this turn.")
@click.option("--limit", type=int, default=100, show_default=True, help="Turns a page.")
@pass_app
def turns(app: App, session: str, newest: bool, after: str | None, limit: int) -> None:
    """What was said, in order."""
    page = app.store.sessions.turns(session, after=after, limit=limit, newest=newest)
    app.show_page(page, TURNS, empty="Nothing was said yet.")


@command.command()
@click.argument("session")
@pass_app
def context(app: App, session: str) -> None:
    """What the agent that has a session is given of it."""
    given = app.store.sessions.context(session)
    if not app.json:
        for told in (given.note, given.summary):
            if told:
                render.write_line(told)
        app.show_all(given.turns, TURNS, empty="It is given no turn.")
    else:
        app.show(given)


@command.command()
@click.argument("session")
@click.argument("role", type=click.Choice(["user", "assistant", "system", "tool"]))
@click.argument("content")
@click.option("--key", help="The same key in the same session is the same turn.")
@click.option("--tool", "tool_name", help="The tool that is called, or that answers.")
@click.option("--call", "tool_call_id", metavar="ID", help="The provider's id of the call.")
@click.option("--agent", help="Whose words these are.")
@click.option("--run", metavar="ID", help="The run that made it.")
@click.option("--error", "is_error", is_flag=True, help="The tool failed.")
@pass_app
def append(app: App, /, session: str, role: str, content: str, **options: Any) -> None:
    """Add a turn to an open session; CONTENT `-` reads it, @FILE takes a file."""
    turn = app.store.sessions.append(session, role, read_body(content, False), **options)
    app.say(f"It is turn {turn.number} of {turn.session_id}.", turn)


@command.command("take-back")
@click.argument("session")
@pass_app
def take_back(app: App, session: str) -> None:
    """Take back the latest turn that stands; it stays readable."""
    turn = app.store.sessions.take_back(session)
    said = f"Turn {turn.number} of {turn.session_id} is taken back." if turn else "No turn stands."
    app.say(said, turn)


@command.command()
@click.argument("session")
@click.argument("name", required=False)
@click.argument("value", required=False)
@click.option("--as-json", is_flag=True, help="The value is JSON, not plain text; null forgets it.")
@pass_app
def state(app: App, session: str, name: str | None, value: str | None, as_json: bool) -> None:
    """What a session remembers; with NAME and VALUE, let it remember that."""
    if name is not None and value is not None:
        kept = app.store.sessions.set_state(session, name, read_body(value, as_json))
        app.say(f"{name} is {'remembered' if kept else 'forgotten'}.", kept)
        return
    values = app.store.sessions.state(session)
    if name is not None:
        values = {name: values[name]} if name in values else {}
    app.show_pairs(values, "NAME", "DATA", empty="It remembers nothing.")


@command.command()
@click.argument("session")
@pass_app
def clear(app: App, session: str) -> None:
    """Let the agent start afresh; what was said stays readable."""
    cleared = app.store.sessions.clear(session)
    app.say(f"{cleared.id} starts afresh behind turn {cleared.cleared_turn}.", cleared)


@command.command()
@click.argument("session")
@click.option("--at", type=int, metavar="TURN", help="The last turn that it shares; the latest.")
@click.option("--title", help="For people; that of the session by default.")
@pass_app
def fork(app: App, session: str, at: int | None, title: str | None) -> None:
    """A new session that goes on from a turn of this one."""
    forked = app.store.sessions.fork(session, at, title=title)
    app.say(f"{forked.id} goes on behind turn {forked.parent_turn}.", forked)


@command.command()
@click.argument("session")
@click.argument("to", metavar="AGENT")
@click.option(
    "--policy",
    type=click.Choice(["all", "last", "summary"]),
    default="all",
    show_default=True,
    help="What the agent is given of what was said.",
)
@click.option("--last", type=int, metavar="N", help="How many turns, with the policy last.")
@click.option("--note", help="What the agent is told besides.")
@click.option("--summary", metavar="TEXT|@FILE", help="What happened so far.")
@click.option("--run", metavar="ID", help="The run that hands it over.")
@pass_app
def handoff(app: App, /, session: str, to: str, summary: str | None, **options: Any) -> None:
    """Give a session to another agent."""
    told = read_body(summary, False) if summary else None
    made = app.store.sessions.handoff(session, to, summary=told, **options)
    app.say(f"{made.session_id} is with {to} since turn {made.at_turn}.", made)


@command.command()
@click.argument("session")
@paging
@pass_app
def handoffs(app: App, session: str, after: str | None, limit: int) -> None:
    """How a session went from hand to hand."""
    page = app.store.sessions.handoffs(session, after=after, limit=limit)
    app.show_page(page, HANDOFFS, empty="It was never handed over.")


@command.command()
@click.argument("session")
@click.argument("title")
@pass_app
def rename(app: App, session: str, title: str) -> None:
    """Give a session another title; '' takes it away."""
    renamed = app.store.sessions.rename(session, title or None)
    app.say(f"{renamed.id} is called {renamed.title or 'nothing'} now.", renamed)


@command.command()
@click.argument("session")
@pass_app
def close(app: App, session: str) -> None:
    """End a session: it takes no more turns."""
    closed = app.store.sessions.close(session)
    app.say(f"{closed.id} is closed.", closed)


@command.command()
@click.argument("session")
@pass_app
def reopen(app: App, session: str) -> None:
    """Go on with a session that was closed."""
    again = app.store.sessions.reopen(session)
    app.say(f"{again.id} is open again.", again)


@command.command("retro")
@click.argument("session")
@click.option("--list", "kept", is_flag=True, help="Those that were kept before instead.")
@paging
@pass_app
def retro(app: App, session: str, kept: bool, after: str | None, limit: int) -> None:
    """Look back at a session (what happened, time, cost, files, failures) and keep that."""
    if kept:
        page = app.store.sessions.retros(session, after=after, limit=limit)
        app.show_page(page, RETROS, empty="Nobody has looked back at it yet.")
        return
    found = app.store.insights.look_back(session)
    app.store.sessions.record_retro(session, found)
    app.show(found, LOOK_BACK)
