"""Races: the list, one race with its attempts side by side, and win statistics."""

from contextlib import suppress
from typing import NamedTuple

from starlette.responses import Response

from corral.domain.races.model import (
    RACE_TRANSITIONS,
    ROUND_TRANSITIONS,
    Attempt,
    AttemptState,
    Race,
    RaceState,
    Round,
    RoundState,
)
from corral.domain.races.ranking import judge_scores
from corral.domain.runs.denials import format_approval_options
from corral.kernel.clock import DAY
from corral.kernel.errors import Invalid, NotFound
from corral.services.races.diff import AttemptProgress
from corral.web.race_tree import BOX_WIDTH, TITLE_HEIGHT, build_race_tree
from corral.web.request import PageRequest

MAX_PROJECTS = 100
MAX_AGENTS = 200
MAX_CARDS = 60
"""Attempts per page."""
MAX_TABS = 24
"""The latest rounds have a tab; the tree links to all."""
MAX_SCREENS = 8
"""How many attempts of a round are shown with their terminals."""
MAX_PROMPT = 20_000
"""How many characters of a prompt are shown."""
SPANS = {"7": 7, "30": 30, "90": 90, "all": None}
KINDS = ("agent", "model", "provider", "variation")


def show_all(request: PageRequest) -> Response:
    """List races, filtered by state or by project; the API accepts one filter at a time."""
    store = request.store
    state, project = request.query("state"), request.query("project")
    page = store.insights.races(state=state, project=project, after=request.query("after"))
    return request.render(
        "races.html",
        page=page,
        state=state,
        states=[*RaceState],
        project=project,
        projects=store.projects.list(limit=MAX_PROJECTS).items,
        agents=store.agents.list(limit=MAX_AGENTS).items if request.can_write else [],
        names=request.names((race.project_id for race in page.items), [project]),
    )


class AttemptCard(NamedTuple):
    """An attempt with everything that its card shows."""

    attempt: Attempt
    name: str
    """ROUND.NUMBER, as on the command line."""
    progress: AttemptProgress | None
    """What an open attempt has changed so far."""
    not_run: list[str]
    """Checks that were skipped because an earlier one failed."""
    why: str
    """Why it has its rank, or cannot win."""
    verbs: set[str]
    denied: str | None
    """The denied tools."""
    approvals: str
    """The options that approve them."""


def show_one(request: PageRequest) -> Response:
    """Show a race and one of its rounds, by default the latest."""
    store = request.store
    race = store.races.get(request.path_param("id"))
    round = find_round(race, request.query("round"))
    progress: dict[str, AttemptProgress] = {}
    if round is race.latest and any(attempt.is_open for attempt in round.attempts):
        progress = {change.attempt_id: change for change in store.races.attempt_progress(race.id)}
    decided = last_decided_round(race)
    shown, more = _page(round, request.query("after"))
    cards = [
        _card(race, round, attempt, progress.get(attempt.id), decided, *_denied(request, attempt))
        for attempt in shown
    ]
    return request.render(
        "race.html",
        race=race,
        round=round,
        parent=next((other for other in race.rounds if other.id == round.parent_id), None),
        cards=cards,
        more=more,
        screens=MAX_SCREENS,
        tabs=[other for other in race.rounds if other in race.rounds[-MAX_TABS:] or other is round],
        max_prompt=MAX_PROMPT,
        attempt_names=attempt_names(race),
        is_running=round.needs_driver and any(attempt.is_open for attempt in round.attempts),
        decided=decided,
        verbs=allowed_race_verbs(race),
        round_verbs=ROUND_TRANSITIONS.allowed_from(round.state),
        tree=build_race_tree(race.rounds),
        size=(BOX_WIDTH, TITLE_HEIGHT),
        agents=store.agents.list(limit=MAX_AGENTS).items if request.can_write else [],
        names=request.names([race.project_id]),
    )


def _page(round: Round, after: str | None) -> tuple[list[Attempt], str | None]:
    """Return a page of attempts after a number, and the cursor of the next page."""
    if after is not None and not (after.isascii() and after.isdigit()):
        raise Invalid(
            f"Invalid page {after[:20]!r}: expected the number of an attempt. Open the race again.",
            after=after[:20],
        )
    rest = [attempt for attempt in round.attempts if attempt.number > int((after or "0")[:9])]
    return rest[:MAX_CARDS], str(rest[MAX_CARDS - 1].number) if len(rest) > MAX_CARDS else None


def find_round(race: Race, number: str | None) -> Round:
    """Return a round by its number, by default the latest."""
    if number is None:
        return race.latest
    for round in race.rounds:
        if str(round.number) == number:
            return round
    raise NotFound(f"{race.id} has no round {number[:20]!r}. It has {len(race.rounds)} rounds.")


def last_decided_round(race: Race) -> Round | None:
    """Return the last round with a winner: the base of grafts and of the next round."""
    decided = [round for round in race.rounds if round.state is RoundState.COMPLETED]
    return decided[-1] if decided else None


def attempt_names(race: Race) -> dict[str, str]:
    """Return ROUND.NUMBER of each attempt by id."""
    return {
        attempt.id: f"{round.number}.{attempt.number}"
        for round in race.rounds
        for attempt in round.attempts
    }


def allowed_race_verbs(race: Race) -> set[str]:
    """Return the verbs that are legal for a race."""
    verbs = {*RACE_TRANSITIONS.allowed_from(race.state)} & {"abandon", "finish"}
    if any(round.ended_at is None for round in race.rounds):
        verbs.discard("finish")
    elif last_decided_round(race) is not None:
        verbs.add("next")
    if race.latest.state is RoundState.SELECTING and len(race.latest.ranked) > 1:
        verbs.add("judge")
    if last_decided_round(race) is not None and not race.managed_repository:
        verbs.add("merge")
    return verbs


def _card(
    race: Race,
    round: Round,
    attempt: Attempt,
    progress: AttemptProgress | None,
    decided: Round | None,
    denied: str | None,
    approvals: str,
) -> AttemptCard:
    is_completed = attempt.state is AttemptState.COMPLETED
    return AttemptCard(
        attempt,
        f"{round.number}.{attempt.number}",
        progress if attempt.is_open else None,
        race.plan.checks[len(attempt.checks) :] if is_completed else [],
        explain_rank(attempt, round),
        allowed_attempt_verbs(attempt, round, decided),
        denied,
        approvals,
    )


def _denied(request: PageRequest, attempt: Attempt) -> tuple[str | None, str]:
    """Return the denied tools of an attempt, and the options that approve them.

    Without denied tools, or when the run was deleted: None and an empty text.
    """
    if attempt.run_id is not None:
        with suppress(NotFound):
            run = request.store.runs.get(attempt.run_id)
            return run.denied_text, format_approval_options(run.denied)
    return None, ""


def allowed_attempt_verbs(attempt: Attempt, round: Round, decided: Round | None) -> set[str]:
    """Return the verbs that are legal for an attempt."""
    allowed = ROUND_TRANSITIONS.allowed_from(round.state)
    verbs = set()
    if attempt.is_open:
        verbs.add("cancel")
    is_completed = attempt.state is AttemptState.COMPLETED
    if attempt.can_win and "select" in allowed:
        verbs.add("select")
    elif is_completed and not attempt.is_winner and "overrule" in allowed:
        verbs.add("overrule")
    has_failed = not attempt.is_open and not attempt.can_win
    if has_failed and ("retry" in allowed or round.state is RoundState.RUNNING):
        verbs.add("retry")
    if attempt.commit is not None:
        verbs.add("diff")
        if decided is not None and decided.winner_id != attempt.id:
            verbs.add("graft")
    return verbs


def explain_rank(attempt: Attempt, round: Round) -> str:
    """Explain the rank of an attempt: checks, then judges, then figures."""
    if attempt.is_open:
        return ""
    if not attempt.can_win:
        return attempt.reason or str(attempt.state)
    reasons = ["all checks passed" if attempt.checks else "no checks"]
    rivals = [rival for rival in round.attempts if rival.can_win]
    if (opinion := judge_scores(round.attempts, round.verdicts).get(attempt.id)) is not None:
        reasons.append(f"judges preferred it to {opinion:.0%} of the others")
    for label, figures in (
        ("smallest diff", {rival.id: _lines(rival) for rival in rivals}),
        ("cheapest", {rival.id: rival.cost_micros for rival in rivals}),
        ("fastest", {rival.id: rival.duration_ms for rival in rivals}),
    ):
        known = [figure for figure in figures.values() if figure is not None]
        if len(known) > 1 and figures[attempt.id] == min(known) != max(known):
            reasons.append(label)
    return "; ".join(reasons)


def _lines(attempt: Attempt) -> int | None:
    if attempt.insertions is None or attempt.deletions is None:
        return None
    return attempt.insertions + attempt.deletions


# -- statistics ------------------------------------------------------------------------------------


def show_statistics(request: PageRequest) -> Response:
    """Show wins and costs over all decided races."""
    by, span = request.query("by") or "agent", request.query("days") or "all"
    if span not in SPANS:
        raise Invalid(f"Invalid period {span!r}: expected one of {', '.join(SPANS)}.", days=span)
    days = SPANS[span]
    rows = request.store.races.win_rates(by=by, since_ms=None if days is None else days * DAY)
    return request.render(
        "race_statistics.html",
        rows=rows,
        by=by,
        kinds=KINDS,
        span=span,
        spans=SPANS,
        max_cost=max((row.micros_per_win or 0 for row in rows), default=0),
    )
