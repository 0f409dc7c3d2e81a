"""Races: the list, one race with its attempts side by side, and who wins."""

from contextlib import suppress
from typing import NamedTuple

from starlette.responses import Response

from corral.domain.races.model import (
    RACE_MOVES,
    ROUND_MOVES,
    Attempt,
    AttemptState,
    Race,
    RaceState,
    Round,
    RoundState,
)
from corral.domain.races.ranking import opinions
from corral.domain.runs.model import approval_options
from corral.kernel.clock import DAY
from corral.kernel.errors import Invalid, NotFound
from corral.services.races.diff import SoFar
from corral.web.race_tree import HEAD, WIDTH, lineage
from corral.web.request import Visit

PROJECTS = 100
AGENTS = 200
CARDS = 60
"""So many attempts of a round are on one page."""
TABS = 24
"""So many rounds have a tab: the latest; the lineage leads to all."""
SCREENS = 8
"""The first attempts of a round are shown with their terminals."""
PROMPT = 20_000
"""So much of a prompt is shown."""
SPANS = {"7": 7, "30": 30, "90": 90, "all": None}
KINDS = ("agent", "model", "provider", "variation")


def show_all(visit: Visit) -> Response:
    """All races; or those of a project, or in a state: the library lists by one of both."""
    store = visit.store
    state, project = visit.asked("state"), visit.asked("project")
    page = store.insights.races(state=state, project=project, after=visit.asked("after"))
    return visit.show(
        "races.html",
        page=page,
        state=state,
        states=[*RaceState],
        project=project,
        projects=store.projects.list(limit=PROJECTS).items,
        agents=store.agents.list(limit=AGENTS).items if visit.may_act else [],
        names=visit.names((race.project_id for race in page.items), [project]),
    )


class Card(NamedTuple):
    """An attempt, and all that a page says of it."""

    attempt: Attempt
    name: str
    """As people type it: ROUND.NUMBER."""
    far: SoFar | None
    """How far it is, where it is under way."""
    not_run: list[str]
    """Checks that an earlier one made needless."""
    why: str
    """Why it ranks where it does, or cannot be chosen."""
    verbs: set[str]
    denied: str | None
    """The denied tools."""
    approvals: str
    """The options that approve them."""


def show_one(visit: Visit) -> Response:
    """A race, and one of its rounds: the latest, unless another is asked for."""
    store = visit.store
    race = store.races.get(visit.path("id"))
    round = round_asked(race, visit.asked("round"))
    far: dict[str, SoFar] = {}
    if round is race.latest and any(each.is_open for each in round.attempts):
        far = {each.attempt_id: each for each in store.races.so_far(race.id)}
    decided = last_decided(race)
    shown, more = _page(round, visit.asked("after"))
    cards = [
        _card(race, round, each, far.get(each.id), decided, *_denied(visit, each)) for each in shown
    ]
    return visit.show(
        "race.html",
        race=race,
        round=round,
        parent=next((each for each in race.rounds if each.id == round.parent_id), None),
        cards=cards,
        more=more,
        screens=SCREENS,
        tabs=[each for each in race.rounds if each in race.rounds[-TABS:] or each is round],
        longest=PROMPT,
        called=called(race),
        going=round.goes_on and any(each.is_open for each in round.attempts),
        decided=decided,
        verbs=race_verbs(race),
        round_verbs=ROUND_MOVES.allowed_from(round.state),
        drawing=lineage(race.rounds),
        size=(WIDTH, HEAD),
        agents=store.agents.list(limit=AGENTS).items if visit.may_act else [],
        names=visit.names([race.project_id]),
    )


def _page(round: Round, after: str | None) -> tuple[list[Attempt], str | None]:
    """The attempts of a round behind a number, and the number behind which more are."""
    if after is not None and not (after.isascii() and after.isdigit()):
        raise Invalid(f"{after[:20]!r} is no number of an attempt.", after=after[:20])
    rest = [each for each in round.attempts if each.number > int((after or "0")[:9])]
    return rest[:CARDS], str(rest[CARDS - 1].number) if len(rest) > CARDS else None


def round_asked(race: Race, number: str | None) -> Round:
    """A round by what stands in an address; the latest when nothing does."""
    if number is None:
        return race.latest
    for each in race.rounds:
        if str(each.number) == number:
            return each
    raise NotFound(f"{race.id} has no round {number[:20]!r}; it has {len(race.rounds)}.")


def last_decided(race: Race) -> Round | None:
    """The last round with a winner: grafts are put onto that, and the next round begins with it."""
    decided = [each for each in race.rounds if each.state is RoundState.COMPLETED]
    return decided[-1] if decided else None


def called(race: Race) -> dict[str, str]:
    """What people call each attempt of a race, by its id."""
    return {
        attempt.id: f"{round.number}.{attempt.number}"
        for round in race.rounds
        for attempt in round.attempts
    }


def race_verbs(race: Race) -> set[str]:
    """What a person may do with a race as it stands."""
    verbs = {*RACE_MOVES.allowed_from(race.state)} & {"abandon", "finish"}
    if any(each.ended_at is None for each in race.rounds):
        verbs.discard("finish")
    elif last_decided(race) is not None:
        verbs.add("next")
    if race.latest.state is RoundState.SELECTING and len(race.latest.ranked) > 1:
        verbs.add("judge")
    if last_decided(race) is not None and not race.private:
        verbs.add("merge")
    return verbs


def _card(
    race: Race,
    round: Round,
    attempt: Attempt,
    far: SoFar | None,
    decided: Round | None,
    denied: str | None,
    approvals: str,
) -> Card:
    over = attempt.state is AttemptState.COMPLETED
    return Card(
        attempt,
        f"{round.number}.{attempt.number}",
        far if attempt.is_open else None,
        race.plan.checks[len(attempt.checks) :] if over else [],
        why(attempt, round),
        attempt_verbs(attempt, round, decided),
        denied,
        approvals,
    )


def _denied(visit: Visit, attempt: Attempt) -> tuple[str | None, str]:
    """Return the denied tools of an attempt and the options that approve them; None also when its
    run was deleted."""
    if attempt.run_id is not None:
        with suppress(NotFound):
            run = visit.store.runs.get(attempt.run_id)
            return run.denied_text, approval_options(run.denied)
    return None, ""


def attempt_verbs(attempt: Attempt, round: Round, decided: Round | None) -> set[str]:
    """What a person may do with an attempt as it stands."""
    allowed = ROUND_MOVES.allowed_from(round.state)
    found = {"cancel"} if attempt.is_open else set()
    if attempt.can_win and "select" in allowed:
        found.add("select")
    elif attempt.state is AttemptState.COMPLETED and "overrule" in allowed:
        found |= set() if attempt.is_winner else {"overrule"}
    going = round.state is RoundState.RUNNING
    if not attempt.is_open and not attempt.can_win and ("retry" in allowed or going):
        found.add("retry")
    if attempt.commit is not None:
        found.add("diff")
        if decided is not None and decided.winner_id != attempt.id:
            found.add("graft")
    return found


def why(attempt: Attempt, round: Round) -> str:
    """Why an attempt ranks where it does, in words: gates, then judges, then figures."""
    if attempt.is_open:
        return ""
    if not attempt.can_win:
        return attempt.reason or f"it is {attempt.state}"
    told = ["all its checks passed" if attempt.checks else "there was no check to fail"]
    rivals = [each for each in round.attempts if each.can_win]
    if (opinion := opinions(round.attempts, round.verdicts).get(attempt.id)) is not None:
        told.append(f"judges put it before {opinion:.0%} of the others")
    for word, figures in (
        ("fewest lines", {each.id: _lines(each) for each in rivals}),
        ("cheapest", {each.id: each.cost_micros for each in rivals}),
        ("quickest", {each.id: each.duration_ms for each in rivals}),
    ):
        known = [figure for figure in figures.values() if figure is not None]
        if len(known) > 1 and figures[attempt.id] == min(known) != max(known):
            told.append(word)
    return "; ".join(told)


def _lines(attempt: Attempt) -> int | None:
    if attempt.insertions is None or attempt.deletions is None:
        return None
    return attempt.insertions + attempt.deletions


# -- statistics ------------------------------------------------------------------------------------


def show_statistics(visit: Visit) -> Response:
    """Who wins at what cost, over all races that were decided."""
    by, span = visit.asked("by") or "agent", visit.asked("days") or "all"
    if span not in SPANS:
        raise Invalid(f"{span!r} is none of {', '.join(SPANS)}.", days=span)
    days = SPANS[span]
    rows = visit.store.races.winning(by=by, since_ms=None if days is None else days * DAY)
    return visit.show(
        "race_statistics.html",
        rows=rows,
        by=by,
        kinds=KINDS,
        span=span,
        spans=SPANS,
        dearest=max((each.micros_per_win or 0 for each in rows), default=0),
    )
