"""Costs: by day, and by project, agent and model; budgets; how runs went."""

from collections import defaultdict

from starlette.responses import Response

from corral.domain.charges.model import Total
from corral.domain.insights.model import Cost, CostBy
from corral.kernel.clock import DAY, day_of
from corral.kernel.errors import Invalid
from corral.web.plots import Line, Plot, dollars
from corral.web.request import Visit

SPANS = {"7": 7, "30": 30, "90": 90}
MOST_LINES = 6


def show(visit: Visit) -> Response:
    store = visit.store
    by, span = visit.asked("by") or "project", visit.asked("days") or "30"
    if span not in SPANS:
        raise Invalid(f"{span!r} is none of {', '.join(SPANS)} days.", days=span)
    days = [day_of(store.now() - ago * DAY) for ago in range(SPANS[span] - 1, -1, -1)]
    rows = store.insights.costs(by=by, days=SPANS[span])
    keys = _costliest(rows)
    names = visit.names(keys)
    totals = {total.day: total for total in store.charges.days("all", limit=len(days)).items}
    return visit.show(
        "costs.html",
        by=by,
        span=span,
        spans=SPANS,
        kinds=[*CostBy],
        days=days,
        by_day=Plot(
            "Cost by day", "$", "bars", _moments(days), [Line("cost", _costs(days, totals))]
        ),
        by_key=_plot(by, days, rows, keys, names),
        table=_sums(rows, keys),
        totals=totals,
        today=store.charges.total("all", day=days[-1]),
        ever=store.charges.total("all"),
        budgets=store.budgets.list(limit=100),
        charges=store.charges.list(limit=20),
        names=names | _budget_names(visit),
    )


def show_outcomes(visit: Visit) -> Response:
    """How runs went; asked for apart, because it looks at every run of its time."""
    by, span = visit.asked("by") or "project", visit.asked("days") or "7"
    if span not in SPANS:
        raise Invalid(f"{span!r} is none of {', '.join(SPANS)} days.", days=span)
    rows = visit.store.insights.stats(by=by, since_ms=SPANS[span] * DAY, limit=50).items
    names = visit.names(row.key for row in rows)
    return visit.show("outcomes.html", rows=rows, by=by, span=span, names=names)


def _costliest(rows: list[Cost]) -> list[str]:
    sums: dict[str, int] = defaultdict(int)
    for row in rows:
        sums[row.key] += row.cost_micros or 0
    return sorted(sums, key=lambda key: (-sums[key], key))


def _plot(
    by: str, days: list[str], rows: list[Cost], keys: list[str], names: dict[str, str]
) -> Plot:
    """A line for each of the costliest; all others are one line more."""
    places = {day: n for n, day in enumerate(days)}
    lines: dict[str, list[float | None]] = {}
    for row in rows:
        label = names.get(row.key, row.key) if row.key in keys[:MOST_LINES] else "all others"
        line = lines.setdefault(label, [0.0] * len(days))
        if row.day in places:
            line[places[row.day]] = (line[places[row.day]] or 0) + (dollars(row.cost_micros) or 0)
    ordered = sorted(lines.items(), key=lambda pair: -sum(value or 0 for value in pair[1]))
    return Plot(
        f"Cost by {by}",
        "$",
        "stack",
        _moments(days),
        [Line(label, values) for label, values in ordered],
    )


def _sums(rows: list[Cost], keys: list[str]) -> list[Total]:
    """What each key cost over the whole time; a cost that nobody knows stays unknown."""
    found: dict[str, list[Cost]] = defaultdict(list)
    for row in rows:
        found[row.key].append(row)
    sums = []
    for key in keys:
        known = [row.cost_micros for row in found[key] if row.cost_micros is not None]
        tokens = sum(row.tokens for row in found[key])
        charges = sum(row.charges for row in found[key])
        unknown = sum(row.unknown for row in found[key])
        cost = sum(known) if known else None
        sums.append(Total(key, "", charges, unknown, tokens, 0, 0, 0, 0, cost))
    return sums


def _costs(days: list[str], totals: dict[str, Total]) -> list[float | None]:
    return [dollars(totals[day].cost_micros) if day in totals else 0.0 for day in days]


def _moments(days: list[str]) -> list[float]:
    import calendar
    import time

    return [float(calendar.timegm(time.strptime(day, "%Y-%m-%d"))) for day in days]


def _budget_names(visit: Visit) -> dict[str, str]:
    budgets = visit.store.budgets.list(limit=100).items
    return visit.names(budget.scope.partition(":")[2] for budget in budgets)
