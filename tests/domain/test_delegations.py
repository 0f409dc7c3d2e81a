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
from tests.support.store import refuses, unchanged, walk
from tests.support.task_factories import board, project_with


def letters(store: Corral, mailbox: str) -> list[Any]:
    return [letter.body for letter in store.mail.list(mailbox=mailbox).items]


@pytest.fixture
def team(store: Corral, tmp_path: Path) -> str:
    return project_with(store, tmp_path, "A", "B:A", agents=("ada", "ben", "sub"))


def test_delegation_and_result_are_sent_as_letters(store: Corral, team: str) -> None:
    delegation = store.delegations.delegate("ada", "find the leak", context="in the parser")
    (out,) = letters(store, "agent:ada")
    assert (out["delegation"], out["text"], out["context"]) == (
        delegation.id,
        "find the leak",
        "in the parser",
    )
    done = store.delegations.finish(delegation.id, {"leak": "line 7"}, agent="ada")
    assert (done.state, done.result) == ("done", {"leak": "line 7"})
    (back,) = letters(store, "user:tester")
    assert (back["delegation"], back["state"], back["result"]) == (
        delegation.id,
        "done",
        {"leak": "line 7"},
    )
    with unchanged(store):
        assert store.delegations.finish(delegation.id, "again", agent="ada") == done


def test_only_the_recipient_sends_a_result(store: Corral, team: str) -> None:
    delegation = store.delegations.delegate("ada", "find the leak")
    for verb in ("finish", "fail"):
        with refuses(store, Refused) as caught:
            getattr(store.delegations, verb)(delegation.id, "x", agent="ben")
        assert "ada" in str(caught.value)
    with refuses(store, Invalid):
        store.delegations.finish(delegation.id, "", agent="ada")
    failed = store.delegations.fail(delegation.id, "there is none", agent="ada")
    assert letters(store, "user:tester")[0]["reason"] == "there is none"
    with refuses(store, IllegalMove):
        store.delegations.cancel(failed.id)


def test_invalid_delegations_are_rejected(store: Corral, team: str) -> None:
    for given, error in (
        ({"to": "nobody", "text": "x"}, NotFound),
        ({"to": "ada", "text": ""}, Invalid),
        ({"to": "ada", "text": "x", "agent": "ada"}, Invalid),
        ({"to": "ada", "text": "x", "deadline_at": 1}, Invalid),
        ({"to": "ada", "text": "x", "deadline_at": store.now() + 2 * YEAR}, Invalid),
        ({"to": "ada", "text": "x", "parent": "dlg_zz"}, NotFound),
    ):
        with refuses(store, error):
            store.delegations.delegate(**given)
    store.agents.retire("ada")
    with refuses(store, Refused):
        store.delegations.delegate("ada", "x")


def test_cancel_removes_an_unread_letter(store: Corral, team: str) -> None:
    delegation = store.delegations.delegate("ada", "find the leak")
    (gone,) = store.delegations.cancel(delegation.id, reason="found it")
    assert (gone.state, gone.reason) == ("cancelled", "found it")
    assert store.mail.claim("agent:ada", owner="ada") == []


def test_cancel_notifies_a_recipient_that_has_read_it(store: Corral, team: str) -> None:
    delegation = store.delegations.delegate("ada", "find the leak")
    (letter,) = store.mail.claim("agent:ada", owner="ada")
    store.mail.ack(letter)
    store.delegations.cancel(delegation.id)
    assert letters(store, "agent:ada") == [
        {"kind": "delegation_ended", "delegation": delegation.id, "state": "cancelled"}
    ]
    with refuses(store, IllegalMove):
        store.delegations.finish(delegation.id, "late", agent="ada")


def test_cancel_cancels_the_parts(store: Corral, team: str) -> None:
    top = store.delegations.delegate("sub", "the whole login")
    part = store.delegations.delegate("ada", "the form", parent=top.id, agent="sub")
    other = store.delegations.delegate("ben", "the form's test", parent=part.id, agent="ada")
    assert [delegation.id for delegation in store.delegations.list(parent=top.id).items] == [
        part.id
    ]
    with refuses(store, Refused):
        store.delegations.cancel(part.id, agent="ben")
    gone = store.delegations.cancel(top.id)
    assert [delegation.id for delegation in gone] == [top.id, part.id, other.id]
    assert store.delegations.list().items == []
    with refuses(store, Conflict):
        store.delegations.delegate("ada", "more", parent=top.id)


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
        assert [each.state for each in store.delegations.expire_due()] == ["expired"]
        assert store.delegations.expire_due() == []
        assert [each["state"] for each in letters(store, "user:tester")] == ["expired"]
        with refuses(store, IllegalMove):
            store.delegations.finish(delegation.id, "late", agent="ada")


def test_delegated_task_is_assigned_and_its_result_sent_back(store: Corral, team: str) -> None:
    delegation = store.tasks.delegate("A", "ada", context="hurry")
    assert store.tasks.claim(team, "ben") is None
    taken = store.tasks.claim(team, "ada")
    assert taken is not None
    with refuses(store, Refused):
        store.delegations.finish(delegation.id, "by the way", agent="ada")
    store.tasks.submit(taken, "done")
    assert store.delegations.get(delegation.id).state == "active", "it is not accepted yet"
    store.tasks.accept("A")
    ended = store.delegations.get(delegation.id)
    assert (ended.state, ended.result["key"], ended.result["evidence"]["text"]) == (
        "done",
        "A",
        "done",
    )
    kinds = [body["kind"] for body in letters(store, "user:tester")]
    assert kinds == ["task", "delegation_result"]


def test_failed_delegated_task_sends_the_reason_back(store: Corral, team: str) -> None:
    delegation = store.tasks.delegate("A", "ada")
    taken = store.tasks.claim(team, "ada")
    assert taken is not None
    store.tasks.fail(taken, "no compiler here")
    ended = store.delegations.get(delegation.id)
    assert (ended.state, ended.reason) == ("failed", "no compiler here")


def test_cancelling_a_delegation_unassigns_the_task(store: Corral, team: str) -> None:
    delegation = store.tasks.delegate("A", "ada")
    taken = store.tasks.claim(team, "ada")
    assert taken is not None
    store.delegations.cancel(delegation.id, reason="too slow")
    assert board(store, team)["A"] == "ready"
    with refuses(store, Held):
        store.tasks.submit(taken, "but I was done")
    assert store.tasks.claim(team, "ben") is not None


def test_expired_delegation_releases_its_task(store: Corral, clock: ManualClock, team: str) -> None:
    store.tasks.delegate("A", "ada", deadline_at=store.now() + HOUR)
    clock.advance(HOUR)
    store.delegations.expire_due()
    taken = store.tasks.claim(team, "ben")
    assert taken is not None
    assert taken.key == "A"


def test_delegating_a_task_again_cancels_the_first_delegation(store: Corral, team: str) -> None:
    first = store.tasks.delegate("A", "ada")
    second = store.tasks.delegate("A", "ben")
    assert store.delegations.get(first.id).state == "cancelled"
    assert letters(store, "agent:ada") == []
    assert [delegation.id for delegation in walk(store.delegations.list)] == [second.id]
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
    pruned = {each.table: each.rows for each in store.db.prune()}
    assert (pruned["tasks"], pruned["delegations"]) == (1, 1), "B still needs A"
    assert board(store, team) == {"A": "skipped", "B": "ready"}
    with refuses(store, NotFound):
        store.delegations.get(delegation.id)


# -- plans and progress ------------------------------------------------------------------------


def test_latest_plan_replaces_the_previous_one(store: Corral, team: str) -> None:
    store.plans.set(["look", "mend"], agent="ada")
    run = add_run(store, "running", agent_id=store.agents.get("ada").id)
    store.plans.set(
        [{"content": "look", "status": "completed"}, {"content": "mend", "priority": "high"}],
        agent="ada",
        run=run,
    )
    plan = store.plans.get("ada")
    assert [(step.content, step.status) for step in plan.entries] == [
        ("look", "completed"),
        ("mend", "pending"),
    ]
    assert plan.run_id == run
    alone = add_run(store, "running")
    store.plans.set(["alone"], run=alone)
    assert store.plans.get(alone).entries[0].content == "alone"
    assert len(walk(store.plans.list, limit=1)) == 2
    with refuses(store, NotFound):
        store.plans.get("ben")


@each_case("steps", ["text", [{"status": "done"}], [1], ["x"] * 1001, [{"content": "\0"}]])
def test_invalid_plans_are_rejected(store: Corral, team: str, steps: Any) -> None:
    with refuses(store, Invalid):
        store.plans.set(steps, agent="ada")


def test_plan_and_progress_require_an_own_existing_run(
    store: Corral, team: str, tmp_path: Path
) -> None:
    ada = store.agents.get("ada").id
    run = add_run(store, "running", agent_id=ada, project_id=team, name="build")
    missing = run[:-1] + ("0" if run[-1] != "0" else "1")
    for named, who, error in (
        (missing, "ada", NotFound),
        ("nothing", "ada", NotFound),
        (run, "ben", Refused),
        (run, "nobody", NotFound),
    ):
        with refuses(store, error):
            store.plans.set(["look"], agent=who, run=named)
        with refuses(store, error):
            store.progress.report("half of it", agent=who, run=named)
    other = store.projects.register(tmp_path.parent).id
    with refuses(store, Refused) as caught:
        store.plans.set(["look"], agent="ada", run=run, project_id=other)
    assert team in str(caught.value)
    plan = store.plans.set(["look"], run="build")
    assert (plan.subject, plan.run_id, plan.project_id) == (ada, run, team), "its agent's plan"
    assert store.progress.report("half of it", agent="ada", run="build").run_id == run


def test_latest_progress_is_kept_for_each_agent_and_task(store: Corral, team: str) -> None:
    for percent in (10, 40):
        store.progress.report(f"{percent} of it", agent="ada", percent=percent, task="A")
    store.progress.report("drinking tea", agent="ada")
    store.progress.report("watching", agent="ben", task="A")
    task = store.tasks.get("A").id
    assert {(p.summary, p.percent) for p in walk(store.progress.list, task_id=task, limit=1)} == {
        ("40 of it", 40),
        ("watching", None),
    }
    assert {p.summary for p in walk(store.progress.list, agent="ada", limit=1)} == {
        "40 of it",
        "drinking tea",
    }
    assert len(walk(store.progress.list)) == 3
    for bad in (-1, 101, 1.5):
        with refuses(store, Invalid):
            store.progress.report("x", agent="ada", percent=bad)
    with refuses(store, NotFound):
        store.progress.report("x", agent="ada", task="nothing")
