import os

import click

from corral import config
from corral.cli.app import DURATION, App, Columns, Noun, paging, pass_app, read_body
from corral.cli.render import ago, moment
from corral.domain.chat.model import Message, files_of
from corral.kernel.errors import Invalid, NotFound


def columns(app: App) -> Columns:
    """A message as people read it: by names."""
    return [
        ("ID", lambda message: message.id),
        ("WHEN", lambda message: ago(message.created_at)),
        ("PLACE", lambda message: app.place_name(message.place_id)),
        ("WAY", lambda message: message.direction),
        ("STATE", lambda message: message.state),
        ("WHY", lambda message: message.reason),
        ("CONTENT", lambda message: message.text),
    ]


def whole(app: App) -> Columns:
    """Everything about a message that a person asks: whose it is, and what became of it."""
    return [
        ("id", lambda message: message.id),
        ("state", lambda message: message.state),
        ("why", lambda message: message.reason),
        ("way", lambda message: f"{message.direction}, a {message.kind}"),
        ("place", lambda message: f"{app.place_name(message.place_id)} ({message.place_id})"),
        ("channel", lambda message: app.channel_name(message.channel_id)),
        ("thread", lambda message: message.thread),
        ("by", lambda message: _speaker(app, message)),
        ("said", lambda message: f"{moment(message.at)} ({ago(message.at)})"),
        ("text", lambda message: message.text),
        ("files", lambda message: _files(message)),
        ("heard by", lambda message: _hearers(app, message)),
        ("letter", lambda message: _letter(app, message.letter_id)),
        ("run", lambda message: message.run_id),
        ("event", lambda message: message.event_id.partition(":")[2]),
        ("platform's id", lambda message: ", ".join(message.platform_ids) or None),
        ("about", lambda message: message.reply_to),
    ]


def _files(message: Message) -> str | None:
    """Where each file is, or why it is not."""
    listed = [file.get("path") or f"{file['name']}: {file['reason']}" for file in files_of(message)]
    return "; ".join(listed) or None


def _speaker(app: App, message: Message) -> str | None:
    if message.sender_id is None:
        return app.agent_name(message.agent_id) or "Corral"
    return app.store.senders.get(message.sender_id).called


def _hearers(app: App, message: Message) -> str | None:
    """What each wiring made of it, and how far whoever heard it is."""
    lines = []
    for route in message.routes:
        said = "yes" if route.heard else "no"
        letter = f" ({_letter(app, route.letter_id)})" if route.letter_id else ""
        lines.append(f"{app.agent_name(route.agent_id)}: {said}, {route.reason}{letter}")
    return "; ".join(lines) or None


def _letter(app: App, id: str | None) -> str | None:
    """How far a letter is; one that is kept no more has its id alone."""
    if id is None:
        return None
    try:
        letter = app.store.mail.get(id)
    except NotFound:
        return id
    tries = f", {letter.attempts} tries" if letter.attempts > 1 else ""
    return f"{id} is {letter.state}{tries}{f': {letter.last_error}' if letter.last_error else ''}"


@click.group("message", cls=Noun, help="What was said on channels, both ways.")
def command() -> None:
    pass


@command.command("list")
@click.option("--place", metavar="PLACE", help="Only there.")
@click.option("--session", metavar="SESSION", help="Only what was heard or said in this session.")
@paging
@pass_app
def list_(app: App, place: str | None, session: str | None, after: str | None, limit: int) -> None:
    """Messages, newest first."""
    page = app.store.messages.list(place=place, session=session, after=after, limit=limit)
    app.show_page(page, columns(app), empty="Nothing was said yet.")


@command.command()
@paging
@pass_app
def held(app: App, after: str | None, limit: int) -> None:
    """What waits until somebody says whether it may be heard."""
    page = app.store.messages.held(after=after, limit=limit)
    app.show_page(page, columns(app), empty="Nobody waits to be let in.")


@command.command()
@click.argument("message")
@pass_app
def show(app: App, message: str) -> None:
    """One message, whole: who heard it and why, or how far it is."""
    found = app.store.messages.get(message)
    app.show(found, whole(app))


@command.command()
@click.argument("text", required=False)
@click.option("--to", metavar="NAME", help="A destination; left out: where you are answered.")
@click.option(
    "--file", "files", metavar="PATH", multiple=True, help="Send a file of your folder, too."
)
@click.option("--edit", metavar="MESSAGE", help="Change what this one says.")
@click.option("--react", metavar="MESSAGE", help="Put a sign on this one.")
@click.option("--reply-to", metavar="MESSAGE", help="Answer this one.")
@click.option("--key", help="The same key is the same message.")
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
    """For agents: say TEXT (or @FILE) in a place, or send files there."""
    messages = app.store.messages
    agent = config.agent_name()
    if agent is None:
        raise Invalid("This is for agents; people use `corral message say PLACE TEXT`.")
    session, run = config.session_id(), config.run_id()
    if files:
        if edit or react or reply_to:
            raise Invalid("A file changes, signs and answers nothing; send it by itself.")
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
        raise Invalid("Say what is to be said, or name a file with --file PATH.")
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
    app.say(f"{', '.join(each.id for each in sent)} is on its way.", sent)


@command.command("next")
@click.option("--after", metavar="LETTER", help="The last one that you were given here.")
@click.option("--answer", metavar="TEXT", help="What you say to what you were given; or @FILE.")
@click.option("--wait", type=DURATION, default=0, help="So long for something to come.")
@pass_app
def next_(app: App, after: str | None, answer: str | None, wait: int) -> None:
    """For agents that stay: be done with the messages given so far, and get the next.

    Without --after you have dealt with what you began with. When nothing came, it says nothing, and
    you may end: whatever comes later wakes another run.
    """
    messages = app.store.messages
    run = config.run_id()
    if run is None:
        raise Invalid("This is for agents that a message woke; it needs CORRAL_RUN.")
    said = read_body(answer, False) if answer is not None else None
    found = messages.next(run, after=after, answer=said, wait_ms=wait)
    if found is not None:
        app.say(f"{found.text}\n\n[then: corral message next --after {found.letters[-1]}]", found)
    elif app.json:
        app.say("", None)


@command.command()
@click.argument("place")
@click.argument("text")
@click.option("--key", help="The same key is the same message.")
@pass_app
def say(app: App, place: str, text: str, key: str | None) -> None:
    """Say TEXT (or @FILE) in PLACE, in Corral's own name."""
    sent = app.store.messages.say(place, read_body(text, False), key=key)
    app.say(f"{', '.join(each.id for each in sent)} is on its way.", sent)
