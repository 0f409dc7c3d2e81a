"""`corral message`: send and inspect messages on channels."""

import os

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns, Fields
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, read_body
from corral.cli.render import format_age, format_time
from corral.domain.chat.model import Message, list_files
from corral.kernel.errors import Invalid, NotFound


def columns(app: App) -> Columns:
    """Return the columns of a message, with names instead of ids."""
    return [
        Column("ID", lambda message: message.id),
        Column("WHEN", lambda message: format_age(message.created_at)),
        Column("PLACE", lambda message: app.place_name(message.place_id), shrink="truncate"),
        Column("DIRECTION", lambda message: message.direction),
        Column("STATE", lambda message: message.state, is_state=True),
        Column("WHY", lambda message: message.reason, shrink="truncate"),
        Column("CONTENT", lambda message: message.text, shrink="truncate"),
    ]


def message_fields(app: App) -> Fields:
    """Return the fields of a message for people; `--json` has all fields."""
    return [
        ("id", lambda message: message.id),
        ("state", lambda message: message.state),
        ("reason", lambda message: message.reason),
        ("direction", lambda message: f"{message.direction}, a {message.kind}"),
        ("place", lambda message: f"{app.place_name(message.place_id)} ({message.place_id})"),
        ("channel", lambda message: app.channel_name(message.channel_id)),
        ("thread", lambda message: message.thread),
        ("sender", lambda message: _sender(app, message)),
        ("sent", lambda message: f"{format_time(message.at)} ({format_age(message.at)})"),
        ("text", lambda message: message.text),
        ("files", lambda message: _files(message)),
        ("routed to", lambda message: _routes(app, message)),
        ("letter", lambda message: _letter(app, message.letter_id)),
        ("run", lambda message: message.run_id),
        ("event", lambda message: message.event_id.partition(":")[2]),
        ("platform id", lambda message: ", ".join(message.platform_ids) or None),
        ("reply to", lambda message: message.reply_to),
    ]


def _files(message: Message) -> str | None:
    """Return the path of each file, or the reason why it is missing."""
    files = [
        file.get("path") or f"{file['name']}: {file['reason']}" for file in list_files(message)
    ]
    return "; ".join(files) or None


def _sender(app: App, message: Message) -> str | None:
    if message.sender_id is None:
        return app.agent_name(message.agent_id) or "Corral"
    return app.store.senders.get(message.sender_id).display_name


def _routes(app: App, message: Message) -> str | None:
    """Return the decision of each wiring, and the state of the agent's letter."""
    routes = []
    for route in message.routes:
        routed = "yes" if route.wakes else "no"
        letter = f" ({_letter(app, route.letter_id)})" if route.letter_id else ""
        routes.append(f"{app.agent_name(route.agent_id)}: {routed}, {route.reason}{letter}")
    return "; ".join(routes) or None


def _letter(app: App, id: str | None) -> str | None:
    """Return the state of a letter; only its id if the letter was pruned."""
    if id is None:
        return None
    try:
        letter = app.store.mail.get(id)
    except NotFound:
        return id
    attempts = f", {letter.attempts} attempts" if letter.attempts > 1 else ""
    error = f": {letter.last_error}" if letter.last_error else ""
    return f"{id} is {letter.state}{attempts}{error}"


key_option = click.option("--key", help="Idempotency key: a repeated key sends the message once.")


@click.group("message", cls=CommandGroup, help="Send and inspect messages on channels.")
def command() -> None:
    pass


@command.command("list")
@click.option("--place", metavar="PLACE", help="Only list messages in this place.")
@click.option(
    "--session", metavar="SESSION", help="Only list messages received or sent in this session."
)
@paging_options
@pass_app
def list_(app: App, place: str | None, session: str | None, after: str | None, limit: int) -> None:
    """List messages, newest first."""
    page = app.store.messages.list(place=place, session=session, after=after, limit=limit)
    app.show_page(page, columns(app), empty="No messages.")


@command.command()
@paging_options
@pass_app
def awaiting_approval(app: App, after: str | None, limit: int) -> None:
    """List messages of unknown senders that wait for approval."""
    page = app.store.messages.awaiting_approval(after=after, limit=limit)
    app.show_page(page, columns(app), empty="No messages wait for approval.")


@command.command()
@click.argument("message")
@pass_app
def show(app: App, message: str) -> None:
    """Show a message: how it was routed, or the state of its delivery."""
    app.show(app.store.messages.get(message), message_fields(app))


@command.command()
@click.argument("text", required=False)
@click.option(
    "--to", metavar="NAME", help="Destination (default: the place of the current conversation)."
)
@click.option(
    "--file",
    "files",
    metavar="PATH",
    multiple=True,
    help="File to send, from the agent's working directory. Repeatable.",
)
@click.option("--edit", metavar="MESSAGE", help="Message whose text to replace.")
@click.option("--react", metavar="MESSAGE", help="Message to react to.")
@click.option("--reply-to", metavar="MESSAGE", help="Message to reply to.")
@key_option
@pass_app
def send(
    app: App,
    text: str | None,
    to: str | None,
    files: tuple[str, ...],
    edit: str | None,
    react: str | None,
    reply_to: str | None,
    key: str | None,
) -> None:
    """Send TEXT (or @FILE) or files to a place, as an agent."""
    messages = app.store.messages
    agent = app.caller.agent
    if agent is None:
        raise Invalid("Only agents can call this. Use `corral message post PLACE TEXT` instead.")
    session, run = app.caller.session, app.caller.run
    if files:
        if edit or react or reply_to:
            raise Invalid("--file cannot be combined with --edit, --react or --reply-to.")
        sent = messages.send_files(
            [os.path.join(os.getcwd(), file) for file in files],
            text=read_body(text, False) if text else "",
            agent=agent,
            to=to,
            session=session,
            run=run,
            key=key,
        )
    elif text is None:
        raise Invalid("Nothing to send. Give TEXT or --file PATH.")
    else:
        sent = messages.send(
            read_body(text, False),
            agent=agent,
            to=to,
            session=session,
            run=run,
            edit=edit,
            react=react,
            reply_to=reply_to,
            key=key,
        )
    app.report(f"Queued {', '.join(message.id for message in sent)} for delivery.", sent)


@command.command("next")
@click.option(
    "--after", metavar="LETTER", help="Last letter that you received (default: the first prompt)."
)
@click.option("--answer", metavar="TEXT", help="Answer to the messages received so far; or @FILE.")
@click.option(
    "--wait",
    type=DURATION,
    default=0,
    help="Maximum time to wait for a message (default: do not wait).",
)
@pass_app
def next_(app: App, after: str | None, answer: str | None, wait: int) -> None:
    """Acknowledge the messages received so far and get the next, as a long-running agent.

    Prints nothing if there is no message. The agent may exit then: a later message starts a new
    run.
    """
    messages = app.store.messages
    run = app.caller.run
    if run is None:
        raise Invalid("Only agents that a message started can call this; CORRAL_RUN is not set.")
    text = read_body(answer, False) if answer is not None else None
    batch = messages.next(run, after=after, answer=text, wait_ms=wait)
    if batch is not None:
        app.report(
            f"{batch.text}\n\n[then: corral message next --after {batch.letters[-1]}]", batch
        )
    elif app.json:
        app.report("", None)


@command.command()
@click.argument("place")
@click.argument("text")
@key_option
@pass_app
def post(app: App, place: str, text: str, key: str | None) -> None:
    """Post TEXT (or @FILE) to PLACE in the name of Corral."""
    sent = app.store.messages.send_as_system(place, read_body(text, False), key=key)
    app.report(f"Queued {', '.join(message.id for message in sent)} for delivery.", sent)
