"""Actions on races: start, select, graft, next round, retry, cancel, judge, abandon, merge."""

from typing import Any

from starlette.responses import Response

from corral.domain.races.model import Race
from corral.kernel.errors import Conflict, Invalid
from corral.kernel.money import parse_usd
from corral.web.background import run_with_deadline
from corral.web.request import PageHandler, PageRequest


def _race_id(request: PageRequest) -> str:
    return request.require("id", "The race")


def _attempt_id(request: PageRequest) -> str:
    return request.require("attempt", "The attempt")


def _race_url(race: Race) -> str:
    return f"/races/{race.id}"


def start_race(request: PageRequest) -> Response:
    store, budget = request.store, request.field("budget")
    checks = (request.field("checks") or "").splitlines()
    prompt, project = (
        request.require("prompt", "The prompt"),
        request.require("project", "The project"),
    )
    return run_with_deadline(
        request,
        lambda: store.races.start(
            prompt,
            agents=request.field("agents"),
            project=project,
            checks=[line.strip() for line in checks if line.strip()],
            vary_auto=request.field("vary") is not None,
            judge=request.field("judge"),
            budget_micros=parse_usd(budget) if budget else None,
        ),
        lambda race: request.success("Race started.", redirect_to=_race_url(race)),
    )


def select(request: PageRequest) -> Response:
    overrule = request.field("overrule") is not None
    reason = request.require("reason", "The reason") if overrule else request.field("reason")
    id, attempt = _race_id(request), _attempt_id(request)
    race = request.store.races.select(id, attempt, reason=reason, overrule=overrule)
    return request.success(f"Attempt {attempt} selected as the winner of its round in {race.name}.")


def graft(request: PageRequest) -> Response:
    id, attempt, files = _race_id(request), _attempt_id(request), request.selected()
    if not files:
        raise Invalid("Select the files to graft onto the winner.")
    store = request.store
    return run_with_deadline(
        request,
        lambda: store.races.graft(id, attempt, files=files),
        lambda tried: request.success(
            f"Graft {'kept' if tried.kept else 'not kept'}: {tried.reason}.",
        ),
    )


def next_round(request: PageRequest) -> Response:
    id, budget, from_round = (
        _race_id(request),
        request.field("budget"),
        request.integer("from", "the round"),
    )
    store = request.store
    return run_with_deadline(
        request,
        lambda: store.races.next(
            id,
            prompt=request.field("prompt"),
            agents=request.field("agents"),
            from_round=from_round,
            budget_micros=parse_usd(budget) if budget else None,
        ),
        lambda race: request.success(
            f"Round {race.latest.number} started.", redirect_to=_race_url(race)
        ),
    )


def retry(request: PageRequest) -> Response:
    id, attempt, store = _race_id(request), _attempt_id(request), request.store
    return run_with_deadline(
        request,
        lambda: store.races.retry(id, attempt),
        lambda race: request.success(f"Attempt {attempt} retried."),
    )


def cancel(request: PageRequest) -> Response:
    id, attempt, store = _race_id(request), _attempt_id(request), request.store
    return run_with_deadline(
        request,
        lambda: store.races.cancel(id, attempt, reason=request.field("reason")),
        lambda race: request.success(f"Attempt {attempt} cancelled."),
    )


def judge(request: PageRequest) -> Response:
    id, store = _race_id(request), request.store
    return run_with_deadline(
        request,
        lambda: store.races.judge(id, judge=request.field("judge"), rubric=request.field("rubric")),
        lambda race: request.success(f"Judge {race.plan.judge} started."),
    )


def abandon(request: PageRequest) -> Response:
    id, round, store = _race_id(request), request.integer("round", "the round"), request.store
    subject = "Race" if round is None else f"Round {round}"
    return run_with_deadline(
        request,
        lambda: store.races.abandon(id, round=round, reason=request.field("reason")),
        lambda race: request.success(f"{subject} abandoned. Worktrees and commits are kept."),
    )


def finish(request: PageRequest) -> Response:
    race = request.store.races.finish(_race_id(request), reason=request.field("reason"))
    return request.success(f"Race {race.name} is {race.state}.")


def merge(request: PageRequest) -> Response:
    id, store = _race_id(request), request.store

    def respond(merge: Any) -> Response:
        if merge.outcome == "conflicts":
            conflicts = ", ".join(
                f"{conflict.name} ({conflict.why})" for conflict in merge.conflicts[:20]
            )
            raise Conflict(
                f"Merge conflicts in {conflicts}. Merge manually, or start another round."
            )
        if merge.outcome == "already":
            return request.success("Already merged.")
        return request.success(f"Merged as {(merge.commit or '')[:12]}.")

    return run_with_deadline(
        request, lambda: store.races.merge(id, into=request.field("into")), respond
    )


RACE_ACTIONS: dict[str, PageHandler] = {
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
