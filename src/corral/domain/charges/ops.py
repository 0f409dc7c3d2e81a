"""Adding charges, what they add up to, and keeping to budgets."""

from collections.abc import Sequence

from corral.adapters.providers.facts import Used
from corral.db.bulk_transitions import encode_rows
from corral.db.lookup import no_such
from corral.db.tx import Tx
from corral.domain.charges import sql
from corral.domain.charges.counters import Figures, difference, difference_of_cost
from corral.domain.charges.model import (
    Budget,
    Charge,
    Over,
    Period,
    Price,
    Reservation,
    Source,
    Total,
    check_budget,
    check_scope,
    named,
)
from corral.kernel.clock import DAY, day_of
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.ids import number_of
from corral.kernel.money import MOST, check_micros, format_usd
from corral.kernel.pagination import LAST_NUMBER, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, check_int, clean_text

KEPT = sql.KEPT
TOTALS_KEPT = sql.TOTALS_KEPT
COUNTERS_KEPT = sql.COUNTERS_KEPT
# Far more than any report means, and sums of millions of such reports still fit.
MOST_TOKENS = MOST
COST_ALONE = "cost:"
_LAST_DAY = "~"


def add(
    tx: Tx,
    used: Used,
    *,
    run_id: str | None = None,
    session_id: str | None = None,
    project_id: str | None = None,
    agent_id: str | None = None,
    provider: str | None = None,
    at: int | None = None,
) -> Charge | None:
    """Charge what a provider reported; None when there is nothing new in it.

    A report with a key that its run (or else its session) has seen is charged once. With a counter
    its figures are totals, and only what was added since the last report is charged; a counter
    named `cost:…` counts the money alone. The totals are kept in the same transaction.
    """
    figures = _check(used)
    moment = tx.now if at is None else check_int(at, "The moment")
    if not 0 <= moment <= tx.now + DAY:
        raise Invalid("A charge is of the past; give the moment of its use.", at=at)
    values = {
        name: clean_text(value, f"The {name}", most=MAX_NAME) if value else None
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
        # Two readers of one counter would both find the same last figures.
        tx.serialize(f"counter:{clean_text(used.counter, 'The counter', most=MAX_NAME)}")
        if values["key"] and tx.value(
            sql.SEEN, owner=run_id or session_id or "", key=values["key"]
        ):
            return None
        figures = _count(tx, used.counter, figures)
    if figures.empty:
        return None
    charge = tx.one(
        sql.ADD,
        **values,
        **_columns(figures),
        source=None if figures.cost_micros is None else Source.PROVIDER,
        at=moment,
    )
    if charge is None:
        return None
    _add_up(tx, charge, charge.cost_micros, charges=1, unknown=int(charge.cost_micros is None))
    tx.note(
        "charge",
        "add",
        charge.id,
        project_id=project_id,
        data={"run": run_id, "tokens": charge.tokens, "cost_micros": charge.cost_micros},
    )
    return charge


def mark_imported(tx: Tx, ids: Sequence[str]) -> None:
    """Exempt charges from retention, because they were imported."""
    keys = encode_rows([number_of("chg", id) for id in ids])
    tx.run(sql.MARK_IMPORTED, now=tx.now, keys_=keys)


def _check(used: Used) -> Figures:
    """The figures of a report; an agent may have made them up."""
    figures = Figures(
        used.input,
        used.output,
        used.cache_read,
        used.cache_write,
        used.reasoning,
        used.cost_micros,
    )
    for tokens in figures.tokens:
        if not 0 <= check_int(tokens, "A number of tokens") <= MOST_TOKENS:
            raise Invalid(f"{tokens} is no number of tokens that can be charged.", value=tokens)
    if figures.cost_micros is not None:
        check_micros(figures.cost_micros, "The cost")
    return figures


def _count(tx: Tx, counter: str, figures: Figures) -> Figures:
    """What is new since the counter's last report, which this one takes the place of."""
    last = tx.one(sql.COUNTER, name=counter)
    tx.run(sql.SET_COUNTER, name=counter, now=tx.now, **_columns(figures))
    compare = difference_of_cost if counter.startswith(COST_ALONE) else difference
    return compare(last, figures)


def _columns(figures: Figures) -> dict[str, int | None]:
    return {name: getattr(figures, name) for name in figures.__struct_fields__}


def _add_up(tx: Tx, charge: Charge, cost: int | None, *, charges: int, unknown: int) -> None:
    """Add a charge to everything that it belongs to; or, with no charge, its cost alone."""
    tx.run(
        sql.ADD_UP,
        now=tx.now,
        day=day_of(charge.at),
        run=_scope("run", charge.run_id),
        session=_scope("session", charge.session_id),
        project=_scope("project", charge.project_id),
        agent=_scope("agent", charge.agent_id),
        model=_scope("model", charge.model),
        charges=charges,
        unknown=unknown,
        input=charge.input * charges,
        output=charge.output * charges,
        cache_read=charge.cache_read * charges,
        cache_write=charge.cache_write * charges,
        reasoning=charge.reasoning * charges,
        cost_micros=cost or 0,
    )


def _scope(kind: str, id: str | None) -> str | None:
    return f"{kind}:{id}" if id else None


def unpriced(
    tx: Tx, *, version: str | None = None, after: str | None = None, limit: int = 100
) -> Page[Charge]:
    """Charges of known models without a cost, oldest first, that no table of prices was asked for.

    With a version: those that a table of another version did not know.
    """
    (seq,) = decode_cursor(after, 0)
    query = sql.UNPRICED if version is None else sql.UNPRICED_BEFORE
    rows = tx.all(query, version=version, after=seq, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda charge: (number_of("chg", charge.id),))


def set_prices(tx: Tx, prices: Sequence[Price]) -> list[Charge]:
    """Give charges the cost that a table of prices tells, once each; says which were changed.

    A charge that has a cost by now is left as it is.
    """
    check_limit(len(prices) or 1)
    tx.serialize("prices")
    changed = []
    for price in prices:
        seq = number_of("chg", price.id)
        version = clean_text(price.version, "The version", most=MAX_NAME)
        if price.cost_micros is None:
            tx.run(sql.TRIED, seq=seq, version=version)
            continue
        cost = check_micros(price.cost_micros, "The cost")
        charge = tx.one(sql.PRICE, seq=seq, cost_micros=cost, version=version)
        if charge is None:
            continue
        _add_up(tx, charge, cost, charges=0, unknown=-1)
        tx.note(
            "charge",
            "price",
            charge.id,
            project_id=charge.project_id,
            data={"run": charge.run_id, "cost_micros": cost, "prices": version},
        )
        changed.append(charge)
    return changed


def get(tx: Tx, id: str) -> Charge:
    """A charge by its id."""
    found = tx.one(sql.GET, seq=number_of("chg", id))
    if found is None:
        raise no_such("charge", id)
    return found


def list_charges(
    tx: Tx,
    *,
    run: str | None = None,
    session: str | None = None,
    project: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Charge]:
    """Charges, newest first: all, or those of one run, session or project."""
    given = {"run": run, "session": session, "project": project}
    asked = [(kind, id) for kind, id in given.items() if id]
    if len(asked) > 1:
        raise Invalid("Give a run, a session or a project, not several.")
    (before,) = decode_cursor(after, LAST_NUMBER)
    if asked:
        kind, id = asked[0]
        found = _find_id(tx, kind, id)
        rows = tx.all(sql.OF[kind], id=found, before=before, limit=check_limit(limit) + 1)
    else:
        rows = tx.all(sql.ALL, before=before, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda charge: (number_of("chg", charge.id),))


def _find_id(tx: Tx, kind: str, given: str) -> str:
    if kind == "project":
        from corral.domain.projects import ops as projects  # not for a keeper, which only charges

        return projects.find_id(tx, given)
    return (sql.RUN_IDS if kind == "run" else sql.SESSION_IDS).find(tx, given)


def total(tx: Tx, scope: str = "all", *, day: str | None = None) -> Total:
    """What the charges of a scope add up to, since ever or on one day (2027-01-31, in UTC)."""
    scope = _by_id(tx, check_scope(scope))
    key = clean_text(day, "The day", most=MAX_NAME) if day else ""
    return tx.one(sql.TOTAL, scope=scope, day=key) or Total(scope, key, 0, 0, 0, 0, 0, 0, 0, None)


def days(tx: Tx, scope: str = "all", *, after: str | None = None, limit: int = 50) -> Page[Total]:
    """What the charges of everything, a project, an agent or a model add up to, day by day,
    newest first."""
    scope = _by_id(tx, check_scope(scope))
    (before,) = decode_cursor(after, _LAST_DAY)
    rows = tx.all(sql.DAYS, scope=scope, before=before, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda found: (found.day,))


# -- budgets --------------------------------------------------------------------------------------


def set_budget(tx: Tx, scope: str, limit_micros: int, *, period: str = "total") -> Budget:
    """Say what may be spent: by everything (`all`), a project, an agent or a run; in all, or a day.

    Runs that go on are stopped when it is spent; those that start must fit into what is left.
    """
    kind = check_budget(scope, period)
    scope = _by_id(tx, scope)
    limit = check_micros(limit_micros, "The limit")
    tx.run(sql.SET_BUDGET, scope=scope, period=kind, limit_micros=limit, now=tx.now, actor=tx.actor)
    tx.note(
        "budget",
        "set",
        f"{scope}/{kind}",
        project_id=_project_of(scope),
        data={"limit_micros": limit},
    )
    return get_budget(tx, scope, period=period)


def get_budget(tx: Tx, scope: str, *, period: str = "total") -> Budget:
    """A budget, with what is spent of it and what is reserved."""
    kind = check_budget(scope, period)
    scope = _by_id(tx, scope)
    found = tx.one(sql.GET_BUDGET, scope=scope, period=kind, today=day_of(tx.now), run_id="")
    if found is None:
        raise _no_budget(scope, kind)
    return found


def list_budgets(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Budget]:
    """Budgets by scope, with what is spent of each and what is reserved."""
    scope, period = decode_cursor(after, "", "")
    rows = tx.all(
        sql.LIST_BUDGETS,
        scope=scope,
        period=period,
        limit=check_limit(limit) + 1,
        today=day_of(tx.now),
        run_id="",
    )
    return page_of(rows, limit, lambda budget: (budget.scope, budget.period))


def remove_budget(tx: Tx, scope: str, *, period: str = "total") -> None:
    """Take a budget back: what it covered is not limited by it any more."""
    kind = check_budget(scope, period)
    scope = _by_id(tx, scope)
    if not tx.run(sql.REMOVE_BUDGET, scope=scope, period=kind):
        raise _no_budget(scope, kind)
    tx.note("budget", "remove", f"{scope}/{kind}", project_id=_project_of(scope))


def forget_scope(tx: Tx, scope: str) -> None:
    """Drop the budgets of a project, agent or run that is being deleted."""
    for (period,) in tx.run(sql.REMOVE_SCOPE, scope=scope):
        tx.note("budget", "remove", f"{scope}/{period}", project_id=_project_of(scope))


def reserve(
    tx: Tx,
    run_id: str,
    *,
    project_id: str | None = None,
    agent_id: str | None = None,
    budget_micros: int | None = None,
) -> list[Reservation]:
    """Promise a run that starts what it may spend, out of every budget that covers it.

    Refused when one of these is spent, or the run's own budget does not fit into what is left of
    it. The run's own budget is set as well. Asking again, after a restart, promises what is left.
    """
    clean_text(run_id, "The run", most=MAX_NAME)
    own = None if budget_micros is None else check_micros(budget_micros, "The budget")
    # Two that ask for the last dollar would both find it.
    tx.serialize("budgets")
    today = day_of(tx.now)
    covering = tx.all(
        sql.COVERING,
        project=_scope("project", project_id),
        agent=_scope("agent", agent_id),
        today=today,
        run_id=run_id,
    )
    wanted = 0 if own is None else max(own - (total(tx, f"run:{run_id}").cost_micros or 0), 0)
    for budget in covering:
        if budget.left_micros <= 0 or wanted > budget.left_micros:
            raise _refusal(tx, budget, wanted)
    if own is None:
        return []
    set_budget(tx, f"run:{run_id}", own)
    reserved = [
        tx.one(
            sql.RESERVE,
            run_id=run_id,
            scope=budget.scope,
            period=budget.period,
            day=today if budget.period is Period.DAY else "",
            micros=own,
        )
        for budget in covering
    ]
    return [reservation for reservation in reserved if reservation is not None]


def release(tx: Tx, run_id: str) -> bool:
    """Give back what a run that has ended was promised and did not spend; False: nothing was."""
    freed = tx.run(sql.RELEASE, run_id=clean_text(run_id, "The run", most=MAX_NAME))
    if freed:
        tx.note("budget", "release", run_id, data={"scopes": [scope for (scope,) in freed]})
    own = tx.run(sql.REMOVE_BUDGET, scope=f"run:{run_id}", period=Period.TOTAL)
    if own:
        tx.note("budget", "remove", f"run:{run_id}/{Period.TOTAL}")
    return bool(freed or own)


def over_budget(
    tx: Tx,
    run_id: str,
    project_id: str | None = None,
    agent_id: str | None = None,
    *,
    pending_micros: int | None = 0,
) -> Over | None:
    """The budget that stops a run: the nearest of those that cover it and are spent.

    `pending_micros` is the cost of usage that is not charged yet. None: unknown; every budget that
    covers the run then counts as spent.
    """
    scopes = [
        f"run:{clean_text(run_id, 'The run', most=MAX_NAME)}",
        _scope("project", project_id),
        _scope("agent", agent_id),
        "all",
    ]
    spent = tx.all(
        sql.OVER,
        run=scopes[0],
        project=scopes[1],
        agent=scopes[2],
        today=day_of(tx.now),
        pending=pending_micros,
    )
    return min(spent, key=lambda over: (scopes.index(over.scope), over.period), default=None)


def _refusal(tx: Tx, budget: Budget, wanted: int) -> Refused:
    scope = _for_people(tx, budget.scope)
    of = named(scope, budget.period)
    left = max(budget.left_micros, 0)
    asks = f" and the run asks for {format_usd(wanted)}" if wanted > left else ""
    later = " or wait until tomorrow" if budget.period is Period.DAY else ""
    return Refused(
        f"The budget of {of} has {format_usd(left)} left{asks} "
        f"({format_usd(budget.spent_micros)} of {format_usd(budget.limit_micros)} is spent, "
        f"{format_usd(budget.reserved_micros)} reserved by other runs); give the run a smaller "
        f"budget{later}, or raise this one: `corral budget set {scope} USD --period "
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


def _no_budget(scope: str, period: Period) -> NotFound:
    return NotFound(
        f"There is no budget of {named(scope, period)}; `corral budget list` shows all there are.",
        scope=scope,
        period=period,
    )


def _by_id(tx: Tx, scope: str) -> str:
    """A scope as it is charged and counted: an agent that was named by its name, by its id.

    What nobody is called is refused: a budget for it would hold nobody back.
    """
    kind, _, name = scope.partition(":")
    if kind != "agent" or name.startswith("agt_"):
        return scope
    from corral.domain.agents import ops as agents  # not for a keeper, which only charges

    return f"agent:{agents.get(tx, name).id}"


def _for_people(tx: Tx, scope: str) -> str:
    """A scope with the name of its agent, which may be typed in again."""
    kind, _, id = scope.partition(":")
    if kind != "agent":
        return scope
    from corral.domain.agents import ops as agents  # not for a keeper, which only charges

    try:
        return f"agent:{agents.get(tx, id).name}"
    except NotFound:
        return scope


def _project_of(scope: str) -> str | None:
    return scope.removeprefix("project:") if scope.startswith("project:") else None
