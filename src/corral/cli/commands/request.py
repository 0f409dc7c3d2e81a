import click

from corral import config
from corral.cli import identity
from corral.cli.app import App, Columns, Noun, paging, pairs, pass_app, read_body
from corral.cli.render import ago


def columns(app: App) -> Columns:
    """A request as people read it."""
    return [
        ("ID", lambda request: request.id),
        ("STATE", lambda request: request.state),
        ("WHO", lambda request: app.agent_name(request.agent_id)),
        ("ACTION", lambda request: request.action),
        ("ASKED", lambda request: ago(request.created_at)),
        ("QUESTION", lambda request: request.question_id),
        ("EFFECT", lambda request: request.effect),
    ]


@click.group("request", cls=Noun, help="What agents ask of the host; people decide, or grants do.")
def command() -> None:
    pass


@command.command()
@click.argument("action")
@click.argument("arguments", nargs=-1, metavar="NAME=VALUE…")
@click.option("--agent", metavar="NAME", help="Who asks; inside a run that is known.")
@click.option("--key", help="The same key is the same request.")
@pass_app
def ask(
    app: App, action: str, arguments: tuple[str, ...], agent: str | None, key: str | None
) -> None:
    """For agents: ask for create_agent, schedule_task, change_task, destination or secret.

    A VALUE may be @FILE. It is done when a grant of the agent says so (`corral agent grant NAME
    host:ACTION`), else when those who decide say yes.
    """

    given = {
        name: read_body(value, False) for name, value in pairs(arguments, "arguments as").items()
    }
    made = app.store.requests.ask(
        identity.required_agent(agent),
        action,
        given,
        run=config.run_id(),
        session=config.session_id(),
        key=key,
    )
    app.say(_standing(made.id, made.state, made.question_id), made)


def _standing(id: str, state: str, question: str | None) -> str:
    if state == "done":
        return f"{id} is done."
    return f"{id} waits for somebody to decide ({question}); you are told how it ends."


@command.command("list")
@click.option("--agent", metavar="NAME", help="Only of this one.")
@paging
@pass_app
def list_(app: App, agent: str | None, after: str | None, limit: int) -> None:
    """What agents asked for, newest first; `corral question answer` decides."""
    page = app.store.requests.list(agent=agent, after=after, limit=limit)
    app.show_page(page, columns(app), empty="No agent has asked for anything.")


@command.command()
@click.argument("request")
@pass_app
def show(app: App, request: str) -> None:
    """One request, whole."""
    app.show(app.store.requests.get(request))


@command.command()
@click.argument("request")
@pass_app
def withdraw(app: App, request: str) -> None:
    """Take a request back that nobody has decided."""
    gone = app.store.requests.withdraw(request)
    app.say(f"{gone.id} is taken back.", gone)
