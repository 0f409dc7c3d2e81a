"""`corral budget`: limit spending."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app
from corral.cli.parameters import USD
from corral.cli.render import format_age
from corral.kernel.money import format_usd


def _columns(app: App) -> Columns:
    return [
        Column("SCOPE", lambda budget: app.scope_name(budget.scope)),
        Column("PERIOD", lambda budget: budget.period),
        Column("LIMIT", lambda budget: format_usd(budget.limit_micros)),
        Column("SPENT", lambda budget: format_usd(budget.spent_micros)),
        Column("RESERVED", lambda budget: format_usd(budget.reserved_micros)),
        Column("LEFT", lambda budget: format_usd(max(budget.left_micros, 0))),
        Column("SET", lambda budget: format_age(budget.updated_at)),
        Column("BY", lambda budget: budget.updated_by),
    ]


period_option = click.option(
    "--period",
    type=click.Choice(["total", "day"]),
    default="total",
    show_default=True,
    help="Total budget, or budget per day in UTC.",
)


@click.group("budget", cls=CommandGroup, help="Limit spending.")
def command() -> None:
    pass


@command.command(
    "set",
    examples=["corral budget set all 50 --period day", "corral budget set agent:ada 5"],
)
@click.argument("scope")
@click.argument("limit_micros", metavar="USD", type=USD)
@period_option
@pass_app
def set_(app: App, scope: str, limit_micros: int, period: str) -> None:
    """Limit the spending of SCOPE to USD dollars.

    SCOPE is all, a project's directory, project:ID, agent:NAME or run:ID.
    """
    budget = app.store.budgets.set(app.scope_id(scope), limit_micros, period=period)
    per_day = " per day" if budget.period == "day" else ""
    app.report(
        f"Budget of {app.scope_name(budget.scope)}: {format_usd(budget.limit_micros)}{per_day}, "
        f"{format_usd(budget.spent_micros)} spent.",
        budget,
    )


@command.command("list")
@paging_options
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """List budgets with the spent and reserved amounts."""
    page = app.store.budgets.list(after=after, limit=limit)
    app.show_page(page, _columns(app), empty="No budgets. Set one with `corral budget set all 10`.")


@command.command()
@click.argument("scope")
@period_option
@pass_app
def remove(app: App, scope: str, period: str) -> None:
    """Remove a budget."""
    scope_id = app.scope_id(scope)
    app.store.budgets.remove(scope_id, period=period)
    app.report(
        f"Removed the budget of {app.scope_name(scope_id)}.",
        {"scope": scope_id, "period": period},
    )
