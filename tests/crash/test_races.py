"""Races after a crash at any commit: the old or the complete new state, and no work is lost.

On SQLite only: these tests are about the order of commits and git commands, which does not depend
on the engine. The statements of races run on both in tests/domain and tests/concurrency.
"""

from pathlib import Path

import pytest

from corral import config
from corral.adapters import exports
from corral.adapters.processes import process
from corral.api import Corral
from corral.domain.races.model import Race
from corral.kernel.exit_status import ExitStatus
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit
from tests.support.race_helpers import attempts, git, make_repository, states
from tests.support.run_factories import held, without_supervisors

pytestmark = pytest.mark.parametrize("engine", ["sqlite"])


@pytest.fixture(autouse=True)
def _no_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    without_supervisors(monkeypatch)


def prepare(store: Corral, world: World) -> None:
    make_repository(world.folder)
    store.agents.create("ada", command="true")
    # Otherwise two threads may share a commit, and the number of commits varies.
    store.settings.set("races.max_concurrent_checks", 1)


CHECKS = ["test -e made"]  # each starts a Python process, so only tests about checks have some


def start(store: Corral, world: World, **plan: object) -> Race:
    race = store.races.start("Do it", agents="ada:2", project=str(world.folder), **plan)
    world.record("started")
    return race


def get_race(store: Corral) -> Race:
    (race,) = store.races.list().items
    return store.races.get(race.id)


def complete_runs(store: Corral, race: Race) -> None:
    """Write a file in each worktree and end the runs, like the agents."""
    for number, attempt in enumerate(attempts(race), 1):
        if attempt.state == "running":
            (Path(attempt.worktree) / "made").write_text(attempt.id)
            assert attempt.run_id is not None
            supervisor = held(number, host=process.host())
            run = store.internal.runs.launch(
                store.internal.runs.acquire(attempt.run_id, supervisor)
            )
            store.internal.runs.record_end(run, ExitStatus(exit_code=0))


def finish(store: Corral, world: World) -> Race:
    """Advance the race and complete its attempts, from any state."""
    race = store.races.advance(get_race(store).id)
    complete_runs(store, race)
    return store.races.advance(race.id)


def prepare_decided_race(store: Corral, world: World) -> None:
    prepare(store, world)
    start(store, world)
    race = finish(store, world)
    assert race.latest.state == "selecting"
    store.races.select(race.id, "2")


def check_worktrees(store: Corral, world: World) -> None:
    """Check that every worktree on disk belongs to a known attempt."""
    folder = config.home() / "races"
    worktrees = {place.worktree: place for place in store.races.clean(orphans=True)}
    for race in store.races.list().items:
        for path in filter(Path.is_dir, (folder / race.id).glob("*")):
            assert str(path) in worktrees, path
            assert worktrees[str(path)].attempt_id is not None
    known = {
        attempt.branch
        for race in store.races.list().items
        for attempt in list_attempts(store, race)
    }
    branches = git(world.folder, "branch", "--format=%(refname:short)", "--list", "corral/*")
    assert {*branches.splitlines()} <= known


def list_attempts(store: Corral, race: Race) -> list[object]:
    return [attempt for round_ in store.races.get(race.id).rounds for attempt in round_.attempts]


def test_crashed_start_leaves_no_race_or_one_that_continues(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def recover(store: Corral, world: World) -> None:
        if not store.races.list().items:
            assert "started" not in world.records
            start(store, world)
        check_worktrees(store, world)
        finish(store, world)

    def check(store: Corral, world: World) -> None:
        race = get_race(store)
        assert (race.latest.state, states(race)) == ("selecting", ["completed"] * 2)
        for attempt in attempts(race):
            assert git(world.folder, "show", f"{attempt.commit}:made") == attempt.id
        check_worktrees(store, world)

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(lambda s, w: discard(start(s, w)), recover, check, prepare)
    )


def discard(value: object) -> None:
    """Ignore the result of a step."""


def test_another_driver_continues_after_a_driver_crashes(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def ready(store: Corral, world: World) -> None:
        prepare(store, world)
        complete_runs(store, start(store, world, checks=CHECKS))

    def drive(store: Corral, world: World) -> None:
        race = store.races.advance(get_race(store).id)
        world.record(race.latest.state)

    def check(store: Corral, world: World) -> None:
        race = get_race(store)
        assert (race.latest.state, states(race)) == ("selecting", ["completed"] * 2)
        assert [attempt.passed for attempt in attempts(race)] == [True, True]
        for attempt in attempts(race):
            assert git(world.folder, "show", f"{attempt.commit}:made") == attempt.id
            base = f"{race.base_commit}..{attempt.commit}"
            assert git(world.folder, "rev-list", "--count", base) == "1", "committed once"
        letters = store.mail.list(mailbox=race.created_by).items
        assert [letter.body["event"] for letter in letters] == ["selecting"], "one notification"

    crash_at_every_commit(fresh_url, tmp_path, Scenario(drive, drive, check, ready))


def test_selection_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def ready(store: Corral, world: World) -> None:
        prepare(store, world)
        start(store, world)
        race = finish(store, world)
        (Path(attempts(race)[1].worktree) / "by-hand").write_text("a manual change")

    def select_winner(store: Corral, world: World) -> None:
        store.races.select(get_race(store).id, "2")
        world.record("chosen")

    def recover(store: Corral, world: World) -> None:
        latest = get_race(store).latest
        if latest.state == "selecting":
            assert (latest.winner_id, latest.winner_commit) == (None, None)
            assert "chosen" not in world.records
            select_winner(store, world)

    def check(store: Corral, world: World) -> None:
        latest = get_race(store).latest
        assert latest.state == "completed"
        assert latest.winner_id == latest.attempts[1].id
        assert git(world.folder, "show", f"{latest.winner_commit}:by-hand") == "a manual change"
        assert len(latest.selections) == 1

    crash_at_every_commit(fresh_url, tmp_path, Scenario(select_winner, recover, check, ready))


def test_start_of_the_next_round_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def start_next_round(store: Corral, world: World) -> None:
        store.races.next(get_race(store).id)
        world.record("next round")

    def recover(store: Corral, world: World) -> None:
        if len(get_race(store).rounds) == 1:
            assert "next round" not in world.records
            start_next_round(store, world)
        check_worktrees(store, world)
        finish(store, world)

    def check(store: Corral, world: World) -> None:
        first, second = get_race(store).rounds
        assert (second.state, second.base_commit) == ("selecting", first.winner_commit)

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(start_next_round, recover, check, prepare_decided_race)
    )


def test_automatic_selection_happens_once(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def ready(store: Corral, world: World) -> None:
        prepare(store, world)
        complete_runs(store, start(store, world, auto=True, rounds=2, checks=CHECKS))

    def drive(store: Corral, world: World) -> None:
        store.races.advance(get_race(store).id)

    def recover(store: Corral, world: World) -> None:
        finish(store, world)
        finish(store, world)

    def check(store: Corral, world: World) -> None:
        race = get_race(store)
        assert (race.state, [round_.state for round_ in race.rounds]) == (
            "completed",
            ["completed", "completed"],
        )
        assert [len(round_.attempts) for round_ in race.rounds] == [2, 1], (
            "half of the attempts continue"
        )
        assert [len(round_.selections) for round_ in race.rounds] == [1, 1]

    crash_at_every_commit(fresh_url, tmp_path, Scenario(drive, recover, check, ready))


def test_export_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def write(store: Corral, world: World) -> None:
        store.races.export(
            get_race(store).id, str(world.folder.with_name(f"{world.folder.name}-out"))
        )
        store.projects.register(world.folder)  # a commit at which the process is killed

    def check(store: Corral, world: World) -> None:
        target = world.folder.with_name(f"{world.folder.name}-out")
        assert exports.verify_export(target) == []
        winner = get_race(store).latest.attempts[1]
        assert (target / "round-1-winner" / "made").read_text() == winner.id
        assert exports.find_leftovers(target.parent) == []

    crash_at_every_commit(fresh_url, tmp_path, Scenario(write, write, check, prepare_decided_race))


def test_merge_is_recorded_after_a_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def merge(store: Corral, world: World) -> None:
        result = store.races.merge(get_race(store).id)
        assert result.outcome in ("merged", "already")

    def check(store: Corral, world: World) -> None:
        race = get_race(store)
        assert race.merged_commit == race.latest.winner_commit
        assert git(world.folder, "show", "main:made") == race.latest.winner_id
        assert git(world.folder, "status", "--porcelain") == ""

    crash_at_every_commit(fresh_url, tmp_path, Scenario(merge, merge, check, prepare_decided_race))


def test_crashed_cleanup_loses_no_work(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def ready(store: Corral, world: World) -> None:
        prepare_decided_race(store, world)
        (Path(attempts(get_race(store))[0].worktree) / "unsaved").write_text("unsaved work")

    def clean(store: Corral, world: World) -> None:
        store.races.clean(confirm=True)

    def check(store: Corral, world: World) -> None:
        loser, winner = attempts(get_race(store))
        assert (Path(loser.worktree) / "unsaved").read_text() == "unsaved work"
        assert loser.cleaned_at is None
        assert not Path(winner.worktree).exists()
        assert winner.cleaned_at is not None
        assert git(world.folder, "show", f"{winner.commit}:made") == winner.id

    crash_at_every_commit(fresh_url, tmp_path, Scenario(clean, clean, check, ready))
