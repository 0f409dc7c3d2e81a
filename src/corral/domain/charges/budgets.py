"""Budgets: spending limits, and what starting runs reserve of them."""

from corral.db.tx import Tx
from corral.domain.charges import sql
from corral.domain.charges.model import (
    Budget,
    BudgetPeriod,
    BudgetReservation,
    ExceededBudget,
    check_budget,
    describe_scope,
)
from corral.domain.charges.ops import get_total
from corral.domain.charges.scopes import make_scope, name_scope, resolve_scope
from corral.kernel.clock import utc_date
from corral.kernel.errors import NotFound, Refused
from corral.kernel.money import check_micros, format_usd
from corral.kernel.pagination import Page
from corral.kernel.validation import MAX_NAME, check_text


def set_budget(tx: Tx, scope: str, limit_micros: int, *, period: str = "total") -> Budget:
    """Set a spending limit for `all`, a project, an agent or a run; in total or per day.

    Live runs are stopped when it is spent. A run with a budget only starts if that fits into what
    is left.
    """
    kind = check_budget(scope, period)
    scope = resolve_scope(tx, scope)
    limit = check_micros(limit_micros, "The limit")
    tx.run(sql.SET_BUDGET, scope=scope, period=kind, limit_micros=limit, now=tx.now, actor=tx.actor)
    tx.emit(
        "budget",
        "set",
        f"{scope}/{kind}",
        project_id=_parse_project(scope),
        data={"limit_micros": limit},
    )
    return get_budget(tx, scope, period=period)


def get_budget(tx: Tx, scope: str, *, period: str = "total") -> Budget:
    """Return a budget, with what is spent and what is reserved."""
    kind = check_budget(scope, period)
    scope = resolve_scope(tx, scope)
    budget = tx.first(sql.GET_BUDGET, scope=scope, period=kind, today=utc_date(tx.now), run_id="")
    if budget is None:
        raise _not_found_error(scope, kind)
    return budget


def list_budgets(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Budget]:
    """List the budgets by scope, with what is spent and what is reserved."""
    today = utc_date(tx.now)
    return sql.LIST_BUDGETS.page(tx, after=after, limit=limit, today=today, run_id="")


def remove_budget(tx: Tx, scope: str, *, period: str = "total") -> None:
    """Remove a budget."""
    kind = check_budget(scope, period)
    scope = resolve_scope(tx, scope)
    if not tx.run(sql.REMOVE_BUDGET, scope=scope, period=kind):
        raise _not_found_error(scope, kind)
    tx.emit("budget", "remove", f"{scope}/{kind}", project_id=_parse_project(scope))


def delete_budgets_of_scope(tx: Tx, scope: str) -> None:
    """Delete the budgets of a project, agent or run that is being deleted."""
    for (period,) in tx.run(sql.REMOVE_SCOPE, scope=scope):
        tx.emit("budget", "remove", f"{scope}/{period}", project_id=_parse_project(scope))


def reserve_budget(
    tx: Tx,
    run_id: str,
    *,
    project_id: str | None = None,
    agent_id: str | None = None,
    budget_micros: int | None = None,
) -> list[BudgetReservation]:
    """Reserve the budget of a starting run in every budget that covers it, and set it.

    Raises Refused when a covering budget is spent, or when the run's own budget exceeds what is
    left of it. Idempotent: after a restart it reserves what is left.
    """
    check_text(run_id, "The run", max_bytes=MAX_NAME)
    own = None if budget_micros is None else check_micros(budget_micros, "The budget")
    # Serialized: two runs must not both reserve the last dollar.
    tx.serialize("budgets")
    today = utc_date(tx.now)
    covering = tx.all(
        sql.COVERING_BUDGETS,
        project=make_scope("project", project_id),
        agent=make_scope("agent", agent_id),
        today=today,
        run_id=run_id,
    )
    wanted = 0 if own is None else max(own - (get_total(tx, f"run:{run_id}").cost_micros or 0), 0)
    for budget in covering:
        if budget.left_micros <= 0 or wanted > budget.left_micros:
            raise _exceeded_error(tx, budget, wanted)
    if own is None:
        return []
    set_budget(tx, f"run:{run_id}", own)
    return [
        tx.one(
            sql.RESERVE,
            run_id=run_id,
            scope=budget.scope,
            period=budget.period,
            day=today if budget.period is BudgetPeriod.DAY else "",
            amount_micros=own,
        )
        for budget in covering
    ]


def release_budget(tx: Tx, run_id: str) -> bool:
    """Release the reservations and the budget of an ended run; False: it had none."""
    freed = tx.run(sql.RELEASE, run_id=check_text(run_id, "The run", max_bytes=MAX_NAME))
    if freed:
        tx.emit("budget", "release", run_id, data={"scopes": [scope for (scope,) in freed]})
    own = tx.run(sql.REMOVE_BUDGET, scope=f"run:{run_id}", period=BudgetPeriod.TOTAL)
    if own:
        tx.emit("budget", "remove", f"run:{run_id}/{BudgetPeriod.TOTAL}")
    return bool(freed or own)


def find_exceeded_budget(
    tx: Tx,
    run_id: str | None = None,
    project_id: str | None = None,
    agent_id: str | None = None,
    *,
    pending_micros: int | None = 0,
) -> ExceededBudget | None:
    """Return the most specific budget that covers a run and is spent; None: it may continue.

    Without `run_id`, the budgets that would cover a new run of the project and agent are checked.
    `pending_micros` is the cost of usage that is not charged yet. None: unknown; every covering
    budget then counts as spent.
    """
    scopes = [
        None if run_id is None else f"run:{check_text(run_id, 'The run', max_bytes=MAX_NAME)}",
        make_scope("project", project_id),
        make_scope("agent", agent_id),
        "all",
    ]
    spent = tx.all(
        sql.EXCEEDED_BUDGETS,
        run=scopes[0],
        project=scopes[1],
        agent=scopes[2],
        today=utc_date(tx.now),
        pending=pending_micros,
    )
    return min(spent, key=lambda budget: (scopes.index(budget.scope), budget.period), default=None)


def _exceeded_error(tx: Tx, budget: Budget, wanted: int) -> Refused:
    scope = name_scope(tx, budget.scope)
    left = max(budget.left_micros, 0)
    request = f", the run requests {format_usd(wanted)}" if wanted > left else ""
    later = ", or wait until tomorrow" if budget.period is BudgetPeriod.DAY else ""
    return Refused(
        f"The budget of {describe_scope(scope, budget.period)} has {format_usd(left)} left"
        f"{request} ({format_usd(budget.spent_micros)} of {format_usd(budget.limit_micros)} is "
        f"spent, {format_usd(budget.reserved_micros)} reserved by other runs). Give the run a "
        f"smaller budget{later}, or raise this one: `corral budget set {scope} USD --period "
        f"{budget.period}`.",
        scope=budget.scope,
        period=budget.period,
        limit_micros=budget.limit_micros,
        spent_micros=budget.spent_micros,
        reserved_micros=budget.reserved_micros,
        left_micros=left,
        wanted_micros=wanted,
        reason="budget_spent",
    )


def _not_found_error(scope: str, period: BudgetPeriod) -> NotFound:
    return NotFound(
        f"No budget is set for {describe_scope(scope, period)}. List budgets with "
        "`corral budget list`.",
        scope=scope,
        period=period,
    )


def _parse_project(scope: str) -> str | None:
    return scope.removeprefix("project:") if scope.startswith("project:") else None
