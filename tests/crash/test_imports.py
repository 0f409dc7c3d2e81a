"""An import that crashes at any commit is complete or absent, and can be repeated."""

from pathlib import Path

import pytest

from corral.api import Corral
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit
from tests.support import source_databases
from tests.support.store import contents


def make_source(world: World, tool: str) -> Path:
    return source_databases.MAKERS[tool](world.folder)


@pytest.mark.parametrize("tool", ["flightdeck", "nanoclaw"])
def test_import_is_atomic(fresh_url: FreshUrl, tmp_path: Path, tool: str) -> None:
    def prepare(store: Corral, world: World) -> None:
        make_source(world, tool)

    def import_source(store: Corral, world: World) -> None:
        path = next(world.folder.rglob("v2.db" if tool == "nanoclaw" else "flightdeck.db"))
        world.record(f"{store.imports.import_database(tool, path, source='it').new} new")

    def check(store: Corral, world: World) -> None:
        results = world.records
        assert (
            len([record for record in results if record != "0 new"]) <= 1
            or results[0] == results[1]
        )
        path = next(world.folder.rglob("v2.db" if tool == "nanoclaw" else "flightdeck.db"))
        before = contents(store)
        assert store.imports.import_database(tool, path, source="it").new == 0
        assert contents(store) == before

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(prepare=prepare, run=import_source, recover=import_source, check=check),
    )
