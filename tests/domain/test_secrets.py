"""Secrets: the store has references to secrets, never their values."""

import os
import stat
from pathlib import Path

import keyring
import keyring.backends.fail
import pytest

from corral.api import Corral
from corral.kernel.clock import ManualClock
from corral.kernel.errors import Invalid, NotFound, Refused
from tests.support.grouped_cases import each_case
from tests.support.store import contents, list_events, raises_without_change, rows, walk

VALUE = "hunter2-secret"


def test_reference_is_stored_and_replaced(store: Corral, clock: ManualClock) -> None:
    secret = store.secrets.set("token", "env:TOKEN")
    assert (secret.name, secret.reference) == ("token", "env:TOKEN")
    assert (secret.updated_at, secret.updated_by) == (clock.now(), "user:tester")
    clock.advance(1)
    replaced = store.secrets.set("token", "file:/run/token")
    assert store.secrets.get("token") == replaced
    assert rows(store, "SELECT count(*) FROM secrets") == [(1,)]
    assert list_events(store) == ["secret.set", "secret.set"]


def test_event_has_only_the_kind_of_a_reference(store: Corral) -> None:
    store.secrets.set("token", "cmd:pass show token")
    assert rows(store, "SELECT subject, CAST(data AS TEXT) FROM events") == [
        ("token", '{"kind":"cmd"}')
    ]


@each_case(
    "reference", ["env:X", "file:/x", "file:~/x y", "cmd:pass show 'a b'", "keyring:corral/token"]
)
def test_every_kind_of_reference_is_accepted(store: Corral, reference: str) -> None:
    assert store.secrets.set("token", reference).reference == reference


@each_case(
    "reference",
    [
        VALUE,
        "",
        "env:",
        "env: ",
        ":x",
        "vault:x",
        "keyring:only",
        "keyring:/x",
        "keyring:x/",
        f"env\0:{VALUE}",
        "env:\ud800",
        "cmd:" + "x" * 5_000,
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_invalid_reference_is_rejected_and_not_repeated(store: Corral, reference: str) -> None:
    with raises_without_change(store, Invalid) as caught:
        store.secrets.set("token", reference)
    assert VALUE not in f"{caught.value!r} {caught.value} {caught.value.details}"


@each_case("name", ["", "1x", "a b", "a/b", "../x", "x" * 101, "ü", "a\0", "\ud800"])
def test_invalid_secret_name_is_rejected(store: Corral, name: str) -> None:
    with raises_without_change(store, Invalid):
        store.secrets.set(name, "env:X")
    with raises_without_change(store, Invalid):
        store.secrets.save_value(name, VALUE, where="file")


def test_unknown_secret_is_not_found(store: Corral) -> None:
    for call in (store.secrets.get, store.secrets.delete, store.secrets.resolve):
        with raises_without_change(store, NotFound):
            call("unknown")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"], ids=ascii)
def test_unstorable_secret_name_is_rejected_before_the_query(store: Corral, name: str) -> None:
    for call in (store.secrets.get, store.secrets.delete, store.secrets.resolve):
        with raises_without_change(store, Invalid):
            call(name)


def test_secret_is_deleted_once(store: Corral) -> None:
    secret = store.secrets.set("token", "env:X")
    assert store.secrets.delete("token") == secret
    with raises_without_change(store, NotFound):
        store.secrets.delete("token")
    assert list_events(store) == ["secret.set", "secret.delete"]


@each_case("limit", [1, 2, 50])
def test_secrets_are_listed_by_name(store: Corral, limit: int) -> None:
    for name in ("c", "a", "B", "d", "b"):
        store.secrets.set(name, "env:X")
    names = [secret.name for secret in walk(store.secrets.list, limit=limit)]
    assert names == ["B", "a", "b", "c", "d"]


def test_secret_added_between_pages_does_not_disturb_the_list(store: Corral) -> None:
    for name in "bdf":
        store.secrets.set(name, "env:X")
    secrets = walk(store.secrets.list, limit=1, between=lambda: store.secrets.set("a", "env:X"))
    assert [secret.name for secret in secrets] == ["b", "d", "f"]


def test_list_rejects_bad_cursor_and_limit(store: Corral) -> None:
    with raises_without_change(store, Invalid):
        store.secrets.list(after="invalid")
    with raises_without_change(store, Invalid):
        store.secrets.list(limit=0)


def test_value_is_resolved_on_each_use(store: Corral, monkeypatch: pytest.MonkeyPatch) -> None:
    store.secrets.set("token", "env:TOKEN")
    with raises_without_change(store, NotFound):
        store.secrets.resolve("token")
    monkeypatch.setenv("TOKEN", VALUE)
    assert store.secrets.resolve("token") == VALUE
    assert VALUE not in str(contents(store))


def test_value_saved_in_a_file_is_private_and_not_in_the_store(
    store: Corral, tmp_path: Path
) -> None:
    secret = store.secrets.save_value("token", VALUE, where="file")
    file = Path(secret.reference.removeprefix("file:"))
    assert file.parent == tmp_path / "home" / "secrets"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert store.secrets.resolve("token") == VALUE
    assert VALUE not in str(contents(store))


def test_saving_a_value_again_replaces_it(store: Corral) -> None:
    secret = store.secrets.save_value("token", "one", where="file")
    assert store.secrets.save_value("token", "two", where="file").reference == secret.reference
    assert store.secrets.resolve("token") == "two"
    folder = Path(secret.reference.removeprefix("file:")).parent
    assert os.listdir(folder) == ["token"]


@each_case("value", ["abc\ud800", "", "a\0b"], ids=ascii)
def test_unsavable_value_leaves_no_file(store: Corral, tmp_path: Path, value: str) -> None:
    with raises_without_change(store, Invalid) as caught:
        store.secrets.save_value("token", value, where="file")
    assert "abc" not in str(caught.value)
    folder = tmp_path / "home" / "secrets"
    assert not folder.exists() or os.listdir(folder) == []


def test_missing_key_ring_error_names_the_alternative(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real package, with the backend that it falls back to on a server.
    monkeypatch.setattr(keyring, "set_password", keyring.backends.fail.Keyring().set_password)
    with raises_without_change(store, Refused) as caught:
        store.secrets.save_value("token", VALUE, where="keyring")
    assert VALUE not in str(caught.value)
    assert caught.value.details["reason"] == "no_keyring"
