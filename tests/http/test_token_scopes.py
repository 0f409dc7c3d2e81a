"""An agent token of one project is rejected for records of another, by any argument."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from corral.api import Corral
from corral.api.remote_table import RemoteCall, find_call, list_calls
from corral.http import agent_permissions
from corral.kernel.errors import Refused
from corral.services.tokens import TokenIdentity
from tests.support.grouped_cases import each_case
from tests.support.http_server import run_http_server
from tests.support.run_factories import add_run

# Arguments that refer to no record of a project: people, texts, numbers, and values set by rules.
VALUES = """
    about thread action after agent all alternatives answer answerers archived arguments
    as_spelled asker assignee at author deadline_outcome body by category check confidence confirm
    content context deadline_at deadline_ms delay_ms description due_at edit effect error evidence
    expires_at fallback fence files free_text input_tokens is_error key lead lease_ms limit member
    meta mode name newest required_votes note number options output_tokens owner path paths
    pause_ms percent priority rationale react reason remove reply_to result role emoji sender
    source state steps summary template text timeout_ms title to tokens tool tool_call_id
    tool_name ttl_ms value wait_ms wake notify
"""
OTHERS = {
    *VALUES.split(),
    # Keys of tasks of the named project.
    "depends_on",
    "tasks",
    # Checked to belong to the agent or its session.
    "letter",
    "letters",
    "mailbox",
    # Checked separately.
    "project",
    "project_id",
}


class TwoProjects(NamedTuple):
    identity: TokenIdentity
    project: str
    records: dict[str, str]
    """Records of the other project by API attribute; eve owns those that have an owner."""


def call_named(name: str) -> RemoteCall:
    call = find_call(*name.split("."))
    assert call is not None
    return call


@pytest.fixture
def two_projects(store: Corral, tmp_path: Path) -> TwoProjects:
    projects = []
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
        projects.append(store.projects.register(tmp_path / name))
    own_id, other_id = projects[0].id, projects[1].id
    eve = store.agents.create("eve")
    token = store.tokens.create("e", scope="agent:eve", project=own_id)
    run = add_run(store, "running", agent_id=eve.id, project_id=other_id)
    session = store.sessions.open("eve", project=other_id).id
    store.plans.set(["x"], agent="eve", project_id=other_id)
    records = {
        "decisions": store.decisions.record("t", author="agent:eve", project=other_id).id,
        "delegations": store.delegations.delegate("eve", "x", project_id=other_id).id,
        "groups": store.groups.create("g", members=["agent:eve"], project=other_id).id,
        "locks": store.locks.acquire(other_id, "x", "eve").id,
        "plans": "eve",
        "questions": store.questions.ask("?", asker="agent:eve", project=other_id).id,
        "runs": run,
        "sessions": session,
        "tasks": store.tasks.add(other_id, "build").id,
    }
    return TwoProjects(store.internal.tokens.check(token.value), own_id, records)


FOR_AGENTS = sorted(call.name for call in list_calls() if call.policy.agent is not None)

MATRIX = [
    (name, argument, attribute)
    for name in FOR_AGENTS
    for argument, attribute in call_named(name).objects
]

WITHOUT_RECORD = {"races", "host_requests"}
"""API attributes for which the fixture creates no record."""


@each_case(("name", "argument", "attribute"), MATRIX)
def test_record_of_another_project_is_rejected(
    store: Corral, two_projects: TwoProjects, name: str, argument: str, attribute: str
) -> None:
    call = call_named(name)
    if attribute in WITHOUT_RECORD:
        return
    record: Any = two_projects.records[attribute]
    if argument == "on":
        record = [record]
    with pytest.raises(Refused) as raised:
        agent_permissions.check_agent_call(store, two_projects.identity, call, {argument: record})
    assert raised.value.details["reason"] == "other_project"


@each_case("name", FOR_AGENTS)
def test_every_argument_is_declared_as_a_record_reference_or_not(name: str) -> None:
    """An argument names a record of a project (`objects` of the declaration), or is in OTHERS."""
    call = call_named(name)
    objects = {argument for argument, _ in call.objects}
    own = {call.subject} if call.resource_name == "mail" else set()  # checked by its mailbox
    assert {field.name for field in call.fields} - OTHERS - objects - own == set()


@each_case("name", FOR_AGENTS)
def test_another_project_cannot_be_named(
    store: Corral, two_projects: TwoProjects, name: str
) -> None:
    call = call_named(name)
    other = store.tasks.get(two_projects.records["tasks"]).project_id
    for field in call.fields:
        if field.name in ("project", "project_id"):
            with pytest.raises(Refused):
                agent_permissions.check_agent_call(
                    store, two_projects.identity, call, {field.name: other}
                )


def test_progress_is_reported_only_in_the_tokens_project(
    store: Corral, two_projects: TwoProjects
) -> None:
    task = store.tasks.add(two_projects.project, "mine")
    token = store.tokens.create("again", scope="agent:eve", project=two_projects.project).value
    with run_http_server(store) as http_server, http_server.client(token) as eve:
        values = {"summary": "half", "agent": "eve", "percent": 50}
        foreign = eve.post(
            "/api/progress/report", json=values | {"task": two_projects.records["tasks"]}
        )
        assert foreign.status_code == 403
        accepted = eve.post("/api/progress/report", json=values | {"task": task.id})
        assert accepted.status_code == 200, accepted.text
    assert [item.task_id for item in store.progress.list().items] == [task.id]
