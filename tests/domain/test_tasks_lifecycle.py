"""Task lifecycle: claim, lease, submit, review, reassignment and checks."""

from pathlib import Path

import pytest

import corral
from corral.api import Corral
from corral.domain.tasks import review
from corral.domain.tasks.model import CommandResult, Task
from corral.kernel.clock import DAY, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Conflict, Held, IllegalMove, Invalid, NotFound, Refused
from corral.kernel.exit_status import ExitStatus
from tests.support.run_factories import running
from tests.support.store import list_events, raises_without_change, unchanged
from tests.support.task_factories import board, check_counts, finish, project_with, task_notices


def claim(store: Corral, project: str, agent: str = "ada", **options: object) -> Task:
    task = store.tasks.claim(project, agent, **options)
    assert task is not None
    return task


def _conclude(store: Corral, task: Task, result: CommandResult) -> Task:
    return store._database.write(lambda tx: review.conclude_check(tx, task, result))


def _begin_check(store: Corral, task: str) -> Task:
    return store._database.write(lambda tx: review.begin_check(tx, review.locate_check(tx, task)))


# -- claims ------------------------------------------------------------------------------------


def test_claim_takes_highest_priority_then_longest_ready(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "a", {"key": "b", "priority": 5}, "c", "d:b")
    clock.advance(SECOND)
    store.tasks.add(project, "e")
    assert claim(store, project).key == "b"
    store.tasks.skip("b")  # d becomes ready later than the others
    assert [claim(store, project).key for _ in range(4)] == ["a", "c", "d", "e"]
    assert store.tasks.claim(project, "ada") is None


def test_role_claims_its_own_tasks_and_tasks_without_a_role(store: Corral, tmp_path: Path) -> None:
    project = project_with(
        store,
        tmp_path,
        {"key": "build", "role": "builder"},
        {"key": "test", "role": "tester"},
        "any",
        agents=("plain",),
    )
    store.agents.create("tess", role="tester")
    assert [claim(store, project, "tess").key for _ in range(2)] == ["test", "any"]
    assert store.tasks.claim(project, "tess") is None
    assert store.tasks.claim(project, "tess", role="writer") is None
    assert claim(store, project, "plain").key == "build", "an agent without a role claims any task"


def test_assigned_task_is_claimed_only_by_its_assignee(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, agents=("ada", "bob"))
    store.tasks.add(project, "assigned", assignee="bob", role="unused")
    assert store.tasks.claim(project, "ada") is None
    with raises_without_change(store, Refused):
        store.tasks.claim(project, "ada", key="assigned")
    assert claim(store, project, "bob").key == "assigned"


def test_claim_by_id_rejects_a_task_of_another_project(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A")
    (tmp_path / "other").mkdir()
    other_project = store.projects.register(tmp_path / "other").id
    task = store.tasks.add(other_project, "B")
    with raises_without_change(store, Invalid) as error:
        store.tasks.claim(project, "ada", key=task.id)
    assert error.value.details["reason"] == "other_project"
    assert claim(store, other_project, key=task.id).id == task.id


def test_claim_by_key_succeeds_or_raises_the_reason(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A", "B:A", agents=("ada", "bob"))
    with raises_without_change(store, IllegalMove):
        store.tasks.claim(project, "ada", key="B")
    with raises_without_change(store, NotFound):
        store.tasks.claim(project, "ada", key="Z")
    with raises_without_change(store, NotFound):
        store.tasks.claim(project, "unknown")
    assert claim(store, project, key="A").key == "A"
    with raises_without_change(store, IllegalMove):
        store.tasks.claim(project, "bob", key="A")
    store.agents.retire("bob")
    with raises_without_change(store, Refused):
        store.tasks.claim(project, "bob")


def test_tasks_that_share_files_do_not_run_side_by_side(store: Corral, tmp_path: Path) -> None:
    project = project_with(
        store,
        tmp_path,
        {"key": "a", "files": ["src/app"]},
        {"key": "b", "files": ["src/app/main.py"]},
        {"key": "c", "files": ["src/**/*.py"]},
        {"key": "d", "files": ["docs/a.md"]},
        agents=("ada", "bob", "cyd"),
    )
    claimed = claim(store, project)
    assert claimed.key == "a"
    assert claim(store, project, "bob").key == "d", "b and c conflict with a"
    assert store.tasks.get("b").conflicts_with_id == claimed.id
    assert store.tasks.claim(project, "cyd") is None
    with raises_without_change(store, Held) as caught:
        store.tasks.claim(project, "cyd", key="b")
    assert claimed.id in str(caught.value)
    store.tasks.submit(claimed, "done")
    assert store.tasks.get("b").conflicts_with_id is None
    assert claim(store, project, "cyd").key == "b"


def test_task_with_file_conflict_can_be_claimed_after_an_edit(
    store: Corral, tmp_path: Path
) -> None:
    project = project_with(
        store, tmp_path, {"key": "a", "files": ["x"]}, {"key": "b", "files": ["x"]}
    )
    claim(store, project)
    assert store.tasks.claim(project, "ada") is None
    store.tasks.edit("b", files=["y"])
    assert claim(store, project).key == "b"


def test_tasks_with_file_conflicts_are_skipped(store: Corral, tmp_path: Path) -> None:
    conflicting = [{"key": f"k{n}", "files": ["x"]} for n in range(100)]
    project = project_with(store, tmp_path, *conflicting, {"key": "free", "priority": -1})
    claim(store, project)
    assert claim(store, project).key == "free"


# -- leases ------------------------------------------------------------------------------------


def test_claim_is_a_lease_extended_by_renew(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "A", agents=("ada", "bob"))
    claimed = claim(store, project, lease_ms=10 * SECOND)
    for _ in range(3):
        clock.advance(9 * SECOND)
        claimed = store.tasks.renew(claimed, lease_ms=10 * SECOND)
        assert store.tasks.claim(project, "bob") is None
    clock.advance(10 * SECOND)
    assert claim(store, project, "bob").fence == 2, "an expired lease needs no sweep"
    with raises_without_change(store, Held):
        store.tasks.renew(claimed)


def test_expired_claim_returns_the_task_and_then_fails_it(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "A", "B:A")
    store.settings.set("tasks.max_attempts", 2)
    claimed = claim(store, project)
    clock.advance(5 * MINUTE)
    (returned,) = store.tasks.release_due()
    assert (returned.state, returned.reason) == ("ready", "the lease of its agent expired")
    assert store.tasks.release_due() == []
    assert task_notices(store, "user:tester") == [
        ("returned", "A", "the lease of its agent expired")
    ]
    with raises_without_change(store, Refused) as caught:
        store.tasks.submit(claimed, "late")
    assert "Claim it first" in str(caught.value)
    claim(store, project)
    clock.advance(DAY)
    store.tasks.release_due()
    assert board(store, project) == {"A": "failed", "B": "blocked"}
    assert task_notices(store, "user:tester")[1:] == [
        ("failed", "A", "the lease of its agent expired, 2 times")
    ]
    check_counts(store)


def test_late_submit_of_an_unclaimed_task_is_accepted(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "A")
    claimed = claim(store, project)
    clock.advance(DAY)
    assert store.tasks.submit(claimed, "late").state == "submitted"


def test_submit_after_a_takeover_is_rejected(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "A", agents=("ada", "bob"))
    expired = claim(store, project)
    clock.advance(DAY)
    claim(store, project, "bob")
    for verb in ("submit", "fail"):
        with raises_without_change(store, Held):
            getattr(store.tasks, verb)(expired, "late")
    with raises_without_change(store, Held):
        store.tasks.release(expired)


def test_released_task_counts_no_attempt(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A")
    store.settings.set("tasks.max_attempts", 1)
    for _ in range(3):
        released = store.tasks.release(claim(store, project), reason="wrong task")
        assert (released.state, released.attempts, released.agent_id) == ("ready", 0, None)


def test_run_heartbeat_renews_its_tasks(store: Corral, clock: ManualClock, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A", "B", agents=("ada", "bob"))
    run = running(store)
    claim(store, project, key="A", run=run.id)
    claim(store, project, "bob", key="B")
    clock.advance(4 * MINUTE)
    run = store.internal.runs.heartbeat(run, output_bytes=0)
    clock.advance(4 * MINUTE)
    assert [task.key for task in store.tasks.release_due()] == ["B"]


@pytest.mark.parametrize(
    "status", [ExitStatus(exit_code=0), ExitStatus(exit_code=1), ExitStatus(signal=9)]
)
def test_run_that_ends_without_submit_releases_its_tasks(
    store: Corral, tmp_path: Path, status: ExitStatus
) -> None:
    project = project_with(store, tmp_path, "A", "B")
    run = running(store)
    claim(store, project, key="A", run=run.id)
    submitted = claim(store, project, key="B", run=run.id)
    store.tasks.submit(submitted, "done")
    ended = store.internal.runs.record_end(run, status)
    for _ in range(2):
        store.internal.runs.clean_up(ended)
    assert board(store, project) == {"A": "ready", "B": "submitted"}
    returned = [event for event, _, _ in task_notices(store, "user:tester") if event == "returned"]
    assert returned == ["returned"]
    assert ended.id in (store.tasks.get("A").reason or "")


# -- evidence and review -----------------------------------------------------------------------


def test_acceptance_needs_evidence_and_another_agent(url: str, tmp_path: Path) -> None:
    with corral.open(url, actor="user:tester") as store:
        project = project_with(store, tmp_path, "A", "B:A", agents=("ada", "rev"))
    with corral.open(url, actor="agent:ada") as ada:
        claimed = claim(ada, project)
        for evidence in ({}, "", {"commits": []}, {"text": ""}):
            with raises_without_change(ada, Invalid):
                ada.tasks.submit(claimed, evidence)
        submitted = ada.tasks.submit(
            claimed,
            {
                "commits": ["abc123"],
                "commands": [{"command": "make test", "exit_code": 0}],
                "files": ["src/a.py"],
                "text": "corral task accept A",
            },
        )
        assert submitted.state == "submitted"
        for verb in ("accept", "reject"):
            with raises_without_change(ada, Refused) as caught:
                getattr(ada.tasks, verb)("A", *(["no"] if verb == "reject" else []))
            assert "cannot review" in str(caught.value)
        assert ada.tasks.get("B").state == "pending", "dependents wait for the review"
    with corral.open(url, actor="agent:rev") as rev:
        accepted = rev.tasks.accept("A", note="approved")
        assert accepted.state == "done"
        assert accepted.evidence is not None
        assert accepted.evidence.commits == ["abc123"]
        assert rev.tasks.get("B").state == "ready"
        with unchanged(rev):
            assert rev.tasks.accept("A").state == "done"


def test_submitted_task_waits_for_review(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A")
    claimed = claim(store, project)
    store.tasks.submit(claimed, "done")
    with unchanged(store):
        assert store.tasks.submit(claimed, "repeated").state == "submitted"
    assert task_notices(store, "user:tester") == [("submitted", "A", None)]


def test_submitting_a_done_task_is_idempotent(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A")
    claimed = claim(store, project)
    store.tasks.submit(claimed, "done")
    store.tasks.accept("A")
    with unchanged(store):
        assert store.tasks.submit(claimed, "repeated").state == "done"


def test_rejected_task_is_ready_with_the_reason(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A")
    claimed = claim(store, project)
    store.tasks.submit(claimed, "done")
    rejected = store.tasks.reject("A", "no test")
    assert (rejected.state, rejected.reason) == ("ready", "no test")
    assert task_notices(store, "agent:ada") == [("rejected", "A", "no test")]
    claimed_again = claim(store, project)
    assert claimed_again.reason == "no test", "the next claimant gets the reason"
    assert claimed_again.attempts == 1


def test_only_the_claimant_can_complete_a_task(url: str, tmp_path: Path) -> None:
    with corral.open(url, actor="user:tester") as store:
        project = project_with(store, tmp_path, "A", "B", agents=("ada", "eve"))
        claimed = claim(store, project, key="A")
    with corral.open(url, actor="agent:eve") as eve:
        for task in (claimed, "A"):
            for verb in ("submit", "fail"):
                with raises_without_change(eve, Refused) as caught:
                    getattr(eve.tasks, verb)(task, "result")
                assert "ada" in str(caught.value)
        with raises_without_change(eve, Refused):
            eve.tasks.submit("B", "never claimed")
    with corral.open(url, actor="user:tester") as store, raises_without_change(store, Refused):
        store.tasks.submit("B", "never claimed")


@pytest.mark.parametrize("actor", ["run:run_1", "check", "daemon"])
def test_actor_that_is_neither_a_person_nor_an_agent_may_not_act_for_one(
    store: Corral, tmp_path: Path, actor: str
) -> None:
    project = project_with(store, tmp_path, "A", "B", agents=("ada",))
    claimed = claim(store, project, key="A")
    tasks = store.as_actor(actor).tasks
    for call in (
        lambda: tasks.renew(claimed),
        lambda: tasks.submit(claimed, "done"),
        lambda: tasks.fail(claimed, "no"),
        lambda: tasks.release(claimed),
        lambda: tasks.cancel("B"),
        lambda: tasks.skip("B"),
        lambda: tasks.edit("B", title="other"),
        lambda: tasks.reassign("B", "ada"),
        lambda: tasks.delegate("B", "ada"),
        lambda: tasks.accept("A"),
        lambda: tasks.reject("A", "no"),
    ):
        with raises_without_change(store, Refused) as caught:
            call()
        assert caught.value.details["reason"] == "no_agent"


def test_run_without_an_agent_may_manage_the_tasks_that_it_declared(
    store: Corral, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path)
    program = store.as_actor("run:run_1")
    program.tasks.add(project, "A")
    assert program.tasks.cancel("A").state == "cancelled"


def test_successful_evidence_is_accepted_automatically_if_enabled(
    store: Corral, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "A", "B", "C:A", agents=("ada",))
    store.settings.set("tasks.auto_accept", True, scope=f"project:{project}")
    passing = {"commands": [{"command": "make test", "exit_code": 0}]}
    failing = {"commands": [{"command": "make test", "exit_code": 2}]}
    assert store.tasks.submit(claim(store, project, key="A"), passing).state == "done"
    assert store.tasks.submit(claim(store, project, key="B"), failing).state == "submitted"
    assert board(store, project)["C"] == "ready"


def test_reassigned_task_cannot_be_submitted_by_the_previous_agent(
    store: Corral, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, "A", agents=("ada", "bob"))
    claimed = claim(store, project)
    reassigned = store.tasks.reassign("A", "bob")
    assert (reassigned.state, reassigned.agent_id) == ("ready", None)
    assert task_notices(store, "agent:ada") == [
        ("stop: reassigned", "A", "the task was assigned to bob")
    ]
    with raises_without_change(store, Held):
        store.tasks.submit(claimed, "late")
    assert store.tasks.claim(project, "ada") is None
    assert claim(store, project, "bob").key == "A"
    finished = store.tasks.submit("A", "done")
    store.tasks.accept(finished)
    with raises_without_change(store, Conflict):
        store.tasks.reassign("A", "ada")


# -- checks ------------------------------------------------------------------------------------


def test_successful_check_accepts_the_task(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, {"key": "A", "check": "test -e built"}, "B:A")
    (tmp_path / "built").touch()
    submitted = store.tasks.submit(claim(store, project), "done")
    assert submitted.state == "submitted"
    assert task_notices(store, "user:tester") == [], "no review is requested"
    done = store.tasks.check("A")
    assert done.state == "done"
    assert done.evidence is not None
    assert [(result.command, result.exit_code) for result in done.evidence.checks] == [
        ("test -e built", 0)
    ]
    assert board(store, project)["B"] == "ready"


def test_failed_check_rejects_the_task_with_its_output(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, {"key": "A", "check": "echo 'two tests fail'; exit 3"})
    store.tasks.submit(claim(store, project), "done")
    rejected = store.tasks.check("A")
    assert (rejected.state, rejected.reason) == ("ready", "its check exited with 3: two tests fail")
    assert rejected.evidence is not None
    assert rejected.evidence.checks[0].output == "two tests fail\n"
    assert [event for event, _, _ in task_notices(store, "agent:ada")] == ["rejected"]
    assert [event for event, _, _ in task_notices(store, "user:tester")] == ["rejected"]


def test_hanging_check_is_killed_with_its_children(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, {"key": "A", "check": "sleep 600 & sleep 600"})
    store.settings.set("tasks.check_timeout_ms", SECOND)
    store.tasks.submit(claim(store, project), "done")
    rejected = store.tasks.check("A")
    assert rejected.state == "ready"
    assert "124" in (rejected.reason or "")


def test_check_output_is_bounded_and_redacted(store: Corral, tmp_path: Path) -> None:
    script = tmp_path / "check"
    script.write_text(
        "head -c 3000000 /dev/zero | tr '\\0' 'x'; echo; echo sk-ant-api03-" + "a" * 95
    )
    project = project_with(store, tmp_path, {"key": "A", "check": "sh check; exit 1"})
    store.tasks.submit(claim(store, project), "done")
    rejected = store.tasks.check("A")
    assert rejected.evidence is not None
    output = rejected.evidence.checks[0].output
    assert output is not None
    assert len(output) < 20_000
    assert "sk-ant-api03-aaaa" not in output + (rejected.reason or "")


def test_check_runs_once_and_again_after_a_crash(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, {"key": "A", "check": "true"})
    store.tasks.submit(claim(store, project), "done")
    check = _begin_check(store, "A")
    assert store.tasks.check_next() is None
    with raises_without_change(store, Conflict):
        store.tasks.check("A")
    clock.advance(DAY)
    assert store.tasks.check_next() is not None
    assert board(store, project) == {"A": "done"}
    with unchanged(store):
        assert _conclude(store, check, CommandResult("true", 1)).state == "done"
    assert store.tasks.check_next() is None


def test_stale_check_result_is_ignored(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, {"key": "A", "check": "true"})
    store.tasks.submit(claim(store, project), "done")
    check = _begin_check(store, "A")
    store.tasks.reject("A", "rejected by a person")
    store.tasks.submit(claim(store, project), "second result")
    with unchanged(store):
        assert _conclude(store, check, CommandResult("true", 0)).state == "submitted"


def test_check_of_another_machine_is_not_claimed(store: Corral, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    folder.mkdir()
    project = project_with(store, folder, *({"key": key, "check": "true"} for key in "AB"))
    for _ in range(2):
        store.tasks.submit(claim(store, project), "done")
    folder.rename(elsewhere)
    with unchanged(store):
        assert store.tasks.check_next() is None
    with raises_without_change(store, Refused):
        store.tasks.check("A")
    elsewhere.rename(folder)
    assert [store.tasks.check_next() is not None for _ in range(3)] == [True, True, False]
    assert board(store, project) == {"A": "done", "B": "done"}


def test_check_waits_behind_no_task_of_another_machine(store: Corral, tmp_path: Path) -> None:
    for name, agent in (("first", "ada"), ("second", "bob")):
        (tmp_path / name).mkdir()
        project = project_with(
            store, tmp_path / name, {"key": name, "check": "true"}, agents=(agent,)
        )
        store.tasks.submit(claim(store, project, agent), "done")
    (tmp_path / "first").rmdir()
    checked = store.tasks.check_next()
    assert checked is not None
    assert (checked.key, checked.state) == ("second", "done")


def test_task_claimed_again_since_it_was_located_is_not_checked(
    store: Corral, tmp_path: Path
) -> None:
    project = project_with(store, tmp_path, {"key": "A", "check": "true"})
    store.tasks.submit(claim(store, project), "done")
    located = store._database.read(lambda tx: review.locate_check(tx, "A"))
    store.tasks.reject("A", "rejected by a person")
    store.tasks.submit(claim(store, project), "second result")
    with raises_without_change(store, Conflict):
        store._database.write(lambda tx: review.begin_check(tx, located))


def test_task_without_a_check_is_not_checked(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A")
    store.tasks.submit(claim(store, project), "done")
    assert store.tasks.check_next() is None
    with raises_without_change(store, Invalid):
        store.tasks.check("A")


def test_every_transition_of_a_task_is_recorded(store: Corral, tmp_path: Path) -> None:
    project = project_with(store, tmp_path, "A")
    done = finish(store, project, "A")
    assert list_events(store, done.id) == [
        "task.declare",
        "task.promote",
        "task.claim",
        "task.submit",
        "task.accept",
    ]
