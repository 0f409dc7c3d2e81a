"""A PostgreSQL dump that was loaded into another server."""

import corral
from tests.support.postgres_server import PostgresServer


def test_events_of_another_server_are_added_to_the_feed(
    postgres_server: PostgresServer, postgres_template: str
) -> None:
    url = postgres_server.new_database(template=postgres_template)
    with corral.open(url) as store:
        before = [store.mail.put("agent:ada", n).id for n in range(3)]
        # A new server counts transactions from the start, so the dump's are in its future.
        postgres_server.run_sql("UPDATE events SET xid = '900000000'", url.rpartition("/")[2])
        after = store.mail.put("agent:ada", 3).id
        assert [event.subject for event in store.events.after().items] == [after]
        (broken,) = [finding for finding in store.db.check() if finding.state == "broken"]
        assert broken.check == "feed"
        assert "corral db migrate" in broken.message
        assert store.db.migrate() == []
        assert {finding.state for finding in store.db.check()} == {"ok"}
        subjects = [event.subject for event in store.events.after().items]
        assert sorted(subjects) == sorted([*before, after])
    postgres_server.drop_database(url)
