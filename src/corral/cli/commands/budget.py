import click

from corral.cli.app import App, Columns, Noun, paging, pass_app
from corral.cli.render import ago
from corral.kernel.money import format_usd, parse_usd


def _columns(app: App) -> Columns:
    return [
        ("SCOPE", lambda budget: app.scope_name(budget.scope)),
        ("PERIOD", lambda budget: budget.period),
        ("LIMIT", lambda budget: format_usd(budget.limit_micros)),
        ("SPENT", lambda budget: format_usd(budget.spent_micros)),
        ("RESERVED", lambda budget: format_usd(budget.reserved_micros)),
        ("LEFT", lambda budget: format_usd(max(budget.left_micros, 0))),
        ("SET", lambda budget: ago(budget.updated_at)),
        ("BY", lambda budget: budget.updated_by),
    ]


period_option = click.option(
    "--period",
    type=click.Choice(["total", "day"]),
    default="total",
    show_default=True,
    help="Once and for all, or anew each day (UTC).",
)


@click.group("budget", cls=Noun, help="What may be spent.")
def command() -> None:
    pass


@command.command("set")
@click.argument("scope")
@click.argument("usd")
@period_option
@pass_app
def set_(app: App, scope: str, usd: str, period: str) -> None:
    """Let SCOPE (all, a project's directory, project:ID, agent:NAME, run:ID) spend USD dollars."""
    budget = app.store.budgets.set(app.scope_id(scope), parse_usd(usd), period=period)
    each = " a day" if budget.period == "day" else ""
    app.say(
        f"{app.scope_name(budget.scope)} may spend {format_usd(budget.limit_micros)}{each}; "
        f"{format_usd(budget.spent_micros)} is spent.",
        budget,
    )


@command.command("list")
@paging
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """Budgets, with what is spent of each and what is reserved."""
    page = app.store.budgets.list(after=after, limit=limit)
    app.show_page(
        page, _columns(app), empty="There is no budget; `corral budget set all 10` makes one."
    )


@command.command()
@click.argument("scope")
@period_option
@pass_app
def remove(app: App, scope: str, period: str) -> None:
    """Take a budget back."""
    whole = app.scope_id(scope)
    app.store.budgets.remove(whole, period=period)
    app.say(
        f"{app.scope_name(whole)} has no such budget any more.", {"scope": whole, "period": period}
    )
