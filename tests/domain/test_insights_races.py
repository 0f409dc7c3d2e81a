"""The list of races: state of the latest round, last winner and cost."""

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
        (summary,) = store.insights.races().items
    assert (summary.id, summary.name, summary.state) == (race.id, "Make it faster", "active")
    assert (summary.rounds, summary.round_state, summary.needs_driver) == (1, "running", True)
    assert (summary.attempts, summary.under_way, summary.can_win) == (3, 1, 1)
    assert (summary.winner_round, summary.winner_agent, summary.waits) == (None, None, False)
    assert (summary.spent_micros, summary.budget_micros) == (105_000, 2_000_000)
    assert summary.spent_micros == store.races.get(race.id).spent_micros


def test_race_waits_until_its_winner_is_selected(store: Corral, race_factory: RaceFactory) -> None:
    race = race_factory.start("ada", "grace")
    race_factory.end(race, 1)
    race_factory.end(race, 2)
    race_factory.settle(race)
    race_factory.judge(race, [[2], [1]], "shorter")
    (summary,) = store.insights.races().items
    assert (summary.round_state, summary.waits, summary.can_win) == ("selecting", True, 2)
    assert summary.spent_micros == 270_000, "the cost includes the judge"
    store.races.select(race.id, "2")
    race_factory.next(race, "ada")
    (summary,) = store.insights.races(state="active").items
    assert (summary.rounds, summary.round_state, summary.waits) == (2, "running", False)
    assert (summary.winner_round, summary.winner_number, summary.winner_agent) == (1, 2, "grace")
    race_factory.end(race, 1, checks=[BAD])
    race_factory.settle(race)
    (summary,) = store.insights.races(project=race_factory.project).items
    assert (summary.round_state, summary.waits) == ("failed", True)


def test_races_are_paged_newest_first_and_found_by_project_and_state(
    store: Corral, race_factory: RaceFactory, tmp_path: Path
) -> None:
    ids = [race_factory.start("ada", host="other-host").id for _ in range(7)]
    store.races.abandon(ids[2])
    assert [race.id for race in walk(store.insights.races, limit=3)] == ids[::-1]
    assert [race.id for race in store.insights.races(state="abandoned").items] == [ids[2]]
    other_project = store.projects.register(tmp_path).id
    assert store.insights.races(project=other_project).items == []
    with pytest.raises(Invalid, match="race state"):
        store.insights.races(state="unknown")
