"""Several processes open an empty store at the same time."""

import corral
from tests.support.invariants import check_store
from tests.support.processes import run_concurrently


def test_six_processes_that_open_an_empty_store_at_once_all_succeed(empty_url: str) -> None:
    def open_and_put() -> str:
        with corral.open(empty_url) as store:
            return store.mail.put("queue:work", "hello").id

    ids = run_concurrently([open_and_put] * 6)
    assert len(set(ids)) == 6
    with corral.open(empty_url) as store:
        applied = store.db.sql("SELECT number, count(*) FROM migrations GROUP BY number").rows
        assert applied == [[number, 1] for number in range(1, store.db.schema_version() + 1)]
        assert store.db.sql("SELECT count(*) FROM store_options").rows == [[1]]
        check_store(store, schema=True)
