import os

import click

from corral.interfaces.cli.app import DURATION, App, Noun, paging, pass_app, read_body
from corral.interfaces.cli.render import ago
from corral.kernel.errors import Invalid

COLUMNS = [
    ("ID", lambda message: message.id),
    ("WHEN", lambda message: ago(message.created_at)),
    ("PLACE", lambda message: message.place_id),
    ("WAY", lambda message: message.direction),
    ("STATE", lambda message: message.state),
    ("WHY", lambda message: message.reason),
    ("CONTENT", lambda message: message.text),
]


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
    app.show_page(page, COLUMNS, empty="Nothing was said yet.")


@command.command()
@paging
@pass_app
def held(app: App, after: str | None, limit: int) -> None:
    """What waits until somebody says whether it may be heard."""
    page = app.store.messages.held(after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="Nobody waits to be let in.")


@command.command()
@click.argument("message")
@pass_app
def show(app: App, message: str) -> None:
    """One message, whole: who heard it and why, or how far it is."""
    app.show(app.store.messages.get(message))


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
    agent = os.environ.get("CORRAL_AGENT")
    if agent is None:
        raise Invalid("This is for agents; people use `corral message say PLACE TEXT`.")
    session, run = os.environ.get("CORRAL_SESSION"), os.environ.get("CORRAL_RUN")
    if files:
        if edit or react or reply_to:
            raise Invalid("A file changes, signs and answers nothing; send it by itself.")
        sent = app.store.messages.send_files(
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
        sent = app.store.messages.send(
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
    run = os.environ.get("CORRAL_RUN")
    if run is None:
        raise Invalid("This is for agents that a message woke; it needs CORRAL_RUN.")
    said = read_body(answer, False) if answer is not None else None
    found = app.store.messages.next(run, after=after, answer=said, wait_ms=wait)
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
