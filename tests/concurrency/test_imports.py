"""Concurrent imports and retention: no row is imported twice or lost."""

from collections import Counter
from pathlib import Path

import pytest

import corral
from tests.support import source_databases
from tests.support.invariants import check_store
from tests.support.processes import run_concurrently
from tests.support.store import rows

TABLES = ("agents", "sessions", "turns", "runs", "letters", "tasks", "attempts", "import_origins")


def count_rows(url: str) -> Counter[str]:
    with corral.open(url) as store:
        return Counter(
            {name: int(rows(store, f"SELECT count(*) FROM {name}")[0][0]) for name in TABLES}
        )


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    return {tool: make(tmp_path / tool) for tool, make in source_databases.MAKERS.items()}


def import_all(url: str, sources: dict[str, Path], order: int = 1) -> None:
    with corral.open(url) as store:
        for tool, path in [*sources.items()][::order]:
            store.imports.import_database(tool, path, source=tool)


def prune(url: str) -> None:
    with corral.open(url) as store:
        for _ in range(5):
            store.db.prune()


def test_concurrent_imports_of_the_same_sources_with_retention(
    url: str, sources: dict[str, Path]
) -> None:
    corral.open(url).close()
    works = [lambda order=order: import_all(url, sources, order) for order in (1, -1)]
    run_concurrently([*works, lambda: prune(url)])
    once = count_rows(url)
    import_all(url, sources)
    prune(url)
    assert count_rows(url) == once
    assert min(once[name] for name in ("turns", "runs", "attempts")) > 0
    with corral.open(url) as store:
        names = [name for (name,) in rows(store, "SELECT name FROM agents")]
        assert len(names) == len({*names})
        check_store(store)
