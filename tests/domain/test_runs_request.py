"""Run requests: stored launch parameters and rejected specs."""

from pathlib import Path
from typing import Any

import pytest

from corral.api import Corral
from corral.domain.runs.model import RunMode, RunState
from corral.domain.runs.spec import MAX_PROMPT
from corral.kernel.clock import DAY, HOUR, ManualClock
from corral.kernel.errors import Invalid, Refused
from tests.support.grouped_cases import each_case
from tests.support.run_factories import ended, queued, run_spec
from tests.support.store import list_events, raises_without_change, rows

MB = 1 << 20


def test_enqueued_run_is_queued_and_not_started(store: Corral, clock: ManualClock) -> None:
    run = queued(store, name="nightly", args=["-x", ""], project_id="prj_1")
    assert (run.state, run.name, run.args) == (RunState.QUEUED, "nightly", ["-x", ""])
    assert (run.fence, run.attempts, run.owner, run.pid) == (0, 0, None, None)
    assert (run.created_at, run.due_at) == (clock.now(), clock.now())
    assert (run.started_at, run.ended_at, run.lease_until, run.seen_at) == (None,) * 4
    assert (run.exit_code, run.signal, run.tokens, run.cost_micros) == (None,) * 4
    assert run.is_live
    assert store.runs.get(run.id) == run
    assert list_events(store) == ["run.queue"]


def test_launch_parameters_are_stored_unchanged(store: Corral, clock: ManualClock) -> None:
    run = queued(
        store,
        prompt="fix it\n",
        env={"LANG": "C"},
        secrets={"KEY": "env:KEY"},
        approvals=["edit"],
        raw=True,
        interactive=True,
        timeout_ms=HOUR,
        idle_ms=5,
        grace_period_ms=7,
        max_restarts=2,
        budget_micros=9,
        max_output_bytes=1_000,
        resume_session="abc",
        mode=RunMode.PTY,
        due_at=clock.now() + HOUR,
    )
    launch = store.runs.get_launch(run.id)
    assert (launch.prompt, launch.resume_session) == ("fix it\n", "abc")
    assert (launch.env, launch.secrets) == ({"LANG": "C"}, {"KEY": "env:KEY"})
    assert (launch.approvals, launch.raw, launch.interactive) == (["edit"], True, True)
    assert (launch.timeout_ms, launch.idle_ms, launch.grace_period_ms) == (HOUR, 5, 7)
    assert (launch.max_restarts, launch.budget_micros, launch.max_output_bytes) == (2, 9, 1_000)
    assert launch.environment == {}
    assert (run.mode, run.due_at) == (RunMode.PTY, clock.now() + HOUR)


def test_prompt_of_one_megabyte_is_stored_completely(store: Corral) -> None:
    prompt = ("ä€\U0001f40e line\n" * MB)[: MB // 4]
    run = queued(store, prompt=prompt)
    assert store.runs.get_launch(run.id).prompt == prompt
    assert len(prompt.encode()) < MAX_PROMPT


INVALID_SPECS: dict[str, dict[str, Any]] = {
    "no command": {"command": ""},
    "a command with a NUL": {"command": "a\0b"},
    "a command that is not UTF-8": {"command": "a\udcffb"},
    "an argument with a NUL": {"args": ["ok", "a\0b"]},
    "an argument that is not UTF-8": {"args": ["\ud800"]},
    "too many arguments": {"args": ["x" * 1_000] * 1_100},
    "no directory": {"cwd": ""},
    "a directory with a NUL": {"cwd": "/srv/\0"},
    "a directory that is too long": {"cwd": "/" + "x" * 5_000},
    "an empty name": {"name": ""},
    "a name that is too long": {"name": "x" * 201},
    "a name with a NUL": {"name": "a\0b"},
    "a name that looks like an id": {"name": "run_1"},
    "a name with a blank around it": {"name": " a"},
    "an empty prompt": {"prompt": ""},
    "a prompt with a NUL": {"prompt": "a\0b"},
    "a prompt that is not UTF-8": {"prompt": "\udcff"},
    "a prompt that is too long": {"prompt": "x" * (MAX_PROMPT + 1)},
    "a variable with a NUL": {"env": {"A": "a\0b"}},
    "a variable that is not UTF-8": {"env": {"A": "\udcff"}},
    "a secret that is not UTF-8": {"secrets": {"A": "\udcff"}},
    "an approval with a NUL": {"approvals": ["\0"]},
    "no time": {"timeout_ms": 0},
    "a negative time": {"timeout_ms": -1},
    "more than a year": {"timeout_ms": 366 * DAY},
    "a time that is not an integer": {"timeout_ms": 1.5},
    "a time that is too large for a store": {"timeout_ms": 1 << 70},
    "no idle time": {"idle_ms": 0},
    "no grace period": {"grace_period_ms": 0},
    "a grace period over a day": {"grace_period_ms": DAY + 1},
    "no output": {"max_output_bytes": 0},
    "negative restarts": {"max_restarts": -1},
    "too many restarts": {"max_restarts": 1_001},
    "restarts that are not a number": {"max_restarts": True},
    "a negative budget": {"budget_micros": -1},
    "a budget that is not an integer": {"budget_micros": 0.5},
    "a budget that is too large for a store": {"budget_micros": 1 << 70},
    "a due time that is too large for a store": {"due_at": 1 << 70},
    "a project with a NUL": {"project_id": "\0"},
    "a session with a NUL": {"session_id": "\0"},
    "an agent that is not UTF-8": {"agent_id": "\udcff"},
    "a conversation with a NUL": {"resume_session": "a\0b"},
    "a host with a NUL": {"host": "\0"},
}


@each_case("case", INVALID_SPECS)
def test_invalid_spec_is_rejected_and_stores_nothing(store: Corral, case: str) -> None:
    with raises_without_change(store, Invalid) as caught:
        store.internal.runs.enqueue(run_spec(**INVALID_SPECS[case]))
    assert caught.value.message.endswith(".")
    assert "\0" not in caught.value.message


@each_case(
    "limits",
    [
        {"timeout_ms": 1},
        {"idle_ms": 1},
        {"grace_period_ms": DAY},
        {"max_restarts": 1_000},
        {"max_output_bytes": 1},
    ],
)
def test_limits_accept_their_minimum_and_maximum(store: Corral, limits: dict[str, int]) -> None:
    launch = store.runs.get_launch(queued(store, **limits).id)
    assert {name: getattr(launch, name) for name in limits} == limits


def test_run_and_launch_are_stored_atomically(store: Corral) -> None:
    for _ in range(3):
        queued(store)
    assert rows(store, "SELECT count(*) FROM runs JOIN launches ON launches.run_id = runs.id") == [
        (3,)
    ]


@pytest.mark.parametrize("command", ["sh -c 'unclosed", " "])
def test_unparsable_command_is_rejected(store: Corral, tmp_path: Path, command: str) -> None:
    project = store.projects.register(tmp_path, command="true")
    agent = store.agents.create("ada", command="true")
    for operation in (
        lambda: store.projects.register(tmp_path, command=command),
        lambda: store.agents.create("bob", command=command),
        lambda: store.agents.edit("ada", command=command),
    ):
        with pytest.raises(Invalid) as caught:
            operation()
        assert caught.value.details["reason"] in ("bad_quotes", "empty")
    assert (store.projects.get(project.id), store.agents.get(agent.id)) == (project, agent)


def test_unknown_sandbox_is_rejected(store: Corral, tmp_path: Path) -> None:
    with raises_without_change(store, Invalid):
        store.runs.start(command=["true"], project=str(tmp_path), sandbox="unknown")
    run = store.runs.start(command=["true"], project=str(tmp_path), sandbox="landlock")
    assert store.runs.get_launch(run.id).sandbox == "landlock"


def test_resumed_command_takes_no_prompt(store: Corral, tmp_path: Path) -> None:
    run = ended(store, raw=True, cwd=str(tmp_path))
    with raises_without_change(store, Refused) as caught:
        store.runs.resume(run.id, prompt="hello")
    assert caught.value.details["reason"] == "no_agent"
