"""The overview: what needs attention, active runs, recent runs, costs."""

from starlette.responses import Response

from corral.kernel.clock import DAY, utc_date
from corral.web.inbox import is_for_people
from corral.web.plots import layout_bars
from corral.web.request import PageRequest

DAYS = 14
MAX_BUDGETS = 50
SPENT_WARNING = 0.9
MAX_ITEMS = 50
"""Questions, decisions and races that are read; only a few are shown."""


def show(request: PageRequest) -> Response:
    store = request.store
    overview = store.insights.overview()
    # A parked run waits for its quota and needs no person.
    asking = [run for run in overview.attention if run.attention != "parked"]
    spent = [
        budget
        for budget in store.budgets.list(limit=MAX_BUDGETS).items
        if budget.spent_micros >= SPENT_WARNING * budget.limit_micros
    ]
    questions = [
        question
        for question in store.questions.list(limit=MAX_ITEMS).items
        if is_for_people(question)
    ]
    decisions = store.decisions.list(proposed=True, limit=MAX_ITEMS).items
    decisions = [decision for decision in decisions if is_for_people(decision)]
    active = store.insights.races(state="active", limit=MAX_ITEMS).items
    races = [race for race in active if race.waits]
    attention = len(questions) + len(decisions) + len(races) + overview.submitted_tasks
    attention += len(asking) + len(overview.failed) + len(spent)
    attention += bool(overview.dead_letters) + bool(overview.unconfirmed_letters)
    by_day = {total.day: total for total in store.charges.days("all", limit=DAYS).items}
    days = [utc_date(overview.at - ago * DAY) for ago in range(DAYS - 1, -1, -1)]
    costs = [(by_day[day].cost_micros or 0) if day in by_day else 0 for day in days]
    return request.render(
        "overview.html",
        overview=overview,
        asking=asking,
        spent=spent,
        questions=questions,
        decisions=decisions,
        races=races,
        attention_count=attention,
        bars=layout_bars(list(zip(days, costs, strict=True))),
        names=request.names(
            (budget.scope.partition(":")[2] for budget in spent),
            (task.agent_id for task in overview.submitted),
        ),
        empty=not (overview.active or overview.recent or overview.queued),
    )
