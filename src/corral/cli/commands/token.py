"""`corral token`: manage access tokens for the HTTP API."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION
from corral.cli.render import format_age

COLUMNS = [
    Column("NAME", lambda token: token.name),
    Column("ID", lambda token: token.id),
    Column("STATE", lambda token: token.state, is_state=True),
    Column("SCOPE", lambda token: token.scope),
    Column("CREATED", lambda token: format_age(token.created_at)),
    Column("BY", lambda token: token.created_by),
    Column("USED", lambda token: format_age(token.used_at) if token.used_at else None),
    Column("EXPIRES", lambda token: format_age(token.expires_at) if token.expires_at else None),
]


@click.group("token", cls=CommandGroup, help="Manage access tokens for the HTTP API.")
def command() -> None:
    pass


@command.command(
    examples=[
        "corral token create ci --read",
        "corral token create ada --agent ada --expires-in 30d",
    ]
)
@click.argument("name")
@click.option(
    "--read", "scope", flag_value="read", help="Only allow reading (default: full access)."
)
@click.option(
    "--agent",
    metavar="NAME",
    help="Restrict the token to what this agent may do; its actor is the agent (default: full "
    "access).",
)
@click.option("--project", metavar="ID|DIR", help="Restrict the agent's token to this project.")
@click.option(
    "--expires-in",
    "ttl_ms",
    type=DURATION,
    help="Time until the token expires, such as 30d (default: never).",
)
@pass_app
def create(
    app: App,
    name: str,
    scope: str | None,
    agent: str | None,
    project: str | None,
    ttl_ms: int | None,
) -> None:
    """Create a token and print its secret. The secret is shown only once."""
    if scope and agent:
        raise click.UsageError("Give --read or --agent, not both.")
    token_scope = f"agent:{agent}" if agent else scope or "full"
    token = app.store.tokens.create(
        name, scope=token_scope, ttl_ms=ttl_ms, project=app.project_id(project)
    )
    app.report(token.value, token)
    if not app.json:
        click.echo(f"Created token {name}. The secret is not shown again.", err=True)


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Include revoked tokens.")
@paging_options
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """List tokens, without their secrets."""
    page = app.store.tokens.list(all=all_, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No tokens. Create one with `corral token create`.")


@command.command()
@click.argument("token")
@pass_app
def revoke(app: App, token: str) -> None:
    """Revoke a token, by name or id."""
    revoked = app.store.tokens.revoke(token)
    app.report(f"Revoked token {revoked.name}.", revoked)
