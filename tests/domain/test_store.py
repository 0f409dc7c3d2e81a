"""The store: URL, schema, migrations, health checks and durability."""

from pathlib import Path

import pytest

import corral
from corral.api import Corral
from corral.db.statement import Statement
from corral.kernel.clock import ManualClock
from corral.kernel.errors import Invalid, StoreUnavailable
from tests.support.grouped_cases import each_case
from tests.support.store import raises_without_change, rows, unchanged


def test_store_reports_engine_url_and_schema_version(store: Corral, engine: str) -> None:
    assert store.db.engine == engine
    assert (store.db.path is not None) == (engine == "sqlite")
    assert store.db.schema_version() >= 1
    assert store.now() == 1_800_000_000_000


def test_password_is_not_shown_in_the_url(store: Corral, url: str, engine: str) -> None:
    if engine == "sqlite":
        assert store.db.url == url
        return
    with_password = url.replace("postgres@", "postgres:hunter2@") + "?application_name=x"
    with corral.open(with_password) as store_with_password:
        assert store_with_password.db.url == url
        assert "hunter2" not in repr(store_with_password.db.check())


def test_migrated_store_has_no_pending_migrations(store: Corral) -> None:
    with unchanged(store):
        assert store.db.migrate() == []


def test_opening_creates_the_schema_once(empty_url: str, clock: ManualClock) -> None:
    with corral.open(empty_url, clock=clock) as store:
        letter = store.mail.put("agent:ada", 1)
        applied = rows(store, "SELECT number, name, applied_at FROM migrations")
        assert applied[0] == (1, "core", clock.now())
    with corral.open(empty_url, clock=clock) as store:
        assert store.mail.get(letter.id) == letter


def test_open_without_create_rejects_a_missing_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        corral.open(tmp_path / "none.db", create=False)
    assert caught.value.reason == "missing"
    assert list(tmp_path.glob("none*")) == []


def test_store_with_newer_schema_is_rejected_unchanged(store: Corral, url: str) -> None:
    insert = "INSERT INTO migrations (number, name, checksum, applied_at) VALUES (999, 'x', 'y', 1)"
    with store.transaction() as tx:
        tx.run(Statement(insert))
        if store.db.engine == "sqlite":
            tx.run(Statement("PRAGMA user_version = 999"))
    with unchanged(store):
        with pytest.raises(StoreUnavailable) as caught:
            corral.open(url)
        assert caught.value.reason == "newer"
        assert "Upgrade Corral" in caught.value.message


def test_doctor_reports_only_ok_for_a_sound_store(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    with unchanged(store):
        check_findings, verify_findings = store.db.check(), store.db.verify()
    assert {finding.state for finding in [*check_findings, *verify_findings]} == {"ok"}
    assert "schema" in [finding.check for finding in check_findings]
    assert len(verify_findings) >= len(check_findings)


def test_migration_with_another_checksum_is_reported(store: Corral) -> None:
    with store.transaction() as tx:
        tx.run(Statement("UPDATE migrations SET checksum = 'other'"))
    states = {finding.check: finding.state for finding in store.db.check()}
    assert states["schema"] == "broken"


def test_durability_is_stored_in_the_store(store: Corral, url: str, engine: str) -> None:
    if engine == "postgres":  # the server decides, and the test server does not sync
        assert store.db.durability() == "normal"
        for level in ("normal", "full"):
            with raises_without_change(store, Invalid):
                store.db.durability(level)
        return
    assert store.db.durability() == "normal"
    assert store.db.durability("full") == "full"
    with corral.open(url) as other_store:
        assert other_store.db.durability() == "full"
    assert store.db.durability("normal") == "normal"


@each_case("level", ["", "FULL", "off"])
def test_unknown_durability_is_rejected(store: Corral, level: str) -> None:
    with raises_without_change(store, Invalid):
        store.db.durability(level)


def test_closed_store_rejects_operations(url: str) -> None:
    store = corral.open(url)
    follower = store.events.follow("0-0", timeout_ms=0)
    store.mail.put("agent:ada", "x")
    next(follower)
    store.close()
    with pytest.raises(RuntimeError, match="closed"):
        store.mail.put("agent:ada", "y")
    with pytest.raises(RuntimeError, match="closed"):
        store.mail.list()
    follower.close()


def test_interrupted_backup_leaves_no_file(
    store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt_backup(target: Path) -> None:
        target.write_bytes(b"partial")
        raise KeyboardInterrupt

    monkeypatch.setattr(store._database, "backup", interrupt_backup)
    folder = tmp_path / "backups"
    folder.mkdir()
    with pytest.raises(KeyboardInterrupt):
        store.db.backup(folder / "b.db")
    assert list(folder.iterdir()) == []
