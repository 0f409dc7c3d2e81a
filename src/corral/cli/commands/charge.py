from typing import Any

import click

from corral.cli.app import App, Noun, paging, pass_app
from corral.cli.render import ago
from corral.kernel.money import format_usd

COLUMNS = [
    ("ID", lambda charge: charge.id),
    ("AT", lambda charge: ago(charge.at)),
    ("RUN", lambda charge: charge.run_id),
    ("MODEL", lambda charge: charge.model),
    ("INPUT", lambda charge: charge.input),
    ("OUTPUT", lambda charge: charge.output),
    ("CACHED", lambda charge: charge.cache_read + charge.cache_write),
    ("COST", lambda charge: format_usd(charge.cost_micros)),
    ("FROM", lambda charge: charge.source),
]

TOTAL = [
    ("DAY", lambda total: total.day or "ever"),
    ("CHARGES", lambda total: total.charges),
    ("INPUT", lambda total: total.input),
    ("OUTPUT", lambda total: total.output),
    ("CACHED", lambda total: total.cache_read + total.cache_write),
    ("COST", lambda total: format_usd(total.cost_micros)),
    ("WITHOUT COST", lambda total: total.unknown),
]


@click.group("charge", cls=Noun, help="Tokens and money that agents use.")
def command() -> None:
    pass


@command.command("list")
@click.option("--run", metavar="ID", help="Only of this run.")
@click.option("--session", metavar="ID", help="Only of this session.")
@click.option("--project", metavar="ID", help="Only of this project.")
@paging
@pass_app
def list_(app: App, /, project: str | None, **options: Any) -> None:
    """Charges, newest first."""
    page = app.store.charges.list(project=app.project_id(project), **options)
    app.show_page(page, COLUMNS, empty="Nothing was charged yet.")


@command.command()
@click.argument("charge")
@pass_app
def show(app: App, charge: str) -> None:
    """One charge, whole."""
    app.show(app.store.charges.get(charge))


@command.command()
@click.argument("scope", default="all")
@click.option("--day", metavar="DATE", help="On one day only, in UTC: 2027-01-31.")
@pass_app
def total(app: App, scope: str, day: str | None) -> None:
    """What SCOPE has used: all, or run:, session:, project:, agent:, model: and an id or name."""
    app.show(app.store.charges.total(app.scope_id(scope), day=day), TOTAL)


@command.command()
@click.argument("scope", default="all")
@paging
@pass_app
def days(app: App, scope: str, after: str | None, limit: int) -> None:
    """What SCOPE has used, day by day, newest first."""
    page = app.store.charges.days(app.scope_id(scope), after=after, limit=limit)
    app.show_page(page, TOTAL, empty="Nothing was charged yet.")


@command.command()
@click.option("--again", is_flag=True, help="Also models that an older table did not know.")
@pass_app
def price(app: App, again: bool) -> None:
    """Work out what charges cost whose provider did not tell."""
    priced = app.store.charges.price_unknown(again=again)
    app.say(f"Charges that have a cost now: {priced}.", {"priced": priced})
