"""The `corral race` commands."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from corral.kernel.errors import Refused
from corral.services.races import winner
from tests.support.cli_runner import Cli, CliResult
from tests.support.grouped_cases import each_case
from tests.support.home import CORRAL, is_alive, wait_until
from tests.support.race_helpers import git, make_repository

pytestmark = pytest.mark.slow

ROUND = {"number", "state", "base_commit", "winner_id", "winner_commit", "reason", "decided_by"}
ATTEMPT = {
    "id",
    "number",
    "state",
    "agent",
    "branch",
    "worktree",
    "commit",
    "passed",
    "checks",
    "score",
    "cost_micros",
    "run_id",
}


@pytest.fixture
def project(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = make_repository(tmp_path / "project")
    monkeypatch.chdir(folder)
    scripts = {
        "ada": 'cat > prompt; echo "$CORRAL_ATTEMPT" > made',
        "ben": "cat >/dev/null; echo other > made; echo more > more",
        "bad": "exit 5",
    }
    for name, script in scripts.items():
        (tmp_path / f"{name}.sh").write_text(script)
        run_ok(cli, "agent", "create", name, "--command", f"sh {tmp_path / name}.sh")
    return folder


def run_ok(cli: Cli, *arguments: str) -> CliResult:
    result = cli(*arguments)
    assert result.code == 0, result
    return result


def start_race(cli: Cli, *more: str) -> Any:
    args = ("race", "start", "Do it", "--agents", "ada,ben", "--check", "test -e made", "--wait")
    return cli.json(*args, *more)


def test_race_from_start_to_export(cli: Cli, project: Path) -> None:
    race = start_race(cli)
    (round,) = race["rounds"]
    assert {*round} >= ROUND
    assert all({*attempt} >= ATTEMPT for attempt in round["attempts"])
    assert (round["state"], round["base_commit"]) == (
        "selecting",
        git(project, "rev-parse", "HEAD"),
    )
    assert [attempt["passed"] for attempt in round["attempts"]] == [True, True]
    assert "Select the winner: corral race select" in run_ok(cli, "race", "show").out
    assert "Do it" in run_ok(cli, "race", "list").out
    chosen = cli.json("race", "select", race["id"], "1", "--reason", "smaller")
    assert chosen["rounds"][0]["winner_id"] == round["attempts"][0]["id"]
    repeated = cli("race", "select", race["id"], "2")
    assert repeated.code == 4
    assert repeated.err.count("\n") == 1
    second = cli.json("race", "next", race["id"], "Now better", "--agents", "ben", "--wait")
    assert [item["number"] for item in second["rounds"]] == [1, 2]
    assert second["rounds"][1]["base_commit"] == chosen["rounds"][0]["winner_commit"]
    assert second["rounds"][1]["attempts"][0]["agent"] == "ben"
    cli.json("race", "select", race["id"])
    run_ok(cli, "race", "export", race["id"], "out")
    assert (project / "out" / "round-2-winner" / "made").read_text() == "other\n"
    assert (project / "out" / "logs" / "round-1-attempt-2.log").exists()
    merged = cli.json("race", "merge", race["id"])
    assert merged["outcome"] == "merged"
    assert (project / "made").read_text() == "other\n"
    worktrees = cli.json("race", "clean", race["id"])
    assert {worktree["action"] for worktree in worktrees} == {"remove", "keep"}
    assert "Dry run" in run_ok(cli, "race", "clean", race["id"]).out
    assert "Removed " in run_ok(cli, "race", "clean", race["id"], "--yes").out
    run_ok(cli, "race", "finish", race["id"])
    assert cli.json("race", "show", race["id"])["state"] == "completed"
    assert "ben" in run_ok(cli, "race", "stats").out


def test_difference_of_two_attempts_is_shown(cli: Cli, project: Path) -> None:
    race = start_race(cli)["id"]
    stat = cli.json("race", "diff", race, "1", "2", "--stat")
    assert {change["name"] for change in stat} == {"made", "more", "prompt"}
    output = run_ok(cli, "race", "diff", race, "1", "2", "--file", "made").out
    assert "+other" in output
    assert "more" not in output
    assert "+more" in run_ok(cli, "race", "diff", race, "2").out
    assert cli("race", "diff", race, "7").code == 3


def test_detached_race_continues_by_itself(cli: Cli, project: Path) -> None:
    arguments = ("race", "start", "Do it", "--agents", "ada:2", "--check", "test -e made")
    race = cli.json(*arguments)["id"]

    def settled() -> bool:
        return bool(cli.json("race", "show", race)["rounds"][0]["state"] == "selecting")

    wait_until(settled, "the round is selecting")


def test_race_in_which_all_fail_has_its_exit_code(cli: Cli, project: Path) -> None:
    result = cli("race", "start", "Do it", "--agents", "bad:2", "--wait")
    assert result.code == 1
    assert "No attempt passed" in result.out
    assert cli("race", "select", "latest").code == 4
    abandoned = cli.json("race", "abandon", "latest", "--reason", "no")
    assert abandoned["state"] == "abandoned"


def test_race_that_no_node_can_run_is_not_started(
    cli: Cli, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(str(shutil.which("git")))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    error = cli.error("race", "start", "Do it", "--wait")
    assert (error["exit_code"], error["details"]["reason"]) == (4, "no_agent_found")
    assert cli.json("race", "list") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--agents", "claude:2"),
        ("--agents", "ada,claude"),
        ("--agents", "ada", "--judge", "claude"),
        ("--agents", "away"),
    ],
)
def test_race_of_missing_agents_is_not_started(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    run_ok(cli, "agent", "create", "away", "--command", "/nowhere/away --fast")
    result = cli("race", "start", "Do it", *arguments, "--wait")
    assert (result.code, result.out) == (4, "")
    assert (
        "no program /nowhere/away." if "away" in arguments else "claude on the PATH"
    ) in result.err
    assert "Install it, or use another agent" in result.err
    assert (cli.json("race", "list"), cli.json("ps", "-a")) == ([], [])


def test_round_and_judging_need_installed_agents(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = start_race(cli)["id"]
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    error = cli.error("race", "judge", race, "--agent", "claude")
    assert error["details"]["reason"] == "program_missing"
    run_ok(cli, "race", "select", race, "1")
    assert cli("race", "next", race, "--agents", "claude").code == 4
    assert [round["state"] for round in cli.json("race", "show", race)["rounds"]] == ["completed"]


def test_relative_agent_program_is_found_in_its_worktree(cli: Cli, project: Path) -> None:
    (project / "bin").mkdir()
    (project / "bin" / "own").write_text("#!/bin/sh\necho x > made\n")
    (project / "bin" / "own").chmod(0o755)
    git(project, "add", "-A")
    git(project, "commit", "-qm", "own")
    run_ok(cli, "agent", "create", "own", "--command", "own")
    run_ok(cli, "agent", "create", "near", "--command", "bin/own")
    path = f"PATH=bin:{os.environ['PATH']}"
    run_ok(cli, "race", "start", "Do it", "--agents", "own,near", "--env", path, "--wait")


def test_grafting_keeps_improvements(cli: Cli, project: Path) -> None:
    race = start_race(cli)["id"]
    run_ok(cli, "race", "select", race, "1")
    graft = cli.json("race", "graft", race, "2", "--file", "more")
    assert (graft["kept"], graft["files"]) == (True, ["more"])
    latest = cli.json("race", "show", race)["rounds"][0]
    assert git(project, "show", f"{latest['winner_commit']}:more") == "more"
    assert cli("race", "graft", race, "1", "--file", "made").code == 4, "from the winner itself"
    assert cli("race", "graft", race, "2", "--hunk", "made").code == 2


def test_failed_graft_leaves_no_worktree_and_no_branch(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = start_race(cli)["id"]
    run_ok(cli, "race", "select", race, "1")

    def fail(*_: object) -> None:
        raise Refused("The check cannot run.")

    monkeypatch.setattr(winner, "run_checks", fail)
    assert cli("race", "graft", race, "2", "--file", "more").code == 4
    assert cli("race", "graft", race, "2", "--file", "missing").code != 0
    assert "graft-" not in git(project, "worktree", "list")
    assert "graft-" not in git(project, "branch", "--all")


@each_case(
    ("arguments", "code"),
    [
        (("race", "start", "x", "--agents", "unknown"), 3),
        (("race", "start", "x", "--agents", "ada:0"), 2),
        (("race", "start", "", "--agents", "ada"), 2),
        (("race", "start", "x", "--agents", "ada:5"), 4),
        (("race", "start", "x", "--agents", "ada", "--budget", "a lot"), 2),
        (("race", "start", "x", "--agents", "ada", "--rounds", "0"), 2),
        (("race", "start", "x", "--agents", "ada", "--base", "nowhere"), 4),
        (("race", "start", "x", "--agents", "ada", "--env", "TOKEN=abc"), 4),
        (("race", "start", "x", "--agents", "ada", "--secret", "K=value"), 2),
        (("race", "start", "x", "--agents", "ada", "--sandbox", "steel"), 2),
        (("race", "start", "x", "--agents", "ada", "--judge", "ada"), 2),
        (("race", "start", "x", "--agents", "ada", "--vary", "no-such-file"), 2),
        (("race", "show", "rac_0000"), 3),
        (("race", "show"), 3),
        (("race", "next", "rac_0000"), 3),
        (("race", "clean", "rac_0000"), 3),
        (("race", "list", "--state", "odd"), 2),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    cli: Cli, project: Path, arguments: tuple[str, ...], code: int
) -> None:
    result = cli(*arguments)
    assert result.code == code, result
    assert result.out == ""
    assert result.err.strip().count("\n") == 0, result.err
    assert cli.json("race", "list") == []
    assert git(project, "worktree", "list").count("\n") == 0
    assert not os.path.exists(project / "made")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_interrupted_wait_ends_at_once_with_the_check(
    cli: Cli, url: str, project: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    checking = tmp_path / "checking"
    check = f"echo $$ > {checking}.new && mv {checking}.new {checking}; sleep 600"
    command = ("race", "start", "Do it", "--agents", "ada", "--check", check, "--wait", *more)
    process = subprocess.Popen(
        [*CORRAL, "--store", url, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # The child of a shell without job control ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until(checking.exists, "the check runs")
    pid = int(checking.read_text())
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    (race,) = cli.json("race", "list")
    assert f"corral race wait {race['id']}" in error
    assert f"corral race abandon {race['id']}" in error
    assert "Traceback" not in error
    wait_until(lambda: not is_alive(pid), "the check has ended")
    assert cli.json("race", "abandon", race["id"])["state"] == "abandoned"
