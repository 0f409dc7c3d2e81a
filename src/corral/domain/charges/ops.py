"""Add charges, maintain their totals, and enforce budgets."""

from collections.abc import Sequence

from corral.adapters.providers.facts import UsageFact
from corral.db.lookup import not_found
from corral.db.transitions import encode_rows
from corral.db.tx import Tx
from corral.domain.charges import sql
from corral.domain.charges.counters import UsageFigures, compute_cost_delta, compute_delta
from corral.domain.charges.model import (
    Budget,
    BudgetPeriod,
    BudgetReservation,
    Charge,
    ChargePrice,
    CostSource,
    ExceededBudget,
    UsageTotal,
    check_budget,
    check_scope,
    describe_scope,
)
from corral.kernel.clock import DAY, utc_date
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.ids import parse_number
from corral.kernel.money import MAX_MICROS, check_micros, format_usd
from corral.kernel.pagination import Page, check_limit
from corral.kernel.text import MAX_NAME, check_int, check_optional_text, check_text

RETENTION = sql.RETENTION
TOTALS_RETENTION = sql.TOTALS_RETENTION
COUNTERS_RETENTION = sql.COUNTERS_RETENTION
# Far above any real report, and small enough that sums of millions of reports fit into 64 bits.
MAX_TOKENS = MAX_MICROS
COST_COUNTER_PREFIX = "cost:"


def add(
    tx: Tx,
    used: UsageFact,
    *,
    run_id: str | None = None,
    session_id: str | None = None,
    project_id: str | None = None,
    agent_id: str | None = None,
    provider: str | None = None,
    at: int | None = None,
) -> Charge | None:
    """Charge a provider's usage report; None when it contains nothing new.

    Idempotent by the report's key within its run, or else its session. With a counter the figures
    are cumulative, and only the delta to the last report is charged; for a counter named `cost:…`
    only the cost is cumulative. The totals are updated in the same transaction.
    """
    figures = _check_report(used)
    time = _check_time(tx, at)
    values = {
        name: check_optional_text(value, f"The {name}", max_bytes=MAX_NAME)
        for name, value in (
            ("run_id", run_id),
            ("session_id", session_id),
            ("project_id", project_id),
            ("agent_id", agent_id),
            ("provider", provider),
            ("model", used.model),
            ("key", used.key),
        )
    }
    if used.counter is not None:
        # Serialized: two concurrent readers would compute their delta from the same last report.
        tx.serialize(f"counter:{check_text(used.counter, 'The counter', max_bytes=MAX_NAME)}")
        if values["key"] and tx.value(
            sql.KEY_EXISTS, owner=run_id or session_id or "", key=values["key"]
        ):
            return None
        figures = _advance_counter(tx, used.counter, figures)
    if figures.empty:
        return None
    charge = tx.first(
        sql.ADD,
        **values,
        **_to_columns(figures),
        source=None if figures.cost_micros is None else CostSource.PROVIDER,
        at=time,
    )
    if charge is None:
        return None
    _add_to_totals(
        tx, charge, charge.cost_micros, charges=1, unpriced=int(charge.cost_micros is None)
    )
    tx.emit(
        "charge",
        "add",
        charge.id,
        project_id=project_id,
        data={"run": run_id, "tokens": charge.tokens, "cost_micros": charge.cost_micros},
    )
    return charge


def mark_imported(tx: Tx, ids: Sequence[str]) -> None:
    """Exempt charges from retention, because they were imported."""
    keys = encode_rows([parse_number("chg", id) for id in ids])
    tx.run(sql.MARK_IMPORTED, now=tx.now, keys_=keys)


def _check_report(used: UsageFact) -> UsageFigures:
    """Return the figures of a report; raises Invalid, because an agent can report anything."""
    figures = UsageFigures(
        used.input,
        used.output,
        used.cache_read,
        used.cache_write,
        used.reasoning,
        used.cost_micros,
    )
    for tokens in figures.tokens:
        if not 0 <= check_int(tokens, "A number of tokens") <= MAX_TOKENS:
            raise Invalid(f"Invalid token count {tokens}.", value=tokens)
    if figures.cost_micros is not None:
        check_micros(figures.cost_micros, "The cost")
    return figures


def _check_time(tx: Tx, at: int | None) -> int:
    """Return the time of a charge, by default now; a day ahead is allowed for other clocks."""
    time = tx.now if at is None else check_int(at, "The time")
    if not 0 <= time <= tx.now + DAY:
        raise Invalid("Invalid time of a charge: it must not be in the future.", at=at)
    return time


def _advance_counter(tx: Tx, counter: str, figures: UsageFigures) -> UsageFigures:
    """Store a counter's report and return the delta to the previous one."""
    last = tx.first(sql.COUNTER, name=counter)
    tx.run(sql.SET_COUNTER, name=counter, now=tx.now, **_to_columns(figures))
    compare = compute_cost_delta if counter.startswith(COST_COUNTER_PREFIX) else compute_delta
    return compare(last, figures)


def _to_columns(figures: UsageFigures) -> dict[str, int | None]:
    return {name: getattr(figures, name) for name in figures.__struct_fields__}


def _add_to_totals(
    tx: Tx, charge: Charge, cost: int | None, *, charges: int, unpriced: int
) -> None:
    """Add a charge to the totals of all its scopes; with `charges=0` add only its cost."""
    tx.run(
        sql.ADD_TO_TOTALS,
        now=tx.now,
        day=utc_date(charge.at),
        run=_make_scope("run", charge.run_id),
        session=_make_scope("session", charge.session_id),
        project=_make_scope("project", charge.project_id),
        agent=_make_scope("agent", charge.agent_id),
        model=_make_scope("model", charge.model),
        charges=charges,
        unpriced=unpriced,
        input=charge.input * charges,
        output=charge.output * charges,
        cache_read=charge.cache_read * charges,
        cache_write=charge.cache_write * charges,
        reasoning=charge.reasoning * charges,
        cost_micros=cost or 0,
    )


def _make_scope(kind: str, id: str | None) -> str | None:
    return f"{kind}:{id}" if id else None


def list_unpriced(
    tx: Tx, *, version: str | None = None, after: str | None = None, limit: int = 100
) -> Page[Charge]:
    """List the charges of known models without a cost that no price table was tried on.

    Oldest first. With `version`: those that a price table of another version did not know.
    """
    if version is None:
        return sql.UNPRICED.page(tx, after=after, limit=limit)
    return sql.UNPRICED_BEFORE.page(tx, after=after, limit=limit, version=version)


def set_prices(tx: Tx, prices: Sequence[ChargePrice]) -> list[Charge]:
    """Set the cost of charges from a price table; returns the changed charges.

    A charge that already has a cost is left unchanged.
    """
    check_limit(len(prices) or 1)
    tx.serialize("prices")
    changed = []
    for price in prices:
        seq = parse_number("chg", price.id)
        version = check_text(price.version, "The version", max_bytes=MAX_NAME)
        if price.cost_micros is None:
            tx.run(sql.SET_PRICES_VERSION, seq=seq, version=version)
            continue
        cost = check_micros(price.cost_micros, "The cost")
        charge = tx.first(sql.SET_COST, seq=seq, cost_micros=cost, version=version)
        if charge is None:
            continue
        _add_to_totals(tx, charge, cost, charges=0, unpriced=-1)
        tx.emit(
            "charge",
            "price",
            charge.id,
            project_id=charge.project_id,
            data={"run": charge.run_id, "cost_micros": cost, "prices": version},
        )
        changed.append(charge)
    return changed


def get(tx: Tx, id: str) -> Charge:
    """Return a charge by its id."""
    charge = tx.first(sql.GET, seq=parse_number("chg", id))
    if charge is None:
        raise not_found("charge", id)
    return charge


def list_charges(
    tx: Tx,
    *,
    run: str | None = None,
    session: str | None = None,
    project: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Charge]:
    """List charges, newest first: all, or those of one run, session or project."""
    scopes = {"run": run, "session": session, "project": project}
    filters = [(kind, id) for kind, id in scopes.items() if id]
    if len(filters) > 1:
        raise Invalid("run, session and project cannot be combined. Give one of them.")
    if not filters:
        return sql.ALL.page(tx, after=after, limit=limit)
    kind, id = filters[0]
    return sql.LISTS[kind].page(tx, after=after, limit=limit, id=_find_id(tx, kind, id))


def _find_id(tx: Tx, kind: str, reference: str) -> str:
    if kind == "project":
        from corral.domain.projects import ops as projects  # keeps the supervisor's imports small

        return projects.find_id(tx, reference)
    return (sql.RUN_IDS if kind == "run" else sql.SESSION_IDS).find(tx, reference)


def get_total(tx: Tx, scope: str = "all", *, day: str | None = None) -> UsageTotal:
    """Return the total of a scope, over all time or on one day (2027-01-31, in UTC)."""
    scope = _resolve_scope(tx, check_scope(scope))
    key = check_text(day, "The day", max_bytes=MAX_NAME) if day else ""
    return tx.first(sql.TOTAL, scope=scope, day=key) or UsageTotal(
        scope, key, 0, 0, 0, 0, 0, 0, 0, None
    )


def list_daily_totals(
    tx: Tx, scope: str = "all", *, after: str | None = None, limit: int = 50
) -> Page[UsageTotal]:
    """List the totals of a scope by day, newest first; runs and sessions have none by day."""
    scope = _resolve_scope(tx, check_scope(scope))
    return sql.DAYS.page(tx, after=after, limit=limit, scope=scope)


# -- budgets --------------------------------------------------------------------------------------


def set_budget(tx: Tx, scope: str, limit_micros: int, *, period: str = "total") -> Budget:
    """Set a spending limit for `all`, a project, an agent or a run; in total or per day.

    Live runs are stopped when it is spent. A run with a budget only starts if that fits into what
    is left.
    """
    kind = check_budget(scope, period)
    scope = _resolve_scope(tx, scope)
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
    scope = _resolve_scope(tx, scope)
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
    scope = _resolve_scope(tx, scope)
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
        project=_make_scope("project", project_id),
        agent=_make_scope("agent", agent_id),
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
    run_id: str,
    project_id: str | None = None,
    agent_id: str | None = None,
    *,
    pending_micros: int | None = 0,
) -> ExceededBudget | None:
    """Return the most specific budget that covers a run and is spent; None: it may continue.

    `pending_micros` is the cost of usage that is not charged yet. None: unknown; every covering
    budget then counts as spent.
    """
    scopes = [
        f"run:{check_text(run_id, 'The run', max_bytes=MAX_NAME)}",
        _make_scope("project", project_id),
        _make_scope("agent", agent_id),
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
    scope = _describe_scope(tx, budget.scope)
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


def _resolve_scope(tx: Tx, scope: str) -> str:
    """Replace the name of an agent in a scope by its id, which charges are counted by.

    Raises NotFound for an unknown agent: a budget for it would never apply.
    """
    kind, _, name = scope.partition(":")
    if kind != "agent" or name.startswith("agt_"):
        return scope
    from corral.domain.agents import ops as agents  # keeps the supervisor's imports small

    return f"agent:{agents.get(tx, name).id}"


def _describe_scope(tx: Tx, scope: str) -> str:
    """Replace the id of an agent in a scope by its name."""
    kind, _, id = scope.partition(":")
    if kind != "agent":
        return scope
    from corral.domain.agents import ops as agents  # keeps the supervisor's imports small

    try:
        return f"agent:{agents.get(tx, id).name}"
    except NotFound:
        return scope


def _parse_project(scope: str) -> str | None:
    return scope.removeprefix("project:") if scope.startswith("project:") else None
