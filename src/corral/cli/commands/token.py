import click

from corral.cli.app import DURATION, App, Noun, paging, pass_app
from corral.cli.render import ago

COLUMNS = [
    ("NAME", lambda token: token.name),
    ("ID", lambda token: token.id),
    ("STATE", lambda token: token.state),
    ("SCOPE", lambda token: token.scope),
    ("MADE", lambda token: ago(token.created_at)),
    ("BY", lambda token: token.created_by),
    ("USED", lambda token: ago(token.used_at) if token.used_at else None),
    ("EXPIRES", lambda token: ago(token.expires_at) if token.expires_at else None),
]


@click.group("token", cls=Noun, help="Who may call the HTTP API, and what each may do.")
def command() -> None:
    pass


@command.command()
@click.argument("name")
@click.option("--read", "scope", flag_value="read", help="It may read everything, change nothing.")
@click.option("--agent", metavar="NAME", help="It may do what this agent may, in its name.")
@click.option("--project", metavar="ID|DIR", help="An agent's: for this project alone.")
@click.option("--for", "ttl_ms", type=DURATION, metavar="TIME", help="How long it is good, as 30d.")
@pass_app
def create(
    app: App,
    name: str,
    scope: str | None,
    agent: str | None,
    project: str | None,
    ttl_ms: int | None,
) -> None:
    """Make a token and show its secret, once."""
    if scope and agent:
        raise click.UsageError("Give --read or --agent, not both.")
    wanted = f"agent:{agent}" if agent else scope or "full"
    made = app.store.tokens.create(
        name, scope=wanted, ttl_ms=ttl_ms, project=app.project_id(project)
    )
    app.say(made.value, made)
    if not app.json:
        click.echo(f"That is the secret of {name}; it is not shown again.", err=True)


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Also those that were revoked.")
@paging
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """Tokens, without their secrets."""
    page = app.store.tokens.list(all=all_, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="There is no token; `corral token create` makes one.")


@command.command()
@click.argument("token")
@pass_app
def revoke(app: App, token: str) -> None:
    """Let a token, by its name or id, open nothing any more."""
    revoked = app.store.tokens.revoke(token)
    app.say(f"{revoked.name} is revoked.", revoked)
