"""The list of races: how the latest round of each stands, who won last, what it cost."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.kernel.errors import Invalid
from tests.support.race_factory import BAD, RaceFactory
from tests.support.store import unchanged, walk


@pytest.fixture
def race_factory(store: Corral, tmp_path: Path) -> RaceFactory:
    return RaceFactory(store, tmp_path)


def test_no_races_are_an_empty_page(store: Corral) -> None:
    assert store.insights.races().items == []


def test_race_is_listed_with_the_state_of_its_latest_round(
    store: Corral, race_factory: RaceFactory
) -> None:
    race = race_factory.start("ada", "grace", "linus", budget_micros=2_000_000)
    race_factory.end(race, 1, cost_micros=100_000)
    race_factory.end(race, 2, checks=[BAD], cost_micros=None)
    race_factory.begin(race, 3, cost_micros=5_000)
    with unchanged(store):
        (found,) = store.insights.races().items
    assert (found.id, found.name, found.state) == (race.id, "Make it faster", "active")
    assert (found.rounds, found.round_state, found.needs_driver) == (1, "running", True)
    assert (found.attempts, found.under_way, found.can_win) == (3, 1, 1)
    assert (found.winner_round, found.winner_agent, found.waits) == (None, None, False)
    assert (found.spent_micros, found.budget_micros) == (105_000, 2_000_000)
    assert found.spent_micros == store.races.get(race.id).spent_micros


def test_race_waits_until_its_winner_is_selected(store: Corral, race_factory: RaceFactory) -> None:
    race = race_factory.start("ada", "grace")
    race_factory.end(race, 1)
    race_factory.end(race, 2)
    race_factory.settle(race)
    race_factory.judge(race, [[2], [1]], "it is shorter")
    (found,) = store.insights.races().items
    assert (found.round_state, found.waits, found.can_win) == ("selecting", True, 2)
    assert found.spent_micros == 270_000, "what its judge cost too"
    store.races.select(race.id, "2")
    race_factory.next(race, "ada")
    (found,) = store.insights.races(state="active").items
    assert (found.rounds, found.round_state, found.waits) == (2, "running", False)
    assert (found.winner_round, found.winner_number, found.winner_agent) == (1, 2, "grace")
    race_factory.end(race, 1, checks=[BAD])
    race_factory.settle(race)
    (found,) = store.insights.races(project=race_factory.project).items
    assert (found.round_state, found.waits) == ("failed", True)


def test_races_are_paged_newest_first_and_found_by_project_and_state(
    store: Corral, race_factory: RaceFactory, tmp_path: Path
) -> None:
    ids = [race_factory.start("ada", host="elsewhere").id for _ in range(7)]
    store.races.abandon(ids[2])
    assert [race.id for race in walk(store.insights.races, limit=3)] == ids[::-1]
    assert [race.id for race in store.insights.races(state="abandoned").items] == [ids[2]]
    other = store.projects.register(tmp_path).id
    assert store.insights.races(project=other).items == []
    with pytest.raises(Invalid, match="race state"):
        store.insights.races(state="odd")
