"""Delegations and their results; plans and progress reports."""

from pathlib import Path
from typing import Any

import pytest

import corral
from corral.api import Corral
from corral.kernel.clock import DAY, HOUR, YEAR, ManualClock
from corral.kernel.errors import Conflict, Held, IllegalMove, Invalid, NotFound, Refused
from tests.support.grouped_cases import each_case
from tests.support.run_factories import add_run
from tests.support.store import raises_without_change, unchanged, walk
from tests.support.task_factories import board, project_with


def list_bodies(store: Corral, mailbox: str) -> list[Any]:
    return [letter.body for letter in store.mail.list(mailbox=mailbox).items]


@pytest.fixture
def team(store: Corral, tmp_path: Path) -> str:
    return project_with(store, tmp_path, "A", "B:A", agents=("ada", "ben", "sub"))


def test_delegation_and_result_are_sent_as_letters(store: Corral, team: str) -> None:
    delegation = store.delegations.delegate("ada", "find the leak", context="in the parser")
    (request,) = list_bodies(store, "agent:ada")
    assert (request["delegation"], request["text"], request["context"]) == (
        delegation.id,
        "find the leak",
        "in the parser",
    )
    finished = store.delegations.finish(delegation.id, {"leak": "line 7"}, agent="ada")
    assert (finished.state, finished.result) == ("done", {"leak": "line 7"})
    (result,) = list_bodies(store, "user:tester")
    assert (result["delegation"], result["state"], result["result"]) == (
        delegation.id,
        "done",
        {"leak": "line 7"},
    )
    with unchanged(store):
        assert store.delegations.finish(delegation.id, "again", agent="ada") == finished


def test_only_the_recipient_sends_a_result(store: Corral, team: str) -> None:
    delegation = store.delegations.delegate("ada", "find the leak")
    for verb in ("finish", "fail"):
        with raises_without_change(store, Refused) as caught:
            getattr(store.delegations, verb)(delegation.id, "x", agent="ben")
        assert "ada" in str(caught.value)
    with raises_without_change(store, Invalid):
        store.delegations.finish(delegation.id, "", agent="ada")
    failed = store.delegations.fail(delegation.id, "no leak", agent="ada")
    assert list_bodies(store, "user:tester")[0]["reason"] == "no leak"
    with raises_without_change(store, IllegalMove):
        store.delegations.cancel(failed.id)


@pytest.mark.parametrize("actor", ["run:run_1", "check"])
def test_run_without_an_agent_cannot_end_a_delegation(store: Corral, team: str, actor: str) -> None:
    delegation = store.delegations.delegate("ada", "find the leak")
    program = store.as_actor(actor).delegations
    for call in (
        lambda: program.finish(delegation.id, "line 7"),
        lambda: program.fail(delegation.id, "no leak"),
        lambda: program.cancel(delegation.id),
    ):
        with raises_without_change(store, Refused):
            call()


def test_invalid_delegations_are_rejected(store: Corral, team: str) -> None:
    for arguments, error in (
        ({"to": "unknown", "text": "x"}, NotFound),
        ({"to": "ada", "text": ""}, Invalid),
        ({"to": "ada", "text": "x", "agent": "ada"}, Invalid),
        ({"to": "ada", "text": "x", "deadline_at": 1}, Invalid),
        ({"to": "ada", "text": "x", "deadline_at": store.now() + 2 * YEAR}, Invalid),
        ({"to": "ada", "text": "x", "parent": "dlg_zz"}, NotFound),
    ):
        with raises_without_change(store, error):
            store.delegations.delegate(**arguments)
    store.agents.retire("ada")
    with raises_without_change(store, Refused):
        store.delegations.delegate("ada", "x")


def test_cancel_removes_an_unread_letter(store: Corral, team: str) -> None:
    delegation = store.delegations.delegate("ada", "find the leak")
    (cancelled,) = store.delegations.cancel(delegation.id, reason="found it")
    assert (cancelled.state, cancelled.reason) == ("cancelled", "found it")
    assert store.mail.claim("agent:ada", owner="ada") == []


def test_cancel_notifies_a_recipient_that_has_read_it(store: Corral, team: str) -> None:
    delegation = store.delegations.delegate("ada", "find the leak")
    (letter,) = store.mail.claim("agent:ada", owner="ada")
    store.mail.ack(letter)
    store.delegations.cancel(delegation.id)
    assert list_bodies(store, "agent:ada") == [
        {"kind": "delegation_ended", "delegation": delegation.id, "state": "cancelled"}
    ]
    with raises_without_change(store, IllegalMove):
        store.delegations.finish(delegation.id, "late", agent="ada")


def test_cancel_cancels_the_parts(store: Corral, team: str) -> None:
    parent = store.delegations.delegate("sub", "the whole login")
    child = store.delegations.delegate("ada", "the form", parent=parent.id, agent="sub")
    grandchild = store.delegations.delegate(
        "ben", "the test of the form", parent=child.id, agent="ada"
    )
    assert [delegation.id for delegation in store.delegations.list(parent=parent.id).items] == [
        child.id
    ]
    with raises_without_change(store, Refused):
        store.delegations.cancel(child.id, agent="ben")
    cancelled = store.delegations.cancel(parent.id)
    assert [delegation.id for delegation in cancelled] == [parent.id, child.id, grandchild.id]
    assert store.delegations.list().items == []
    with raises_without_change(store, Conflict):
        store.delegations.delegate("ada", "more", parent=parent.id)


def test_deadline_survives_restart_and_expires_the_delegation(
    url: str, clock: ManualClock, tmp_path: Path
) -> None:
    with corral.open(url, clock=clock, actor="user:tester") as store:
        project_with(store, tmp_path, agents=("ada",))
        delegation = store.delegations.delegate("ada", "x", deadline_at=store.now() + HOUR)
    clock.advance(HOUR - 1)
    with corral.open(url, clock=clock, actor="user:other") as store:
        assert store.delegations.expire_due() == []
        assert store.delegations.next_deadline() == delegation.deadline_at
        clock.advance(1)
        assert [delegation.state for delegation in store.delegations.expire_due()] == ["expired"]
        assert store.delegations.expire_due() == []
        assert [body["state"] for body in list_bodies(store, "user:tester")] == ["expired"]
        with raises_without_change(store, IllegalMove):
            store.delegations.finish(delegation.id, "late", agent="ada")


def test_delegated_task_is_assigned_and_its_result_sent_back(store: Corral, team: str) -> None:
    delegation = store.tasks.delegate("A", "ada", context="hurry")
    assert store.tasks.claim(team, "ben") is None
    task = store.tasks.claim(team, "ada")
    assert task is not None
    with raises_without_change(store, Refused):
        store.delegations.finish(delegation.id, "done", agent="ada")
    store.tasks.submit(task, "done")
    assert store.delegations.get(delegation.id).state == "active", "the task is not accepted yet"
    store.tasks.accept("A")
    ended = store.delegations.get(delegation.id)
    assert (ended.state, ended.result["key"], ended.result["evidence"]["text"]) == (
        "done",
        "A",
        "done",
    )
    kinds = [body["kind"] for body in list_bodies(store, "user:tester")]
    assert kinds == ["task", "delegation_result"]


def test_failed_delegated_task_sends_the_reason_back(store: Corral, team: str) -> None:
    delegation = store.tasks.delegate("A", "ada")
    task = store.tasks.claim(team, "ada")
    assert task is not None
    store.tasks.fail(task, "no compiler")
    ended = store.delegations.get(delegation.id)
    assert (ended.state, ended.reason) == ("failed", "no compiler")


def test_cancelling_a_delegation_unassigns_the_task(store: Corral, team: str) -> None:
    delegation = store.tasks.delegate("A", "ada")
    task = store.tasks.claim(team, "ada")
    assert task is not None
    store.delegations.cancel(delegation.id, reason="too slow")
    assert board(store, team)["A"] == "ready"
    with raises_without_change(store, Held):
        store.tasks.submit(task, "late")
    assert store.tasks.claim(team, "ben") is not None


def test_expired_delegation_releases_its_task(store: Corral, clock: ManualClock, team: str) -> None:
    store.tasks.delegate("A", "ada", deadline_at=store.now() + HOUR)
    clock.advance(HOUR)
    store.delegations.expire_due()
    task = store.tasks.claim(team, "ben")
    assert task is not None
    assert task.key == "A"


def test_delegating_a_task_again_cancels_the_first_delegation(store: Corral, team: str) -> None:
    first_delegation = store.tasks.delegate("A", "ada")
    second_delegation = store.tasks.delegate("A", "ben")
    assert store.delegations.get(first_delegation.id).state == "cancelled"
    assert list_bodies(store, "agent:ada") == []
    assert [delegation.id for delegation in walk(store.delegations.list)] == [second_delegation.id]
    assert len(walk(store.delegations.list, all=True)) == 2
    assert len(walk(store.delegations.list, to="ada")) == 1
    assert len(walk(store.delegations.list, sender="user:tester", limit=1)) == 2


def test_deleting_a_project_deletes_its_delegations(store: Corral, team: str) -> None:
    store.tasks.delegate("A", "ada")
    store.plans.set(["x"], agent="ada", project_id=team)
    store.progress.report("x", agent="ada", task="A")
    store.projects.delete(team)
    for table in ("tasks", "task_dependencies", "delegations", "plans", "progress"):
        assert store.db.sql(f"SELECT count(*) FROM {table}").rows == [[0]], table


def test_retention_keeps_tasks_and_delegations_in_use(
    store: Corral, clock: ManualClock, team: str
) -> None:
    delegation = store.tasks.delegate("A", "ada")
    store.tasks.skip("A")
    store.tasks.add(team, "old")
    store.tasks.cancel("old")
    clock.advance(366 * DAY)
    pruned = {result.table: result.rows for result in store.db.prune()}
    assert (pruned["tasks"], pruned["delegations"]) == (1, 1), "A is kept, because B depends on it"
    assert board(store, team) == {"A": "skipped", "B": "ready"}
    with raises_without_change(store, NotFound):
        store.delegations.get(delegation.id)


# -- plans and progress ------------------------------------------------------------------------


def test_latest_plan_replaces_the_previous_one(store: Corral, team: str) -> None:
    store.plans.set(["analyse", "fix"], agent="ada")
    run = add_run(store, "running", agent_id=store.agents.get("ada").id)
    store.plans.set(
        [{"content": "analyse", "status": "completed"}, {"content": "fix", "priority": "high"}],
        agent="ada",
        run=run,
    )
    plan = store.plans.get("ada")
    assert [(step.content, step.status) for step in plan.entries] == [
        ("analyse", "completed"),
        ("fix", "pending"),
    ]
    assert plan.run_id == run
    run_without_agent = add_run(store, "running")
    store.plans.set(["step"], run=run_without_agent)
    assert store.plans.get(run_without_agent).entries[0].content == "step"
    assert len(walk(store.plans.list, limit=1)) == 2
    with raises_without_change(store, NotFound):
        store.plans.get("ben")


@each_case("steps", ["text", [{"status": "done"}], [1], ["x"] * 1001, [{"content": "\0"}]])
def test_invalid_plans_are_rejected(store: Corral, team: str, steps: Any) -> None:
    with raises_without_change(store, Invalid):
        store.plans.set(steps, agent="ada")


def test_plan_and_progress_require_an_own_existing_run(
    store: Corral, team: str, tmp_path: Path
) -> None:
    ada = store.agents.get("ada").id
    run = add_run(store, "running", agent_id=ada, project_id=team, name="build")
    missing = run[:-1] + ("0" if run[-1] != "0" else "1")
    for run_name, agent, error in (
        (missing, "ada", NotFound),
        ("unknown", "ada", NotFound),
        (run, "ben", Refused),
        (run, "unknown", NotFound),
    ):
        with raises_without_change(store, error):
            store.plans.set(["step"], agent=agent, run=run_name)
        with raises_without_change(store, error):
            store.progress.report("half done", agent=agent, run=run_name)
    other_project = store.projects.register(tmp_path.parent).id
    with raises_without_change(store, Refused) as caught:
        store.plans.set(["step"], agent="ada", run=run, project_id=other_project)
    assert team in str(caught.value)
    plan = store.plans.set(["step"], run="build")
    assert (plan.subject, plan.run_id, plan.project_id) == (ada, run, team), (
        "the plan belongs to the agent of the run"
    )
    assert store.progress.report("half done", agent="ada", run="build").run_id == run


def test_latest_progress_is_kept_for_each_agent_and_task(store: Corral, team: str) -> None:
    for percent in (10, 40):
        store.progress.report(f"{percent} percent", agent="ada", percent=percent, task="A")
    store.progress.report("idle", agent="ada")
    store.progress.report("reviewing", agent="ben", task="A")
    task = store.tasks.get("A").id
    assert {
        (report.summary, report.percent)
        for report in walk(store.progress.list, task_id=task, limit=1)
    } == {
        ("40 percent", 40),
        ("reviewing", None),
    }
    assert {report.summary for report in walk(store.progress.list, agent="ada", limit=1)} == {
        "40 percent",
        "idle",
    }
    assert len(walk(store.progress.list)) == 3
    for percent_value in (-1, 101, 1.5):
        with raises_without_change(store, Invalid):
            store.progress.report("x", agent="ada", percent=percent_value)
    with raises_without_change(store, NotFound):
        store.progress.report("x", agent="ada", task="unknown")
