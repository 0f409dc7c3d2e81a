"""A race of real agent CLIs in one repository, with real pytest as the check."""

import sys
from pathlib import Path
from typing import Any

from tests.real.home import RealHome
from tests.real.machine import steps
from tests.support.race_helpers import git

RIGHT = "def add(one, other):\n    return one + other\n"
WRONG = "def add(one, other):\n    return one * other\n"
TESTS = """\
from adding import add


def test_small():
    assert add(2, 2) == 4


def test_large():
    assert add(200, 3) == 203
"""


def test_claude_and_codex_race_and_the_passing_attempt_advances(home: RealHome) -> None:
    for name in ("claude", "codex"):
        home.install(name)
    git(home.work, "init", "-q", "-b", "main")
    (home.work / "test_adding.py").write_text(TESTS)
    (home.work / ".gitignore").write_text("__pycache__/\n.pytest_cache/\n")
    git(home.work, "add", "-A")
    git(home.work, "commit", "-qm", "tests")
    prompts = (_claude_prompt(RIGHT), _codex_prompt(RIGHT), _claude_prompt(WRONG))
    result = home.json(
        "race",
        "start",
        "Write adding.py so that the tests pass.",
        *("--agents", "claude,codex,claude"),
        *(argument for prompt in prompts for argument in ("--variation", prompt)),
        *("--check", f"{sys.executable} -m pytest -q -p no:cacheprovider"),
        *("--yes", "edit", "--yes", "run", "--wait", "--json"),
    )
    (round,) = result["rounds"]
    claude, codex, wrong = round["attempts"]
    assert [item["agent"] for item in round["attempts"]] == ["claude", "codex", "claude"]
    assert [item["state"] for item in round["attempts"]] == ["completed"] * 3, [
        home.log(home.get(item["run_id"])) for item in round["attempts"]
    ]
    assert [item["passed"] for item in round["attempts"]] == [True, True, False]
    assert _count_tests(claude) == _count_tests(codex) == (2, 2, 0)
    assert _count_tests(wrong) == (2, 1, 1)
    assert wrong["score"] < min(claude["score"], codex["score"])
    for item in round["attempts"]:
        assert (item["files"], item["insertions"], item["deletions"]) == (1, 2, 0)
        assert item["session_id"]
        assert "the-race" in str(home.turns(home.get(item["run_id"]))[0].content)
    home.json("race", "select", result["id"], "2", "--reason", "clear code", "--json")
    home.json("race", "merge", result["id"], "--json")
    assert (home.work / "adding.py").read_text() == RIGHT
    assert git(home.work, "rev-list", "--count", f"main..{codex['commit']}") == "0"
    _second_round(home, result["id"])
    home.wait_for_all_processes()


def _second_round(home: RealHome, race: str) -> None:
    """Both continue from codex's result."""
    result = home.json(
        "race",
        "next",
        race,
        "Write it down.",
        *("--agents", "claude,codex"),
        *(
            "--variation",
            _claude_prompt("It adds.\n", "NOTES"),
            "--variation",
            _codex_prompt("Sums.\n", "NOTES"),
        ),
        *("--wait", "--json"),
    )
    attempts = result["rounds"][1]["attempts"]
    assert [(item["state"], item["passed"]) for item in attempts] == [("completed", True)] * 2
    for item, notes in zip(attempts, ("It adds.\n", "Sums.\n"), strict=True):
        tree = Path(item["worktree"])
        assert (tree / "adding.py").read_text() == RIGHT
        assert (tree / "NOTES").read_text() == notes


def _count_tests(attempt: dict[str, Any]) -> tuple[int, int, int]:
    (check,) = attempt["checks"]
    return check["tests"]["total"], check["tests"]["passed"], check["tests"]["failed"]


def _claude_prompt(text: str, file: str = "adding.py") -> str:
    write = {"tool": "Write", "args": {"file_path": file, "content": text}}
    return "the-race " + steps(write, {"text": "done"})


def _codex_prompt(text: str, file: str = "adding.py") -> str:
    shell = {"tool": "exec_command", "args": {"cmd": f"cat > {file} <<'END'\n{text}END"}}
    return "the-race " + steps(shell, {"text": "done"})
