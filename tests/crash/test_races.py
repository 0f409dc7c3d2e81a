"""Races after a crash at any commit: the old or the complete new state, and no work is lost.

On SQLite only: these tests are about the order of commits and git commands, which does not depend
on the engine. The statements of races run on both in tests/domain and tests/concurrency.
"""

from pathlib import Path

import pytest

from corral import config
from corral.adapters import exports, process
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
    # Else commits of two threads may come together, and their number differs each time.
    store.settings.set("races.max_concurrent_checks", 1)


CHECKS = ["test -e made"]  # each starts a Python process, so only tests about checks have some


def start(store: Corral, world: World, **plan: object) -> Race:
    race = store.races.start("Do it", agents="ada:2", project=str(world.folder), **plan)
    world.note("started")
    return race


def only(store: Corral) -> Race:
    (race,) = store.races.list().items
    return store.races.get(race.id)


def work(store: Corral, race: Race) -> None:
    """The agents do what they are there for."""
    for number, attempt in enumerate(attempts(race), 1):
        if attempt.state == "running":
            (Path(attempt.worktree) / "made").write_text(attempt.id)
            assert attempt.run_id is not None
            supervisor = held(number, host=process.host())
            run = store.internal.runs.launch(
                store.internal.runs.acquire(attempt.run_id, supervisor)
            )
            store.internal.runs.end(run, ExitStatus(exit_code=0))


def finish(store: Corral, world: World) -> Race:
    """A race whose attempts are over, however far it had come."""
    race = store.races.advance(only(store).id)
    work(store, race)
    return store.races.advance(race.id)


def decided(store: Corral, world: World) -> None:
    prepare(store, world)
    start(store, world)
    race = finish(store, world)
    assert race.latest.state == "selecting"
    store.races.select(race.id, "2")


def check_places(store: Corral, world: World) -> None:
    """Every worktree on disk belongs to an attempt that is known."""
    folder = config.home() / "races"
    found = {place.worktree: place for place in store.races.clean(orphans=True)}
    for race in store.races.list().items:
        for path in filter(Path.is_dir, (folder / race.id).glob("*")):
            assert str(path) in found, path
            assert found[str(path)].attempt_id is not None
    known = {attempt.branch for race in store.races.list().items for attempt in _all(store, race)}
    branches = git(world.folder, "branch", "--format=%(refname:short)", "--list", "corral/*")
    assert {*branches.splitlines()} <= known


def _all(store: Corral, race: Race) -> list[object]:
    return [each for round in store.races.get(race.id).rounds for each in round.attempts]


def test_crashed_start_leaves_no_race_or_one_that_continues(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def recover(store: Corral, world: World) -> None:
        if not store.races.list().items:
            assert "started" not in world.deeds
            start(store, world)
        check_places(store, world)
        finish(store, world)

    def check(store: Corral, world: World) -> None:
        race = only(store)
        assert (race.latest.state, states(race)) == ("selecting", ["completed"] * 2)
        for attempt in attempts(race):
            assert git(world.folder, "show", f"{attempt.commit}:made") == attempt.id
        check_places(store, world)

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(lambda s, w: _none(start(s, w)), recover, check, prepare)
    )


def _none(value: object) -> None:
    """What a step gives back is not wanted."""


def test_another_driver_continues_after_a_driver_crashes(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def ready(store: Corral, world: World) -> None:
        prepare(store, world)
        work(store, start(store, world, checks=CHECKS))

    def drive(store: Corral, world: World) -> None:
        race = store.races.advance(only(store).id)
        world.note(race.latest.state)

    def check(store: Corral, world: World) -> None:
        race = only(store)
        assert (race.latest.state, states(race)) == ("selecting", ["completed"] * 2)
        assert [attempt.passed for attempt in attempts(race)] == [True, True]
        for attempt in attempts(race):
            assert git(world.folder, "show", f"{attempt.commit}:made") == attempt.id
            base = f"{race.base_commit}..{attempt.commit}"
            assert git(world.folder, "rev-list", "--count", base) == "1", "committed once"
        letters = store.mail.list(mailbox=race.created_by).items
        assert [letter.body["event"] for letter in letters] == ["selecting"], "told once"

    crash_at_every_commit(fresh_url, tmp_path, Scenario(drive, drive, check, ready))


def test_selection_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def ready(store: Corral, world: World) -> None:
        prepare(store, world)
        start(store, world)
        race = finish(store, world)
        (Path(attempts(race)[1].worktree) / "by-hand").write_text("a last touch")

    def select_winner(store: Corral, world: World) -> None:
        store.races.select(only(store).id, "2")
        world.note("chosen")

    def recover(store: Corral, world: World) -> None:
        latest = only(store).latest
        if latest.state == "selecting":
            assert (latest.winner_id, latest.winner_commit) == (None, None)
            assert "chosen" not in world.deeds
            select_winner(store, world)

    def check(store: Corral, world: World) -> None:
        latest = only(store).latest
        assert latest.state == "completed"
        assert latest.winner_id == latest.attempts[1].id
        assert git(world.folder, "show", f"{latest.winner_commit}:by-hand") == "a last touch"
        assert len(latest.selections) == 1

    crash_at_every_commit(fresh_url, tmp_path, Scenario(select_winner, recover, check, ready))


def test_start_of_the_next_round_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def go_on(store: Corral, world: World) -> None:
        store.races.next(only(store).id)
        world.note("begun")

    def recover(store: Corral, world: World) -> None:
        if len(only(store).rounds) == 1:
            assert "begun" not in world.deeds
            go_on(store, world)
        check_places(store, world)
        finish(store, world)

    def check(store: Corral, world: World) -> None:
        first, second = only(store).rounds
        assert (second.state, second.base_commit) == ("selecting", first.winner_commit)

    crash_at_every_commit(fresh_url, tmp_path, Scenario(go_on, recover, check, decided))


def test_automatic_selection_happens_once(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def ready(store: Corral, world: World) -> None:
        prepare(store, world)
        work(store, start(store, world, auto=True, rounds=2, checks=CHECKS))

    def drive(store: Corral, world: World) -> None:
        store.races.advance(only(store).id)

    def recover(store: Corral, world: World) -> None:
        finish(store, world)
        finish(store, world)

    def check(store: Corral, world: World) -> None:
        race = only(store)
        assert (race.state, [each.state for each in race.rounds]) == (
            "completed",
            ["completed", "completed"],
        )
        assert [len(each.attempts) for each in race.rounds] == [2, 1], "the better half goes on"
        assert [len(each.selections) for each in race.rounds] == [1, 1]

    crash_at_every_commit(fresh_url, tmp_path, Scenario(drive, recover, check, ready))


def test_export_is_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def write(store: Corral, world: World) -> None:
        store.races.export(only(store).id, str(world.folder.with_name(f"{world.folder.name}-out")))
        store.projects.register(world.folder)  # a commit, to be killed at

    def check(store: Corral, world: World) -> None:
        target = world.folder.with_name(f"{world.folder.name}-out")
        assert exports.verify_export(target) == []
        winner = only(store).latest.attempts[1]
        assert (target / "round-1-winner" / "made").read_text() == winner.id
        assert exports.find_leftovers(target.parent) == []

    crash_at_every_commit(fresh_url, tmp_path, Scenario(write, write, check, decided))


def test_merge_is_recorded_after_a_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def merge(store: Corral, world: World) -> None:
        done = store.races.merge(only(store).id)
        assert done.outcome in ("merged", "already")

    def check(store: Corral, world: World) -> None:
        race = only(store)
        assert race.merged_commit == race.latest.winner_commit
        assert git(world.folder, "show", "main:made") == race.latest.winner_id
        assert git(world.folder, "status", "--porcelain") == ""

    crash_at_every_commit(fresh_url, tmp_path, Scenario(merge, merge, check, decided))


def test_crashed_cleanup_loses_no_work(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def ready(store: Corral, world: World) -> None:
        decided(store, world)
        (Path(attempts(only(store))[0].worktree) / "unsaved").write_text("mine")

    def clean(store: Corral, world: World) -> None:
        store.races.clean(confirm=True)

    def check(store: Corral, world: World) -> None:
        loser, winner = attempts(only(store))
        assert (Path(loser.worktree) / "unsaved").read_text() == "mine"
        assert loser.cleaned_at is None
        assert not Path(winner.worktree).exists()
        assert winner.cleaned_at is not None
        assert git(world.folder, "show", f"{winner.commit}:made") == winner.id

    crash_at_every_commit(fresh_url, tmp_path, Scenario(clean, clean, check, ready))
