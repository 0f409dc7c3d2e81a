"""A team of real agent CLIs, started from a file: they cooperate through Corral's tools."""

import json
from typing import Any

from corral.domain.runs.model import RunState
from tests.real.home import RealHome
from tests.real.machine import steps


def test_claude_and_codex_share_tasks_locks_and_mail(home: RealHome) -> None:
    for name in ("claude", "codex"):
        home.install(name)
    env = {"ENABLE_TOOL_SEARCH": "false"}  # claude offers all tools at once
    team = {
        "lead": {
            "name": "ada",
            "provider": "claude",
            "prompt": _member_steps(home, "claude", "first", write=_claude_write_step),
            "env": env,
        },
        "workers": [
            {
                "name": "bob",
                "provider": "codex",
                "prompt": _member_steps(home, "codex", "second", write=_codex_write_step),
                "approve": ["all"],
            }
        ],
        "tasks": [{"key": "first", "agent": "ada"}, {"key": "second", "agent": "bob"}],
    }
    file = home.work / "team.json"
    file.write_text(json.dumps(team))
    with home.store() as store:
        for name in ("ada", "bob"):
            store.mail.put(f"agent:{name}", f"welcome, {name}")
    started = home.json("team", "start", str(file), "--json")
    assert [item["agent"] for item in started] == ["ada", "bob"]
    ended = [home.wait_for_end(item["run_id"]) for item in started]
    assert [run.state for run in ended] == [RunState.COMPLETED] * 2, [
        home.log(run) for run in ended
    ]
    with home.store() as store:
        for name, key in (("ada", "first"), ("bob", "second")):
            task = store.tasks.get(key)
            assert (task.state, store.agents.get(task.agent_id or "").name) == ("submitted", name)
            assert task.evidence is not None
            assert (home.work / f"{key}.txt").read_text() == "hi"
            (letter, *_) = store.mail.list(mailbox=f"agent:{name}", all=True).items[::-1]
            assert (letter.body, letter.state) == (f"welcome, {name}", "done")
        locks = store.locks.list(all=True).items
        assert {(lock.owner, lock.path) for lock in locks} == {
            ("agent:ada", "first.txt"),
            ("agent:bob", "second.txt"),
        }
    home.wait_for_all_processes()


def _member_steps(home: RealHome, kind: str, key: str, *, write: Any) -> str:
    prefix = "mcp__corral__" if kind == "claude" else ""

    def call(tool: str, **args: Any) -> dict[str, Any]:
        return {"tool": f"{prefix}{tool}", "args": args}

    return steps(
        call("whoami"),
        call("task_claim", task=key),
        call("lock", path=f"{key}.txt"),
        write(home, f"{key}.txt"),
        call("inbox"),
        call("ack", letters=["let_1" if kind == "claude" else "let_2"]),
        call("task_submit", task=key, text="written", files=[f"{key}.txt"]),
        {"text": "done"},
    )


def _claude_write_step(home: RealHome, file: str) -> dict[str, Any]:
    return {"tool": "Write", "args": {"file_path": f"{home.work}/{file}", "content": "hi"}}


def _codex_write_step(home: RealHome, file: str) -> dict[str, Any]:
    return {"tool": "exec_command", "args": {"cmd": f"printf hi > {file}"}}
