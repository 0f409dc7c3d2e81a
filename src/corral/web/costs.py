"""Costs by day, project, agent and model; budgets; outcomes of runs."""

from collections import defaultdict

from starlette.responses import Response

from corral.domain.charges.model import UsageTotal
from corral.domain.insights.model import CostGroup, DailyCost
from corral.kernel.clock import DAY, utc_date
from corral.kernel.errors import Invalid
from corral.web.plots import Plot, PlotSeries, to_dollars
from corral.web.request import PageRequest

SPANS = {"7": 7, "30": 30, "90": 90}
MAX_SERIES = 6


def show(request: PageRequest) -> Response:
    store = request.store
    by, span = request.query("by") or "project", _read_span(request, "30")
    days = [utc_date(store.now() - ago * DAY) for ago in range(SPANS[span] - 1, -1, -1)]
    rows = store.insights.costs(by=by, days=SPANS[span])
    keys = _keys_by_cost(rows)
    names = request.names(keys)
    totals = {total.day: total for total in store.charges.days("all", limit=len(days)).items}
    return request.render(
        "costs.html",
        by=by,
        span=span,
        spans=SPANS,
        kinds=[*CostGroup],
        days=days,
        by_day=Plot(
            "Cost per day",
            "$",
            "bars",
            _timestamps(days),
            [PlotSeries("cost", _costs(days, totals))],
        ),
        by_key=_plot(by, days, rows, keys, names),
        table=_sums(rows, keys),
        totals=totals,
        today=store.charges.total("all", day=days[-1]),
        ever=store.charges.total("all"),
        budgets=store.budgets.list(limit=100),
        charges=store.charges.list(limit=20),
        names=names | _budget_names(request),
    )


def show_outcomes(request: PageRequest) -> Response:
    """Show outcomes of runs. Loaded separately: the query reads every run of the period."""
    by, span = request.query("by") or "project", _read_span(request, "7")
    rows = request.store.insights.stats(by=by, since_ms=SPANS[span] * DAY, limit=50).items
    names = request.names(row.key for row in rows)
    return request.render("run_outcomes.html", rows=rows, by=by, span=span, names=names)


def _read_span(request: PageRequest, default: str) -> str:
    """Return the number of days in the query; raises Invalid unless it is one of SPANS."""
    span = request.query("days") or default
    if span not in SPANS:
        raise Invalid(
            f"Invalid number of days {span!r}: expected one of {', '.join(SPANS)}.", days=span
        )
    return span


def _keys_by_cost(rows: list[DailyCost]) -> list[str]:
    sums: dict[str, int] = defaultdict(int)
    for row in rows:
        sums[row.key] += row.cost_micros or 0
    return sorted(sums, key=lambda key: (-sums[key], key))


def _plot(
    by: str, days: list[str], rows: list[DailyCost], keys: list[str], names: dict[str, str]
) -> Plot:
    """Return one series for each of the most expensive keys, and one for all others."""
    indexes = {day: n for n, day in enumerate(days)}
    series: dict[str, list[float | None]] = {}
    for row in rows:
        label = names.get(row.key, row.key) if row.key in keys[:MAX_SERIES] else "other"
        values = series.setdefault(label, [0.0] * len(days))
        if row.day in indexes:
            values[indexes[row.day]] = (values[indexes[row.day]] or 0) + (
                to_dollars(row.cost_micros) or 0
            )
    ordered = sorted(series.items(), key=lambda pair: -sum(value or 0 for value in pair[1]))
    return Plot(
        f"Cost per {by}",
        "$",
        "stack",
        _timestamps(days),
        [PlotSeries(label, values) for label, values in ordered],
    )


def _sums(rows: list[DailyCost], keys: list[str]) -> list[UsageTotal]:
    """Return the totals by key; a cost stays None if no charge of the key has one."""
    by_key: dict[str, list[DailyCost]] = defaultdict(list)
    for row in rows:
        by_key[row.key].append(row)
    sums = []
    for key in keys:
        known = [row.cost_micros for row in by_key[key] if row.cost_micros is not None]
        tokens = sum(row.tokens for row in by_key[key])
        charges = sum(row.charges for row in by_key[key])
        unpriced = sum(row.unpriced for row in by_key[key])
        cost = sum(known) if known else None
        sums.append(UsageTotal(key, "", charges, unpriced, tokens, 0, 0, 0, 0, cost))
    return sums


def _costs(days: list[str], totals: dict[str, UsageTotal]) -> list[float | None]:
    return [to_dollars(totals[day].cost_micros) if day in totals else 0.0 for day in days]


def _timestamps(days: list[str]) -> list[float]:
    import calendar
    import time

    return [float(calendar.timegm(time.strptime(day, "%Y-%m-%d"))) for day in days]


def _budget_names(request: PageRequest) -> dict[str, str]:
    budgets = request.store.budgets.list(limit=100).items
    return request.names(budget.scope.partition(":")[2] for budget in budgets)
