from typing import TYPE_CHECKING, Any

import click

from corral import config
from corral.cli import render
from corral.cli.app import DURATION, App, Noun, paging, pass_app, read_body
from corral.cli.render import ago

if TYPE_CHECKING:
    from corral.domain.mail.model import Letter


def shown_state(letter: "Letter") -> str:
    """A waiting letter that somebody has out is shown as that."""
    return "out" if letter.is_out(render.now()) else str(letter.state)


def _gist(letter: "Letter") -> object:
    from corral.domain.mail.model import gist

    return gist(letter.body)


COLUMNS = [
    ("ID", lambda letter: letter.id),
    ("MAILBOX", lambda letter: letter.mailbox),
    ("STATE", shown_state),
    ("TRIES", lambda letter: letter.attempts),
    ("DUE", lambda letter: ago(letter.due_at)),
    ("OWNER", lambda letter: letter.owner if shown_state(letter) != "waiting" else None),
    ("BODY", _gist),
    ("LAST ERROR", lambda letter: letter.last_error),
]


@click.group("mail", cls=Noun, help="Letters: put, claim, acknowledge; dead letters.")
def command() -> None:
    pass


@command.command()
@click.argument("mailbox")
@click.argument("body")
@click.option("--as-json", is_flag=True, help="The body is JSON, not plain text.")
@click.option("--key", help="The same key in the same mailbox is the same letter.")
@click.option("--in", "delay", type=DURATION, help="Not to be claimed before: 90s, 10m, 2h.")
@click.option("--expires-in", "expiry", type=DURATION, help="Not to be delivered after.")
@click.option("--priority", type=int, default=0, show_default=True, help="Higher goes first.")
@click.option("--project", metavar="ID", help="The project that it belongs to.")
@click.option("--sender", metavar="MAILBOX", help="Who is told should it never arrive.")
@pass_app
def put(
    app: App,
    /,
    mailbox: str,
    body: str,
    as_json: bool,
    delay: int | None,
    expiry: int | None,
    project: str | None,
    **options: Any,
) -> None:
    """Put BODY into MAILBOX (agent:ada, queue:builds …); `-` reads it, @FILE takes a file."""
    content = read_body(body, as_json)
    now = app.store.now()
    letter = app.store.mail.put(
        mailbox,
        content,
        due_at=now + delay if delay is not None else None,
        expires_at=now + expiry if expiry is not None else None,
        project=app.project_id(project),
        **options,
    )
    known = letter.created_at < now
    app.say(
        f"{letter.id} {'was' if known else 'is'} in {letter.mailbox}"
        f"{' already: the mailbox has seen this key' if known else ''}.",
        letter,
    )


@command.command()
@click.argument("text")
@click.option("--to", metavar="WHO", help="An agent's name, or agent:NAME, session:ID, user:NAME.")
@click.option(
    "--reply-to", metavar="LETTER", help="The letter that it answers; goes to its writer."
)
@click.option("--wake", is_flag=True, help="Start the agent for it.")
@click.option("--agent", metavar="NAME", help="Who writes; inside a run that is known.")
@click.option("--key", help="The same key is the same letter.")
@pass_app
def write(
    app: App,
    text: str,
    to: str | None,
    reply_to: str | None,
    wake: bool,
    agent: str | None,
    key: str | None,
) -> None:
    """For agents: write TEXT (or @FILE) to another one, or answer a letter."""
    from corral.cli import identity

    letter = app.store.mail.write(
        identity.required_agent(agent),
        read_body(text, False),
        to=to,
        reply_to=reply_to,
        wake=wake,
        run=config.run_id(),
        session=config.session_id(),
        key=key,
    )
    app.say(f"{letter.id} is in {letter.mailbox}.", letter)


@command.command()
@click.argument("mailbox")
@click.option("--owner", required=True, help="Who takes it.")
@click.option("--limit", type=int, default=1, show_default=True, help="How many at the most.")
@click.option("--lease", type=DURATION, default="30s", show_default=True, help="For how long.")
@click.option("--wait", is_flag=True, help="Wait for a letter when there is none.")
@click.option("--timeout", type=DURATION, default="24h", help="Wait no longer than that.")
@pass_app
def claim(
    app: App, mailbox: str, owner: str, limit: int, lease: int, wait: bool, timeout: int
) -> int:
    """Take letters out of MAILBOX; ack or fail them with the fence that is shown."""
    letters = app.store.mail.claim(
        mailbox, owner=owner, limit=limit, lease_ms=lease, wait_ms=timeout if wait else 0
    )
    columns = [*COLUMNS[:2], ("FENCE", lambda letter: letter.fence), *COLUMNS[3:4], COLUMNS[6]]
    app.show_all(letters, columns, empty=f"Nothing to claim in {mailbox}.")
    return 1 if wait and not letters else 0


def fence_option(function: Any) -> Any:
    return click.option("--fence", type=int, required=True, help="As `claim` showed it.")(function)


@command.command()
@click.argument("letter")
@fence_option
@click.option("--lease", type=DURATION, default="30s", show_default=True, help="For how long.")
@pass_app
def renew(app: App, letter: str, fence: int, lease: int) -> None:
    """Keep a claimed letter for longer."""
    renewed = app.store.mail.renew(letter, fence=fence, lease_ms=lease)
    app.say(f"{renewed.id} is yours until {ago(renewed.due_at)}.", renewed)


@command.command()
@click.argument("letter")
@fence_option
@pass_app
def ack(app: App, letter: str, fence: int) -> None:
    """Say that a claimed letter was dealt with."""
    done = app.store.mail.ack(letter, fence=fence)
    app.say(f"{done.id} is done.", done)


@command.command()
@click.argument("letter")
@click.argument("error")
@fence_option
@pass_app
def fail(app: App, letter: str, error: str, fence: int) -> None:
    """Say that an attempt failed; it is tried again later, or dead at the limit."""
    failed = app.store.mail.fail(letter, error, fence=fence)
    if failed.state == "dead":
        app.say(f"{failed.id} is dead after {failed.attempts} attempts.", failed)
    else:
        app.say(f"{failed.id} is tried again {ago(failed.due_at)}.", failed)


@command.command("list")
@click.option("--mailbox", help="Only this one.")
@click.option("--all", "all_", is_flag=True, help="Also letters that have ended, newest first.")
@click.option("--state", type=click.Choice(["unknown", "dead", "refused", "expired"]))
@paging
@pass_app
def list_(app: App, /, mailbox: str | None, all_: bool, **options: Any) -> None:
    """Letters on their way, by mailbox, in the order of the line."""
    page = app.store.mail.list(mailbox=mailbox, all=all_, **options)
    app.show_page(page, COLUMNS, empty="No letters.")


@command.command()
@click.argument("letter")
@click.option("--body", is_flag=True, help="Its body alone: text as it is, else JSON.")
@pass_app
def show(app: App, letter: str, body: bool) -> None:
    """One letter, whole."""
    found = app.store.mail.get(letter)
    if body:
        app.show_body(found.body)
    else:
        app.show(found)


@command.command()
@paging
@pass_app
def dead(app: App, after: str | None, limit: int) -> None:
    """Letters that failed too often; `resend` or `drop` them."""
    app.show_page(
        app.store.mail.dead(after=after, limit=limit), COLUMNS, empty="No letter is dead."
    )


@command.command()
@click.argument("letter")
@pass_app
def resend(app: App, letter: str) -> None:
    """Give a dead, refused or expired letter another chance."""
    again = app.store.mail.resend(letter)
    app.say(f"{again.id} is in {again.mailbox} again.", again)


@command.command()
@click.argument("letter")
@click.option("--reason", help="Why.")
@pass_app
def drop(app: App, letter: str, reason: str | None) -> None:
    """Give a letter up."""
    dropped = app.store.mail.drop(letter, reason=reason)
    app.say(f"{dropped.id} is dropped.", dropped)


@command.command()
@click.argument("letter")
@click.option("--delivered/--not-delivered", required=True, help="What is known now.")
@click.option("--reason", help="How you know.")
@pass_app
def settle(app: App, letter: str, delivered: bool, reason: str | None) -> None:
    """End the doubt about a letter whose outcome is unknown."""
    settled = app.store.mail.settle(letter, delivered=delivered, reason=reason)
    app.say(f"{settled.id} is {settled.state}.", settled)
