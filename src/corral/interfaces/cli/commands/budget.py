import click

from corral.interfaces.cli.app import App, Noun, paging, pass_app
from corral.interfaces.cli.render import ago
from corral.kernel.money import format_usd, parse_usd

COLUMNS = [
    ("SCOPE", lambda budget: budget.scope),
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
    """Let SCOPE (all, project:ID, a project's directory, agent:ID, run:ID) spend USD dollars."""
    budget = app.store.budgets.set(_scope(app, scope), parse_usd(usd), period=period)
    each = " a day" if budget.period == "day" else ""
    app.say(
        f"{budget.scope} may spend {format_usd(budget.limit_micros)}{each}; "
        f"{format_usd(budget.spent_micros)} is spent.",
        budget,
    )


@command.command("list")
@paging
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """Budgets, with what is spent of each and what is reserved."""
    page = app.store.budgets.list(after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="There is no budget; `corral budget set all 10` makes one.")


@command.command()
@click.argument("scope")
@period_option
@pass_app
def remove(app: App, scope: str, period: str) -> None:
    """Take a budget back."""
    whole = _scope(app, scope)
    app.store.budgets.remove(whole, period=period)
    app.say(f"{whole} has no such budget any more.", {"scope": whole, "period": period})


def _scope(app: App, typed: str) -> str:
    """A project may be named by its directory, or by a part of its id."""
    kind, _, name = typed.partition(":")
    if kind == "project" and name:
        return f"project:{app.project_id(name)}"
    is_place = typed in (".", "..") or "/" in typed
    return f"project:{app.project_id(typed)}" if is_place else typed
