"""Rounds of races without processes: attempts, leases, selections, budgets and retention."""

import os
from pathlib import Path
from typing import Any

import pytest

from corral.adapters.processes import process
from corral.api import Corral
from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.domain.races import attempts as attempt_ops
from corral.domain.races import ops, round_steps, selection
from corral.domain.races.model import (
    Attempt,
    AttemptSpec,
    CheckResult,
    CheckTally,
    Race,
    RaceBase,
    RacePlan,
    Round,
)
from corral.domain.runs.model import Run
from corral.errors import Ambiguous, Conflict, Held, IllegalMove, Invalid, NotFound, Refused
from corral.kernel.clock import MINUTE, ManualClock
from tests.support.errors import because
from tests.support.grouped_cases import each_case
from tests.support.race_factory import RaceFactory
from tests.support.race_helpers import attempts, states
from tests.support.run_factories import ended, running
from tests.support.store import raises_without_change

_SET_RUN = Statement("UPDATE attempts SET run_id = :run_id WHERE id = :id")


def start_race(store: Corral, tmp_path: Path, count: int = 2, **plan: Any) -> Race:
    """Start a race of `count` attempts, none of which is prepared."""
    project = store.projects.register(tmp_path).id
    budget = plan.pop("budget_micros", None)
    with store.transaction() as tx:
        return ops.start(
            tx,
            "Do it\nwith details",
            [AttemptSpec("ada", None)] * count,
            RacePlan(**plan),
            RaceBase(str(tmp_path), "", False, "main", "b" * 40),
            project=project,
            host=process.host(),
            folder="/srv/races",
            budget_micros=budget,
        )


def run_in_transaction(store: Corral, operation: Any) -> Any:
    return store._database.write(operation)


def acquire_round(store: Corral, race: Race, owner: str = "driver:me") -> Round:
    return run_in_transaction(
        store, lambda tx: round_steps.acquire_round(tx, race.latest.id, owner)
    )


def start_run(store: Corral, round_lease: Round, attempt: Attempt) -> Run:
    """Start the run of an attempt."""
    run = running(store)
    run_in_transaction(
        store,
        lambda tx: round_steps.mark_started(
            tx, round_lease, attempt, run, port=20_000, sandbox=None
        ),
    )
    return run


def end_attempt(
    store: Corral,
    round_lease: Round,
    attempt: Attempt,
    *codes: int,
    tests: CheckTally | None = None,
) -> None:
    """End an attempt successfully, with these exit codes of its checks."""
    start_run(store, round_lease, attempt)
    run = ended(store)
    race = store.races.get(attempt.race_id)
    current = next(candidate for candidate in attempts(race) if candidate.id == attempt.id)
    with store.transaction() as tx:
        tx.run(_SET_RUN, run_id=run.id, id=current.id)
        round_steps.record_run_end(tx, run)
        round_steps.record_commit(
            tx, round_lease, current, f"{attempt.number}" * 40, files=1, added=3, removed=1
        )
        checks = [CheckResult(f"check {code}", code, 5, tests=tests) for code in codes]
        passed = all(code == 0 for code in codes) if codes else None
        round_steps.record_checks(tx, round_lease, current, checks, passed=passed, tree=None)


def close_round(store: Corral, race: Race, round_lease: Round) -> Race:
    run_in_transaction(
        store, lambda tx: round_steps.close_round(tx, store.races.get(race.id), round_lease)
    )
    return store.races.get(race.id)


def test_race_has_numbered_rounds_and_attempts_with_own_worktrees(
    store: Corral, tmp_path: Path
) -> None:
    race = start_race(store, tmp_path, 3)
    assert (race.state, race.name, race.latest.state) == ("active", "Do it", "running")
    assert [attempt.number for attempt in attempts(race)] == [1, 2, 3]
    assert len({attempt.branch for attempt in attempts(race)}) == 3
    assert len({attempt.worktree for attempt in attempts(race)}) == 3
    assert store.races.get(race.id[:12]).id == race.id
    assert [listed.id for listed in store.races.list().items] == [race.id]
    assert store.races.list(state="completed").items == []
    assert store.races.list(project=race.project_id).items[0].id == race.id
    with pytest.raises(NotFound):
        store.races.get("rac_0000")


def test_too_many_attempts_are_rejected_and_nothing_is_stored(
    store: Corral, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=r"races\.max_attempts"):
        start_race(store, tmp_path, 5)
    assert store.races.list().items == []
    store.settings.set("races.max_attempts", 6)
    assert len(attempts(start_race(store, tmp_path, 6))) == 6


def test_round_is_selecting_when_all_attempts_ended_and_one_passed(
    store: Corral, tmp_path: Path
) -> None:
    race = start_race(store, tmp_path)
    round_lease = acquire_round(store, race)
    end_attempt(store, round_lease, attempts(race)[0], 0)
    assert close_round(store, race, round_lease).latest.state == "running"
    run_in_transaction(
        store,
        lambda tx: round_steps.mark_failed(tx, round_lease, attempts(race)[1], "no such agent"),
    )
    race = close_round(store, race, round_lease)
    assert (race.latest.state, states(race)) == ("selecting", ["completed", "failed"])
    (letter,) = store.mail.list(mailbox="user:tester").items
    assert (letter.body["event"], letter.body["round"]) == ("selecting", 1)


def test_round_without_passing_attempt_fails_and_can_be_overruled(
    store: Corral, tmp_path: Path
) -> None:
    race = start_race(store, tmp_path)
    round_lease = acquire_round(store, race)
    end_attempt(store, round_lease, attempts(race)[0], 0, 1)
    end_attempt(store, round_lease, attempts(race)[1], 124)
    race = close_round(store, race, round_lease)
    assert race.latest.state == "failed"
    with pytest.raises(Refused, match=f"No attempt passed.*race retry {race.id}"):
        store.races.merge(race.id)
    with pytest.raises(Refused, check=because("checks_failed")):
        _select(store, race.id, "1")
    with pytest.raises(IllegalMove):
        store._database.write(lambda tx: _select_verb(tx, race.latest.id))
    for actor in ("agent:ada", "run:run_1", "check"):
        with pytest.raises(Refused, check=because("person_required")):
            _select(store.as_actor(actor), race.id, "1", overrule=True)
    race = _select(store, race.id, "1", overrule=True, reason="the check is wrong")
    assert (race.latest.state, race.latest.winner_id) == ("completed", attempts(race)[0].id)
    assert attempts(race)[0].state == "completed", (
        "winning does not change the state of the attempt"
    )


def _select(store: Corral, race: str, attempt: str | None = None, **options: Any) -> Race:
    return store._database.write(lambda tx: selection.select(tx, race, attempt, **options))


def _abandon(store: Corral, race: str, **options: Any) -> Race:
    return store._database.write(lambda tx: ops.abandon(tx, race, **options))


def _cancel(store: Corral, race: str, attempt: str) -> Attempt:
    return store._database.write(lambda tx: attempt_ops.cancel(tx, race, attempt))


def _select_verb(tx: Tx, id: str) -> None:
    from corral.db.transitions import transition
    from corral.domain.races import sql

    transition(tx, sql.ROUNDS, "select", id)


def test_second_selection_needs_overrule_and_both_are_recorded(
    store: Corral, tmp_path: Path
) -> None:
    race = start_race(store, tmp_path)
    round_lease = acquire_round(store, race)
    for attempt in attempts(race):
        end_attempt(store, round_lease, attempt, 0)
    race = close_round(store, race, round_lease)
    _select(store, race.id, "1")
    with pytest.raises(IllegalMove, match=r"has a winner.*race next.*--overrule") as caught:
        _select(store, race.id, "2")
    assert "overrule" in caught.value.details["allowed"]
    with pytest.raises(NotFound, match=r"No attempt matches .*in round 1"):
        _select(store, race.id, "9")
    race = _select(store, race.id, "2", overrule=True, reason="second review")
    assert race.latest.winner_id == attempts(race)[1].id
    assert [selection.verb for selection in race.latest.selections] == ["select", "overrule"]


def test_next_round_needs_a_winner_and_may_start_from_an_earlier_round(
    store: Corral, tmp_path: Path
) -> None:
    race = start_race(store, tmp_path)
    round_lease = acquire_round(store, race)

    def next_round(**options: Any) -> Race:
        with store.transaction() as tx:
            return ops.next_round(
                tx, race.id, [AttemptSpec("ada", None)], folder="/srv/races", **options
            )

    with pytest.raises(Conflict, match=r"is running\. Wait for it \(`corral race wait"):
        next_round()
    for attempt in attempts(race):
        end_attempt(store, round_lease, attempt)
    close_round(store, race, round_lease)
    _select(store, race.id, "2")
    second_round = next_round(prompt="better").latest
    assert (second_round.number, second_round.prompt, second_round.base_commit) == (
        2,
        "better",
        "2" * 40,
    )
    with pytest.raises(Conflict, check=because("round_open")):
        next_round(from_round=1)
    _abandon(store, race.id, round=2)
    third_round = next_round(from_round=1).latest
    assert (third_round.number, third_round.parent_id) == (3, race.latest.id)
    _abandon(store, race.id)
    with pytest.raises(Refused, check=because("no_winner")):
        next_round(from_round=9)
    assert next_round().state == "active", "an abandoned race can be continued"


def test_driver_holds_the_round_lease_and_a_stale_fence_is_rejected(
    store: Corral, tmp_path: Path, clock: ManualClock
) -> None:
    race = start_race(store, tmp_path)
    first_lease = acquire_round(store, race, "driver:one")
    with pytest.raises(Held, check=because("other_driver", owner="driver:one")):
        acquire_round(store, race, "driver:two")
    clock.advance(2 * MINUTE)
    second_lease = acquire_round(store, race, "driver:two")
    assert second_lease.fence == first_lease.fence + 1
    with pytest.raises(Held):
        run_in_transaction(
            store, lambda tx: round_steps.mark_failed(tx, first_lease, attempts(race)[0], "late")
        )
    assert states(store.races.get(race.id)) == ["preparing", "preparing"]
    run_in_transaction(store, lambda tx: round_steps.release_round(tx, second_lease))
    dead_lease = acquire_round(store, race, "driver:three")
    with pytest.raises(Held):
        acquire_round(store, race, "driver:four")
    taken_over = run_in_transaction(
        store,
        lambda tx: round_steps.acquire_round(
            tx, race.latest.id, "driver:four", dead_owner="driver:three"
        ),
    )
    assert taken_over.fence == dead_lease.fence + 1, (
        "the lease of a dead owner is taken over at once"
    )


def test_replaced_driver_cannot_record_a_verdict(
    store: Corral, tmp_path: Path, clock: ManualClock
) -> None:
    race = start_race(store, tmp_path)
    ids = [attempt.id for attempt in attempts(race)]
    fields = {
        "judge": "solomon",
        "labels": dict(zip("AB", ids, strict=True)),
        "prompt_hash": "0",
        "truncated": False,
    }
    replaced = acquire_round(store, race, "driver:one")
    verdict = run_in_transaction(
        store, lambda tx: round_steps.add_verdict(tx, replaced, None, **fields)
    )
    clock.advance(2 * MINUTE)
    current = acquire_round(store, race, "driver:two")
    ranking = [[id] for id in ids]
    for step in (
        lambda tx: round_steps.add_verdict(tx, replaced, None, **fields),
        lambda tx: round_steps.record_verdict(tx, replaced, verdict, None, ranking, "late"),
    ):
        with raises_without_change(store, Held):
            run_in_transaction(store, step)
    first = run_in_transaction(
        store,
        lambda tx: round_steps.record_verdict(tx, current, verdict, None, ranking, "in time"),
    )
    assert (first.state, first.reason) == ("given", "in time")
    second = run_in_transaction(
        store, lambda tx: round_steps.record_verdict(tx, current, verdict, None, None, "again")
    )
    assert second == first, "the first answer counts"


def test_unsuccessful_run_ends_its_attempt(store: Corral, tmp_path: Path) -> None:
    from corral.kernel.exit_status import ExitStatus

    race = start_race(store, tmp_path, 2)
    round_lease = acquire_round(store, race)
    for attempt, status in zip(
        attempts(race), (ExitStatus(exit_code=7), ExitStatus(exit_code=0)), strict=True
    ):
        run = ended(store, status)
        with store.transaction() as tx:
            round_steps.mark_started(tx, round_lease, attempt, run, port=None, sandbox=None)
            round_steps.record_run_end(tx, run)
            assert round_steps.record_run_end(tx, run) is None, "recording it twice is idempotent"
    race = store.races.get(race.id)
    assert states(race) == ["failed", "checking"]
    assert "failed with 7" in (attempts(race)[0].reason or "")


def test_abandoning_cancels_open_attempts(store: Corral, tmp_path: Path) -> None:
    race = start_race(store, tmp_path)
    round_lease = acquire_round(store, race)
    start_run(store, round_lease, attempts(race)[0])
    race = _abandon(store, race.id, reason="not needed")
    assert (race.state, race.latest.state) == ("abandoned", "abandoned")
    assert states(race) == ["cancelled", "cancelled"]
    assert race.latest.needs_driver, "its driver must stop the runs"
    with pytest.raises(IllegalMove):
        _abandon(store, race.id)


def test_budget_is_shared_between_rounds_and_stops_them_when_spent(
    store: Corral, tmp_path: Path
) -> None:
    factory = RaceFactory(store, tmp_path)
    race = factory.start("ada", budget_micros=4_000_000, rounds=2)
    assert race.latest.budget_micros == 2_000_000
    factory.end(race, 1, cost_micros=1_500_000)
    factory.settle(race)
    factory.select(race, "1")
    race = factory.next(race, "ada")
    assert race.latest.budget_micros == 2_500_000, "the last round gets all that is left"
    factory.end(race, 1, cost_micros=2_500_000)
    factory.settle(race)
    factory.select(race, "1")
    with pytest.raises(Refused, match="has spent") as caught:
        factory.next(race, "ada")
    details = caught.value.details
    assert (details["spent_micros"], details["budget_micros"]) == (4_000_000, 4_000_000)
    assert len(store.races.get(race.id).rounds) == 2
    with pytest.raises(Invalid):
        start_race(store, tmp_path, budget_micros=-1)


@each_case(
    ("plan", "expected"),
    [
        ({"rounds": 0}, "rounds"),
        ({"samples": 99}, "samples"),
        ({"stop_after": 0}, "attempts to stop after"),
        ({"checks": ["true"] * 21}, "20 checks"),
        ({"checks": [""]}, "empty"),
    ],
)
def test_invalid_plan_is_rejected(
    store: Corral, tmp_path: Path, plan: dict[str, Any], expected: str
) -> None:
    with pytest.raises(Invalid, match=expected):
        start_race(store, tmp_path, **plan)


@each_case("name", ["9", "2.1", "0", "att_x", "", "x" * 500])
def test_unknown_attempt_raises_not_found(store: Corral, tmp_path: Path, name: str) -> None:
    race = start_race(store, tmp_path)
    with pytest.raises(NotFound, check=because("unknown_attempt")):
        _cancel(store, race.id, name)


def test_ambiguous_prefix_of_an_attempt_lists_the_candidates(store: Corral, tmp_path: Path) -> None:
    race = start_race(store, tmp_path)
    with pytest.raises(Ambiguous) as raised:
        _cancel(store, race.id, "att_")
    assert raised.value.details["candidates"] == [attempt.id for attempt in attempts(race)]


def test_win_rates_have_confidence_intervals(store: Corral, tmp_path: Path) -> None:
    race = start_race(store, tmp_path)
    round_lease = acquire_round(store, race)
    for attempt in attempts(race):
        end_attempt(store, round_lease, attempt, 0)
    close_round(store, race, round_lease)
    _select(store, race.id, None)
    (row,) = store.races.win_rates()
    assert (row.key, row.attempts, row.passed, row.wins, row.win_rate) == ("ada", 2, 2, 1, 0.5)
    assert 0 < row.low < 0.5 < row.high < 1
    assert (row.cost_micros, row.unpriced, row.micros_per_win) == (None, 2, None)
    assert store.races.win_rates(by="model")[0].key is None
    with pytest.raises(Invalid):
        store.races.win_rates(by="colour")


def test_retention_deletes_old_races_without_worktrees(
    store: Corral, tmp_path: Path, clock: ManualClock
) -> None:

    race = start_race(store, tmp_path)
    _abandon(store, race.id)
    clock.advance(400 * 24 * 60 * MINUTE)
    store.db.prune()
    assert store.races.get(race.id).id == race.id, "a race with worktrees is kept"
    run_in_transaction(
        store, lambda tx: ops.mark_cleaned(tx, [attempt.id for attempt in attempts(race)])
    )
    store.db.prune()
    with pytest.raises(NotFound):
        store.races.get(race.id)


def test_deleting_a_project_deletes_its_races(store: Corral, tmp_path: Path) -> None:
    race = start_race(store, tmp_path)
    store.projects.delete(race.project_id)
    assert store.races.list().items == []
    assert os.path.isdir(tmp_path)
