"""`corral mail`: put, claim and acknowledge letters in mailboxes."""

from typing import TYPE_CHECKING, Any

import click

from corral.cli import render
from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, read_body
from corral.cli.render import format_age

if TYPE_CHECKING:
    from corral.domain.mail.model import Letter


def shown_state(letter: "Letter") -> str:
    """Return the state, with `claimed` for a letter under a lease."""
    return "claimed" if letter.is_claimed(render.now()) else str(letter.state)


def _body_summary(letter: "Letter") -> object:
    from corral.domain.mail.model import summarize_body

    return summarize_body(letter.body)


ID = Column("ID", lambda letter: letter.id)
MAILBOX = Column("MAILBOX", lambda letter: letter.mailbox)
ATTEMPTS = Column("ATTEMPTS", lambda letter: letter.attempts)
BODY = Column("BODY", _body_summary, shrink="truncate")
COLUMNS = [
    ID,
    MAILBOX,
    Column("STATE", shown_state, is_state=True),
    ATTEMPTS,
    Column("DUE", lambda letter: format_age(letter.due_at)),
    Column(
        "OWNER", lambda letter: letter.owner if shown_state(letter) != "waiting" else None, drop=1
    ),
    BODY,
    Column("LAST ERROR", lambda letter: letter.last_error, shrink="truncate"),
]
CLAIM_COLUMNS = [ID, MAILBOX, Column("FENCE", lambda letter: letter.fence), ATTEMPTS, BODY]

fence_option = click.option(
    "--fence", type=int, required=True, help="Fencing token printed by `claim`."
)
lease_option = click.option(
    "--lease", type=DURATION, default="30s", show_default=True, help="Time until the claim expires."
)


@click.group("mail", cls=CommandGroup, help="Put, claim and acknowledge letters in mailboxes.")
def command() -> None:
    pass


@command.command(
    examples=[
        'corral mail put agent:ada "please review the API"',
        """corral mail put queue:builds '{"commit": "HEAD"}' --as-json --key build-HEAD""",
    ]
)
@click.argument("mailbox")
@click.argument("body")
@click.option("--as-json", is_flag=True, help="Parse BODY as JSON.")
@click.option("--key", help="Idempotency key: a repeated key in the same mailbox puts one letter.")
@click.option(
    "--in", "delay", type=DURATION, help="Delay before the letter can be claimed (default: none)."
)
@click.option(
    "--expires-in", "expiry", type=DURATION, help="Time until the letter expires (default: never)."
)
@click.option(
    "--priority", type=int, default=0, show_default=True, help="Priority; higher is claimed first."
)
@click.option("--project", metavar="ID|DIR", help="Project of the letter.")
@click.option(
    "--sender", metavar="MAILBOX", help="Mailbox to notify if the letter cannot be delivered."
)
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
    """Put a letter with BODY into MAILBOX, such as agent:ada or queue:builds.

    BODY `-` reads standard input, `@FILE` a file.
    """
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
    if letter.created_at < now:
        sentence = f"{letter.mailbox} already has a letter with this key ({letter.id})."
    else:
        sentence = f"Put {letter.id} into {letter.mailbox}."
    app.report(sentence, letter)


@command.command()
@click.argument("text")
@click.option(
    "--to", metavar="WHO", help="Recipient: an agent's name, agent:NAME, session:ID or user:NAME."
)
@click.option(
    "--reply-to", metavar="LETTER", help="Letter to reply to; the reply goes to its sender."
)
@click.option("--wake", is_flag=True, help="Start the agent to process the letter.")
@click.option("--agent", metavar="NAME", help="Agent to act as (default: $CORRAL_AGENT).")
@click.option("--key", help="Idempotency key: a repeated key writes one letter.")
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
    """Write a letter with TEXT (or @FILE) to an agent, or reply to a letter, as an agent."""

    letter = app.store.mail.write(
        app.require_agent(agent),
        read_body(text, False),
        to=to,
        reply_to=reply_to,
        wake=wake,
        run=app.caller.run,
        session=app.caller.session,
        key=key,
    )
    app.report(f"Put {letter.id} into {letter.mailbox}.", letter)


@command.command(
    examples=[
        "corral mail claim queue:builds --owner worker-1",
        "corral mail claim queue:builds --owner worker-1 --lease 5m --wait --json",
    ]
)
@click.argument("mailbox")
@click.option("--owner", required=True, help="Name of the claimant.")
@click.option("--limit", type=int, default=1, show_default=True, help="Maximum number of letters.")
@lease_option
@click.option("--wait", is_flag=True, help="Wait for a letter if the mailbox is empty.")
@click.option(
    "--timeout",
    type=DURATION,
    default="24h",
    show_default=True,
    help="Maximum time to wait, with --wait.",
)
@pass_app
def claim(
    app: App, mailbox: str, owner: str, limit: int, lease: int, wait: bool, timeout: int
) -> int:
    """Claim letters from MAILBOX; pass the printed fence to `ack`, `renew` or `fail`.

    With --wait, exits with 1 if no letter arrives in time. Without it, exits with 0 also if there
    is no letter.
    """
    letters = app.store.mail.claim(
        mailbox, owner=owner, limit=limit, lease_ms=lease, wait_ms=timeout if wait else 0
    )
    app.show_list(letters, CLAIM_COLUMNS, empty=f"No letters to claim in {mailbox}.")
    return 1 if wait and not letters else 0


@command.command()
@click.argument("letter")
@fence_option
@lease_option
@pass_app
def renew(app: App, letter: str, fence: int, lease: int) -> None:
    """Renew the lease of a claimed letter."""
    renewed = app.store.mail.renew(letter, fence=fence, lease_ms=lease)
    app.report(f"Renewed {renewed.id}; the claim expires {format_age(renewed.due_at)}.", renewed)


@command.command()
@click.argument("letter")
@fence_option
@pass_app
def ack(app: App, letter: str, fence: int) -> None:
    """Acknowledge a claimed letter as processed."""
    done = app.store.mail.ack(letter, fence=fence)
    app.report(f"Acknowledged {done.id}.", done)


@command.command()
@click.argument("letter")
@click.argument("error")
@fence_option
@pass_app
def fail(app: App, letter: str, error: str, fence: int) -> None:
    """Mark an attempt as failed: the letter is retried, or dead after the last attempt."""
    failed = app.store.mail.fail(letter, error, fence=fence)
    if failed.state == "dead":
        app.report(f"{failed.id} is dead after {failed.attempts} attempts.", failed)
    else:
        app.report(f"{failed.id} will be retried {format_age(failed.due_at)}.", failed)


@command.command("list")
@click.option("--mailbox", help="Only list letters in this mailbox.")
@click.option("--all", "all_", is_flag=True, help="Include letters that have ended, newest first.")
@click.option(
    "--state",
    type=click.Choice(["unconfirmed", "dead", "refused", "expired"]),
    help="Only list letters in this state.",
)
@paging_options
@pass_app
def list_(app: App, /, mailbox: str | None, all_: bool, **options: Any) -> None:
    """List open letters by mailbox, in queue order."""
    page = app.store.mail.list(mailbox=mailbox, all=all_, **options)
    app.show_page(page, COLUMNS, empty="No letters.")


@command.command()
@click.argument("letter")
@click.option("--body", is_flag=True, help="Only print the body, as text or JSON.")
@pass_app
def show(app: App, letter: str, body: bool) -> None:
    """Show a letter."""
    record = app.store.mail.get(letter)
    if body:
        app.show_body(record.body)
    else:
        app.show(record)


@command.command()
@paging_options
@pass_app
def dead(app: App, after: str | None, limit: int) -> None:
    """List dead letters: those that failed too often. Use `resend` or `drop` on them."""
    app.show_page(app.store.mail.dead(after=after, limit=limit), COLUMNS, empty="No dead letters.")


@command.command()
@click.argument("letter")
@pass_app
def resend(app: App, letter: str) -> None:
    """Put a dead, refused or expired letter back into its mailbox."""
    resent = app.store.mail.resend(letter)
    app.report(f"Put {resent.id} back into {resent.mailbox}.", resent)


@command.command()
@click.argument("letter")
@click.option("--reason", help="Reason, for the event log.")
@pass_app
def drop(app: App, letter: str, reason: str | None) -> None:
    """Drop a letter: it will not be delivered."""
    dropped = app.store.mail.drop(letter, reason=reason)
    app.report(f"Dropped {dropped.id}.", dropped)


@command.command()
@click.argument("letter")
@click.option("--delivered/--not-delivered", required=True, help="Whether it was delivered.")
@click.option("--reason", help="Evidence, for the event log.")
@pass_app
def resolve(app: App, letter: str, delivered: bool, reason: str | None) -> None:
    """Resolve a letter whose delivery is unconfirmed."""
    resolved = app.store.mail.resolve(letter, delivered=delivered, reason=reason)
    app.report(f"{resolved.id} is {resolved.state}.", resolved)
