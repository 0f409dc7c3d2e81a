"""`corral team start`: real runs of a lead and its workers."""

import json
from pathlib import Path
from typing import Any

from corral.domain.runs.model import RunState
from tests.support.home import Home

TEAM: dict[str, Any] = {
    "goal": "Everything works.",
    "lead": {"name": "ada", "command": "cat", "role": "planner"},
    "workers": [{"name": "bob", "command": "cat", "limits": {"timeout_ms": 60_000}}],
    "tasks": [{"key": "one", "title": "One"}, {"key": "two", "depends_on": ["one"]}],
}


def test_team_member_starts_with_identity_tools_and_prompt(tmp_path: Path, home: Home) -> None:
    team = TEAM | {
        "lead": TEAM["lead"] | {"command": "sh -c 'cat; echo; env'"},
        "project": "work",
    }
    (tmp_path / "work").mkdir(exist_ok=True)
    file = tmp_path / "team.json"
    file.write_text(json.dumps(team))
    members = home.json("team", "start", str(file), "--json")
    assert [(member["agent"], member["result"]) for member in members] == [
        ("ada", "started"),
        ("bob", "started"),
    ]
    for member in members:
        assert home.wait_for_end(member["run_id"]).state is RunState.COMPLETED
    with home.store() as store:
        output = b"".join(store.outputs.open(members[0]["run_id"]).lines(0, 1_000)).decode()
        assert "Everything works." in output
        assert "bob" in output
        assert "CORRAL_AGENT=ada" in output
        assert store.settings.get("runs.mcp_tools", agent="bob").value is True
        assert store.agents.get("bob").limits.timeout_ms == 60_000
        assert [task.lead for task in store.tasks.list().items] == ["agent:ada"] * 2
    restarted = home.json("team", "start", str(file), "--json")
    assert {member["run_id"] for member in restarted}.isdisjoint(
        {member["run_id"] for member in members}
    )
    with home.store() as store:
        assert len(store.tasks.list().items) == 2
        assert store.agents.get("bob").version == 1


def test_running_team_member_is_not_restarted(tmp_path: Path, home: Home) -> None:
    team = TEAM | {"lead": TEAM["lead"] | {"command": "sleep 600"}, "workers": [], "tasks": []}
    (tmp_path / "team.json").write_text(json.dumps(team))
    (first,) = home.json("team", "start", str(tmp_path / "team.json"), "--json")
    (second,) = home.json("team", "start", str(tmp_path / "team.json"), "--json")
    assert (second["run_id"], second["result"]) == (first["run_id"], "already_running")
    home.corral("stop", first["run_id"], "--grace-period", "1s")
