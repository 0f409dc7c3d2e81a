"""Locations and identity: the store's URL, the home folder, the actor."""

import os
from pathlib import Path

import pytest

import corral
from corral import config
from corral.db import connect
from corral.kernel.errors import Invalid, StoreUnavailable
from tests.support.grouped_cases import each_case


def test_explicit_store_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_STORE", "sqlite:///from-the-environment.db")
    assert config.store_url("sqlite:///named.db") == "sqlite:///named.db"
    assert config.store_url() == "sqlite:///from-the-environment.db"


def test_default_store_is_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_STORE", "")
    assert config.store_url() == f"sqlite:///{tmp_path}/home/corral.db"
    assert not (tmp_path / "home").exists(), "a query creates no folder"


def test_home_folder_may_start_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CORRAL_HOME", "~/mine")
    assert config.home() == tmp_path / "mine"


def test_default_home_folder_is_the_platforms_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CORRAL_HOME")
    assert config.home().is_absolute()
    assert config.home().name == "corral"


def test_data_folder_follows_the_xdg_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CORRAL_HOME")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert config.home() == tmp_path / "data" / "corral"
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_DATA_HOME", ignored)
        assert config.home() == tmp_path / ".local" / "share" / "corral"


def test_actor_is_the_agent_of_the_environment_or_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert config.identify_caller(os.environ).actor == "user:tester"
    monkeypatch.setenv("CORRAL_AGENT", "ada")
    assert config.identify_caller(os.environ).actor == "agent:ada"


def test_each_store_keeps_the_caller_that_opened_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with corral.open(tmp_path / "first.db") as first:
        monkeypatch.setenv("CORRAL_AGENT", "ada")
        with corral.open(tmp_path / "second.db") as second:
            monkeypatch.delenv("CORRAL_AGENT")
            assert (first.caller.agent, second.caller.agent) == (None, "ada")
            assert (first.caller.owner, second.caller.owner) == ("user:tester", "agent:ada")


def test_user_without_environment_variable_is_the_account_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("USER")
    monkeypatch.delenv("LOGNAME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert config.user() == "root"
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)
    assert config.user() == "4000000001", "a user id without an account, as in a container"


@each_case("slashes", ["sqlite:///store.db", "sqlite:///./store.db"])
def test_three_slashes_are_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slashes: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with corral.open(slashes) as store:
        assert store.db.path == tmp_path / "store.db"


def test_four_slashes_are_an_absolute_path(tmp_path: Path) -> None:
    with corral.open(f"sqlite:///{tmp_path}/store.db") as store:
        assert store.db.path == tmp_path / "store.db"
        assert store.db.url == f"sqlite:///{tmp_path}/store.db"


def test_plain_path_is_a_store_url(tmp_path: Path) -> None:
    with corral.open(tmp_path / "store.db") as store:
        assert store.db.path == tmp_path / "store.db"


def test_missing_folders_are_created_private(tmp_path: Path) -> None:
    with corral.open(tmp_path / "a" / "b" / "store.db") as store:
        assert store.db.path is not None
        assert store.db.path.stat().st_mode & 0o777 == 0o600
        assert store.db.path.parent.stat().st_mode & 0o777 == 0o700


@each_case(
    "url",
    [
        "store.db",
        "sqlite:",
        "sqlite:/",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/x.db",
        "sqlite:///a\0b",
        "mysql://host/db",
        "postgresql:",
        "http://host/db",
        "://",
        " sqlite:///a.db",
        "SQLITE:///a.db",
    ],
    ids=ascii,
)
def test_invalid_store_url_is_rejected_with_an_example(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        connect(url, actor="user:x")
    assert "sqlite:///" in caught.value.message


def test_folder_is_rejected_as_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        corral.open(tmp_path)
    assert caught.value.reason == "unwritable"
