"""`corral lock`, called by people and by agents."""

import json
from pathlib import Path

import pytest

from tests.support.cli_runner import Cli
from tests.support.grouped_cases import each_case


@pytest.fixture(autouse=True)
def project(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    cli.json("project", "register", str(folder))
    monkeypatch.chdir(folder)
    return folder


def as_agent(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("CORRAL_AGENT", name)


def test_lock_is_acquired_shown_renewed_and_released(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    as_agent(monkeypatch, "ada")
    monkeypatch.setenv("CORRAL_RUN", "run_1")
    lock = cli.json("lock", "acquire", "src/", "--reason", "fix it")
    assert (lock["path"], lock["owner"], lock["run_id"]) == ("src/", "agent:ada", "run_1")
    monkeypatch.chdir(project / "src")
    (held,) = cli.json("lock", "holders", "a.py")
    assert held["id"] == lock["id"]
    assert cli.json("lock", "show", lock["id"]) == lock
    assert cli.json("lock", "renew", lock["id"], "--ttl", "1h")["ttl_ms"] == 3_600_000
    assert [item["id"] for item in cli.json("lock", "list")] == [lock["id"]]
    assert cli.json("lock", "release", lock["id"])["state"] == "released"
    assert cli.json("lock", "list") == []
    assert [item["id"] for item in cli.json("lock", "list", "--all")] == [lock["id"]]


def test_lock_of_another_exits_with_4(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    as_agent(monkeypatch, "ada")
    lock = cli.json("lock", "acquire", "src/*")
    as_agent(monkeypatch, "ben")
    error = cli.error("lock", "acquire", "./src/a.py")
    assert (error["code"], error["exit_code"]) == ("held", 4)
    assert error["details"]["owner"] == "agent:ada"
    result = cli("lock", "check", "src/a.py", "README", "--json")
    assert result.code == 4
    assert [load["lock"]["id"] for load in json.loads(result.out)] == [lock["id"]]
    assert cli("lock", "check", "README").code == 0
    assert cli.error("lock", "release", lock["id"])["exit_code"] == 4
    assert cli.error("lock", "revoke", lock["id"], "--reason", "x")["exit_code"] == 4


def test_agent_cannot_act_as_another_and_a_person_can(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.json("lock", "acquire", "a", "--agent", "ada")["owner"] == "agent:ada"
    assert cli.json("lock", "acquire", "b")["owner"] == "user:tester"
    as_agent(monkeypatch, "ben")
    assert cli.error("lock", "acquire", "c", "--agent", "ada")["code"] == "refused"
    assert cli.json("lock", "acquire", "c", "--agent", "ben")["owner"] == "agent:ben"


def test_lock_request_is_queued_waited_for_and_granted(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = cli.json("lock", "acquire", "a")
    as_agent(monkeypatch, "ben")
    waiting = cli.json("lock", "request", "a")
    assert waiting["state"] == "waiting"
    assert cli.error("lock", "wait", waiting["id"], "--timeout", "10ms")["code"] == "refused"
    assert cli.error("lock", "acquire", "a", "--wait", "--timeout", "10ms")["code"] == "held"
    monkeypatch.delenv("CORRAL_AGENT")
    cli.json("lock", "release", held["id"])
    as_agent(monkeypatch, "ben")
    repeated = cli.json("lock", "acquire", "a", "--wait")
    assert repeated["state"] == "held"
    (letter,) = cli.json("mail", "list", "--mailbox", "agent:ben") or [None]
    assert letter is None or letter["body"]["state"] in ("held", "withdrawn")
    assert [lock["state"] for lock in cli.json("lock", "release", "--all")] == ["released"]
    assert cli("lock", "release").code == 2


@each_case("path", ["/", "..", "../x", "a\nb"])
def test_path_outside_the_project_is_rejected(cli: Cli, path: str) -> None:
    result = cli("lock", "acquire", path)
    assert result.code in (2, 3)
    assert result.err.startswith("corral: ")
    assert "Traceback" not in result.err
    assert cli("lock", "acquire", path, "--project", ".").code == 2


def test_linked_worktree_shares_the_locks_of_its_repository(
    cli: Cli, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=project, check=True, capture_output=True)

    git("init", "-q")
    git("-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "x")
    git("worktree", "add", "-q", str(tmp_path / "tree"))
    git("worktree", "add", "-q", str(project / "inside"))
    lock = cli.json("lock", "acquire", "src/a.py")
    for tree in (tmp_path / "tree", project / "inside"):
        monkeypatch.chdir(tree)
        (held,) = cli.json("lock", "holders", "src/a.py")
        assert held["id"] == lock["id"]
        as_agent(monkeypatch, "ben")
        assert cli.error("lock", "acquire", "src/a.py")["code"] == "held"


def test_file_touches_are_listed(cli: Cli) -> None:
    assert cli.json("lock", "touches") == []
    assert "No recorded changes" in cli("lock", "touches", "src").out
