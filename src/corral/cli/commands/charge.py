"""`corral charge`: show token usage and cost."""

from typing import Any

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, to_fields
from corral.cli.context import App, pass_app
from corral.cli.render import format_age
from corral.kernel.money import format_usd

COLUMNS = [
    Column("ID", lambda charge: charge.id),
    Column("AT", lambda charge: format_age(charge.at)),
    Column("RUN", lambda charge: charge.run_id),
    Column("MODEL", lambda charge: charge.model, drop=2),
    Column("INPUT", lambda charge: charge.input),
    Column("OUTPUT", lambda charge: charge.output),
    Column("CACHED", lambda charge: charge.cache_read + charge.cache_write, drop=4),
    Column("COST", lambda charge: format_usd(charge.cost_micros), drop=1),
    Column("FROM", lambda charge: charge.source, drop=3),
]

TOTAL = [
    Column("DAY", lambda total: total.day or "total"),
    Column("CHARGES", lambda total: total.charges),
    Column("INPUT", lambda total: total.input),
    Column("OUTPUT", lambda total: total.output),
    Column("CACHED", lambda total: total.cache_read + total.cache_write, drop=2),
    Column("COST", lambda total: format_usd(total.cost_micros), drop=1),
    Column("UNPRICED", lambda total: total.unpriced),
]


@click.group("charge", cls=CommandGroup, help="Show token usage and cost.")
def command() -> None:
    pass


@command.command("list")
@click.option("--run", metavar="ID", help="Only list charges of this run.")
@click.option("--session", metavar="ID", help="Only list charges of this session.")
@click.option("--project", metavar="ID|DIR", help="Only list charges of this project.")
@paging_options
@pass_app
def list_(app: App, /, project: str | None, **options: Any) -> None:
    """List charges, newest first."""
    page = app.store.charges.list(project=app.project_id(project), **options)
    app.show_page(page, COLUMNS, empty="No charges.")


@command.command()
@click.argument("charge")
@pass_app
def show(app: App, charge: str) -> None:
    """Show a charge."""
    app.show(app.store.charges.get(charge))


@command.command()
@click.argument("scope", default="all")
@click.option("--day", metavar="DATE", help="Only this day (UTC), such as 2027-01-31.")
@pass_app
def total(app: App, scope: str, day: str | None) -> None:
    """Show the total usage of SCOPE.

    SCOPE is all (default), a project's directory, or run:, session:, project:, agent: or model:
    with an id or name.
    """
    app.show(app.store.charges.total(app.scope_id(scope), day=day), to_fields(TOTAL))


@command.command()
@click.argument("scope", default="all")
@paging_options
@pass_app
def days(app: App, scope: str, after: str | None, limit: int) -> None:
    """Show the usage of SCOPE per day, newest first."""
    page = app.store.charges.days(app.scope_id(scope), after=after, limit=limit)
    app.show_page(page, TOTAL, empty="No charges.")


@command.command()
@click.option(
    "--again", is_flag=True, help="Retry models that an earlier price table did not contain."
)
@pass_app
def price(app: App, again: bool) -> None:
    """Compute the cost of charges for which the provider reported none."""
    priced = app.store.charges.price_unpriced(retry=again)
    app.report(f"Priced {priced} charges.", {"priced": priced})
