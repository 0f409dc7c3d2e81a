"""Add charges, and maintain their totals."""

from collections.abc import Sequence

from corral.adapters.providers.facts import UsageFact
from corral.db.lookup import not_found
from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.charges import sql
from corral.domain.charges.counters import UsageFigures, compute_cost_delta, compute_delta
from corral.domain.charges.model import (
    Charge,
    ChargePrice,
    CostSource,
    UsageTotal,
    check_scope,
)
from corral.domain.charges.scopes import make_scope, resolve_scope
from corral.kernel.clock import DAY, utc_date
from corral.kernel.errors import Invalid
from corral.kernel.ids import parse_number
from corral.kernel.money import MAX_MICROS, check_micros
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import MAX_NAME, check_int, check_optional_text, check_text

RETENTION = sql.RETENTION
TOTALS_RETENTION = sql.TOTALS_RETENTION
COUNTERS_RETENTION = sql.COUNTERS_RETENTION
# Far above any real report, and small enough that sums of millions of reports fit into 64 bits.
MAX_TOKENS = MAX_MICROS
COST_COUNTER_PREFIX = "cost:"


def add(
    tx: Tx,
    report: UsageFact,
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
    figures = _check_report(report)
    time = _check_time(tx, at)
    values = {
        name: check_optional_text(value, f"The {name}", max_bytes=MAX_NAME)
        for name, value in (
            ("run_id", run_id),
            ("session_id", session_id),
            ("project_id", project_id),
            ("agent_id", agent_id),
            ("provider", provider),
            ("model", report.model),
            ("key", report.key),
        )
    }
    if report.counter is not None:
        # Serialized: two concurrent readers would compute their delta from the same last report.
        tx.serialize(f"counter:{check_text(report.counter, 'The counter', max_bytes=MAX_NAME)}")
        if values["key"] and tx.value(
            sql.KEY_EXISTS, owner=run_id or session_id or "", key=values["key"]
        ):
            return None
        figures = _advance_counter(tx, report.counter, figures)
    if figures.is_empty:
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


def _check_report(report: UsageFact) -> UsageFigures:
    """Return the figures of a report; raises Invalid, because an agent can report anything."""
    figures = UsageFigures(
        report.input,
        report.output,
        report.cache_read,
        report.cache_write,
        report.reasoning,
        report.cost_micros,
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
        run=make_scope("run", charge.run_id),
        session=make_scope("session", charge.session_id),
        project=make_scope("project", charge.project_id),
        agent=make_scope("agent", charge.agent_id),
        model=make_scope("model", charge.model),
        charges=charges,
        unpriced=unpriced,
        input=charge.input * charges,
        output=charge.output * charges,
        cache_read=charge.cache_read * charges,
        cache_write=charge.cache_write * charges,
        reasoning=charge.reasoning * charges,
        cost_micros=cost or 0,
    )


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
    scope = resolve_scope(tx, check_scope(scope))
    key = check_text(day, "The day", max_bytes=MAX_NAME) if day else ""
    return tx.first(sql.TOTAL, scope=scope, day=key) or UsageTotal(
        scope, key, 0, 0, 0, 0, 0, 0, 0, None
    )


def list_daily_totals(
    tx: Tx, scope: str = "all", *, after: str | None = None, limit: int = 50
) -> Page[UsageTotal]:
    """List the totals of a scope by day, newest first; runs and sessions have none by day."""
    scope = resolve_scope(tx, check_scope(scope))
    return sql.DAYS.page(tx, after=after, limit=limit, scope=scope)
