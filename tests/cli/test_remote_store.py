"""The command line on the HTTP URL of a daemon.

Tests that need only a store run again with the URL of a daemon, on SQLite, because the command line
does not depend on the engine.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_commands import (  # noqa: F401
    test_claim_that_times_out_has_its_exit_code,
    test_failing_letter_is_dead_lettered_retried_and_dropped,
    test_letter_goes_through_its_whole_life,
    test_projects_are_registered_renamed_archived_and_forgotten,
)
from tests.support.cli_runner import Cli
from tests.support.http_server import HttpServer, run_http_server


@pytest.fixture
def engine() -> str:
    return "sqlite"


@pytest.fixture
def http_server(url: str) -> Iterator[HttpServer]:
    import corral

    with corral.open(url) as store, run_http_server(store) as running:
        yield running


@pytest.fixture
def cli(
    http_server: HttpServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    monkeypatch.setenv("CORRAL_TOKEN", http_server.token)
    return Cli(capsys, http_server.url)


def test_token_is_created_listed_and_revoked(cli: Cli) -> None:
    result = cli("token", "create", "phone", "--read", "--expires-in", "30d")
    assert result.out.startswith("crl_")
    assert result.err, "the output asks the user to save it"
    assert {token["name"] for token in cli.json("token", "list")} == {"phone", "tests"}
    assert cli.json("token", "revoke", "phone")["state"] == "revoked"
    assert cli.error("token", "revoke", "phone")["exit_code"] == 3
    assert cli("token", "create", "x", "--read", "--agent", "ada").code == 2


def test_doctor_checks_a_store_behind_a_daemon(cli: Cli) -> None:
    values = {check["check"]: check["state"] for check in cli.json("doctor")}
    assert (values["store"], values["schema"]) == ("ok", "ok")
    assert "daemon" not in values, "the local daemon is not checked"


def test_invalid_token_and_missing_daemon_have_their_exit_codes(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_TOKEN", "crl_" + "0" * 64)
    assert cli.error("mail", "list")["exit_code"] == 4
    monkeypatch.delenv("CORRAL_TOKEN")
    missing = cli.error("mail", "list")
    assert (missing["exit_code"], "CORRAL_TOKEN" in missing["message"]) == (2, True)
    monkeypatch.setenv("CORRAL_TOKEN", "x")
    assert Cli(capsys, "http://127.0.0.1:1").error("mail", "list")["exit_code"] == 5


def test_local_command_is_rejected_for_a_remote_store(cli: Cli, tmp_path: Path) -> None:
    for arguments in (["db", "backup", str(tmp_path / "x")], ["run", "-d", "--", "true"]):
        result = cli.error(*arguments)
        assert result["exit_code"] == 4
        assert "over HTTP" in result["message"]


def test_overview_and_events_are_shown(cli: Cli) -> None:
    cli.json("mail", "put", "agent:ada", "x")
    assert cli.json()["queued"] == 0
    assert cli.json("events")[-1]["actor"] == "token:tests"
    assert cli.json("ps") == []
    assert cli.json("stats") == []
