"""The first page: what needs somebody, what runs, what ended last, what it cost."""

from starlette.responses import Response

from corral.kernel.clock import DAY, day_of
from corral.web.inbox import for_people
from corral.web.plots import bars
from corral.web.request import Visit

DAYS = 14
BUDGETS = 50
NEARLY_SPENT = 0.9
ASKED = 50
"""Questions, decisions and races that are looked at; a few are shown, all are in the inbox, and
among the races."""


def show(visit: Visit) -> Response:
    store = visit.store
    found = store.insights.overview()
    # Whoever asks for something comes first; a run that waits for its quota asks for nothing.
    asking = [run for run in found.attention if run.attention != "parked"]
    spent = [
        budget
        for budget in store.budgets.list(limit=BUDGETS).items
        if budget.spent_micros >= NEARLY_SPENT * budget.limit_micros
    ]
    questions = [each for each in store.questions.list(limit=ASKED).items if for_people(each)]
    decisions = store.decisions.list(proposed=True, limit=ASKED).items
    decisions = [each for each in decisions if for_people(each)]
    active = store.insights.races(state="active", limit=ASKED).items
    races = [race for race in active if race.waits]
    needs = len(questions) + len(decisions) + len(races) + found.submitted_tasks
    needs += len(asking) + len(found.failed) + len(spent)
    needs += bool(found.dead_letters) + bool(found.doubtful_letters)
    by_day = {total.day: total for total in store.charges.days("all", limit=DAYS).items}
    days = [day_of(found.at - ago * DAY) for ago in range(DAYS - 1, -1, -1)]
    costs = [(by_day[day].cost_micros or 0) if day in by_day else 0 for day in days]
    return visit.show(
        "overview.html",
        found=found,
        asking=asking,
        spent=spent,
        questions=questions,
        decisions=decisions,
        races=races,
        needs=needs,
        bars=bars(list(zip(days, costs, strict=True))),
        names=visit.names(
            (budget.scope.partition(":")[2] for budget in spent),
            (task.agent_id for task in found.submitted),
        ),
        empty=not (found.active or found.recent or found.queued),
    )
