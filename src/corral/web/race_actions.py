"""What people do with races on the pages: choose, overrule, graft, go on, try again, give up."""

from typing import Any

from starlette.responses import Response

from corral.domain.races.model import Race
from corral.kernel.errors import Conflict, Invalid
from corral.kernel.money import parse_usd
from corral.web.background import soon
from corral.web.request import Show, Visit


def _race(visit: Visit) -> str:
    return visit.must("id", "The race")


def _attempt(visit: Visit) -> str:
    return visit.must("attempt", "The attempt")


def _at(race: Race) -> str:
    return f"/races/{race.id}"


def start_race(visit: Visit) -> Response:
    store, budget = visit.store, visit.given("budget")
    checks = (visit.given("checks") or "").splitlines()
    prompt, project = visit.must("prompt", "The prompt"), visit.must("project", "The project")
    return soon(
        visit,
        lambda: store.races.start(
            prompt,
            agents=visit.given("agents"),
            project=project,
            checks=[line.strip() for line in checks if line.strip()],
            vary_auto=visit.given("vary") is not None,
            judge=visit.given("judge"),
            budget_micros=parse_usd(budget) if budget else None,
        ),
        lambda race: visit.done("It is started.", go=_at(race)),
    )


def select(visit: Visit) -> Response:
    overrule = visit.given("overrule") is not None
    reason = visit.must("reason", "The reason") if overrule else visit.given("reason")
    id, attempt = _race(visit), _attempt(visit)
    race = visit.store.races.select(id, attempt, reason=reason, overrule=overrule)
    return visit.done(f"Attempt {attempt} is the winner of its round in {race.name}.")


def graft(visit: Visit) -> Response:
    id, attempt, files = _race(visit), _attempt(visit), visit.picked()
    if not files:
        raise Invalid("No file is marked; mark those that are to be put onto the winner.")
    store = visit.store
    return soon(
        visit,
        lambda: store.races.graft(id, attempt, files=files),
        lambda tried: visit.done(
            f"It was {'kept' if tried.kept else 'not kept'}: {tried.reason}.",
        ),
    )


def next_round(visit: Visit) -> Response:
    id, budget, from_round = _race(visit), visit.given("budget"), visit.number("from", "a round")
    store = visit.store
    return soon(
        visit,
        lambda: store.races.next(
            id,
            prompt=visit.given("prompt"),
            agents=visit.given("agents"),
            from_round=from_round,
            budget_micros=parse_usd(budget) if budget else None,
        ),
        lambda race: visit.done(f"Round {race.latest.number} has begun.", go=_at(race)),
    )


def retry(visit: Visit) -> Response:
    id, attempt, store = _race(visit), _attempt(visit), visit.store
    return soon(
        visit,
        lambda: store.races.retry(id, attempt),
        lambda race: visit.done(f"Attempt {attempt} is tried again."),
    )


def cancel(visit: Visit) -> Response:
    id, attempt, store = _race(visit), _attempt(visit), visit.store
    return soon(
        visit,
        lambda: store.races.cancel(id, attempt, reason=visit.given("reason")),
        lambda race: visit.done(f"Attempt {attempt} is ended."),
    )


def judge(visit: Visit) -> Response:
    id, store = _race(visit), visit.store
    return soon(
        visit,
        lambda: store.races.judge(id, judge=visit.given("judge"), rubric=visit.given("rubric")),
        lambda race: visit.done(f"{race.plan.judge} is asked."),
    )


def abandon(visit: Visit) -> Response:
    id, round, store = _race(visit), visit.number("round", "a round"), visit.store
    what = "The race" if round is None else f"Round {round}"
    return soon(
        visit,
        lambda: store.races.abandon(id, round=round, reason=visit.given("reason")),
        lambda race: visit.done(f"{what} is abandoned; what was made is kept."),
    )


def finish(visit: Visit) -> Response:
    race = visit.store.races.finish(_race(visit), reason=visit.given("reason"))
    return visit.done(f"{race.name} is {race.state}.")


def merge(visit: Visit) -> Response:
    id, store = _race(visit), visit.store

    def told(done: Any) -> Response:
        if done.outcome == "conflicts":
            clashes = ", ".join(f"{clash.name} ({clash.why})" for clash in done.conflicts[:20])
            raise Conflict(f"It was not merged: {clashes}. Merge by hand, or go on from there.")
        if done.outcome == "already":
            return visit.done("The branch has it already.")
        return visit.done(f"The branch is at {(done.commit or '')[:12]} now.")

    return soon(visit, lambda: store.races.merge(id, into=visit.given("into")), told)


RACING: dict[str, Show] = {
    "races/start": start_race,
    "races/select": select,
    "races/graft": graft,
    "races/next": next_round,
    "races/retry": retry,
    "races/cancel": cancel,
    "races/judge": judge,
    "races/abandon": abandon,
    "races/finish": finish,
    "races/merge": merge,
}
