"""Two transactions that change one row: the second sees the result of the first."""

from functools import partial
from pathlib import Path

import pytest

from corral.adapters.channels.contract import IncomingEvent
from corral.adapters.output.seal import seal
from corral.adapters.transcripts.reader import TranscriptHead
from corral.api import Corral
from corral.db.tx import Tx
from corral.domain.chat.inbound import receive
from corral.domain.delegations import ops as delegations
from corral.domain.groups import posts
from corral.domain.host_requests import ops as requests
from corral.domain.imports import ops as imports
from corral.domain.locks import ops as locks
from corral.domain.mail import ops as mail
from corral.domain.outputs import ops as outputs
from corral.domain.runs import ops as runs
from corral.domain.runs import supervision
from corral.domain.schedules import ops as schedules
from corral.domain.sessions import ops as sessions
from corral.domain.tasks import heartbeat as task_lease
from corral.kernel.clock import DAY, MINUTE, ManualClock
from corral.kernel.errors import Conflict, Held, Refused
from corral.kernel.exit_status import ExitStatus
from tests.support.concurrent_transactions import meanwhile
from tests.support.fake_channels import Chat
from tests.support.run_factories import held, queued, running
from tests.support.store import rows, write


def test_stop_concurrent_with_acquire_is_applied(store: Corral) -> None:
    id = queued(store).id
    stop = partial(store.internal.runs.request_stop, id, reason="not needed")
    stopped = meanwhile(store, lambda tx: supervision.acquire(tx, id, held()), stop).result()
    assert (stopped.state, stopped.stop_reason) == ("stopping", "not needed")


def test_loser_of_two_supervisors_gets_illegal_move(store: Corral) -> None:
    id = queued(store).id
    acquire = partial(store.internal.runs.acquire, id, held(2))
    loser = meanwhile(store, lambda tx: supervision.acquire(tx, id, held(1)), acquire)
    assert getattr(loser.error, "code", loser.error) == "illegal_move"
    assert store.runs.get(id).owner == "supervisor:1"


def test_end_concurrent_with_stop_keeps_exit_code_and_reason(store: Corral) -> None:
    run = running(store)
    end = partial(store.internal.runs.record_end, run, ExitStatus(exit_code=0))
    ended = meanwhile(
        store, lambda tx: runs.request_stop(tx, run.id, reason="not needed"), end
    ).result()
    assert (ended.state, ended.exit_code, ended.reason) == ("cancelled", 0, "not needed")


def test_edit_concurrent_with_firing_does_not_reset_the_next_time(
    store: Corral, clock: ManualClock
) -> None:
    schedule = store.schedules.create("queue:x", "tick", every_ms=MINUTE, script="true")
    clock.advance(MINUTE)
    edit = partial(store.schedules.edit, schedule.id, name="other")
    edited = meanwhile(store, lambda tx: schedules.fire_due(tx), edit).result()
    assert (edited.name, edited.next_at) == ("other", clock.now() + MINUTE)
    assert store.schedules.fire_due() == []


def test_letter_acked_while_its_schedule_replaces_it_stays_done(
    store: Corral, clock: ManualClock
) -> None:
    schedule = store.schedules.create("agent:ada", "tick", every_ms=MINUTE, overlap="replace")
    clock.advance(MINUTE)
    store.schedules.fire_due()
    (letter,) = store.mail.claim("agent:ada", owner="ada")
    clock.advance(MINUTE)
    fired = meanwhile(store, lambda tx: mail.ack(tx, letter), store.schedules.fire_due).result()
    assert len(fired) == 1
    assert store.mail.get(letter.id).state == "done"
    assert store.schedules.get(schedule.id).last_letter_id == fired[0].id


def test_letter_acked_while_its_delegation_is_cancelled_stays_done(store: Corral) -> None:
    store.agents.create("ada")
    delegation = store.delegations.delegate("ada", "Look at it.")
    (letter,) = store.mail.claim("agent:ada", owner="ada")
    cancel = partial(store.delegations.cancel, delegation.id)
    (cancelled,) = meanwhile(store, lambda tx: mail.ack(tx, letter), cancel).result()
    assert (cancelled.state, store.mail.get(letter.id).state) == ("cancelled", "done")
    (notice,) = store.mail.list(mailbox="agent:ada").items
    assert notice.body["kind"] == "delegation_ended"


def test_delegating_under_a_parent_being_cancelled_conflicts(store: Corral) -> None:
    store.agents.create("ada")
    store.agents.create("ben")
    whole = store.delegations.delegate("ada", "The whole login.")
    delegate = partial(store.delegations.delegate, "ben", "The form.", parent=whole.id)
    part = meanwhile(store, lambda tx: delegations.cancel(tx, whole.id), delegate)
    assert isinstance(part.error, Conflict)
    assert store.delegations.list().items == []


def test_cancel_includes_a_part_delegated_concurrently(
    store: Corral,
) -> None:
    store.agents.create("ada")
    store.agents.create("ben")
    whole = store.delegations.delegate("ada", "The whole login.")
    delegate = partial(delegations.delegate, to="ben", text="The form.", parent=whole.id)
    cancelled = meanwhile(store, delegate, partial(store.delegations.cancel, whole.id)).result()
    assert [item.to_mailbox for item in cancelled] == ["agent:ada", "agent:ben"]
    assert store.delegations.list().items == []


def test_part_finished_while_its_parent_is_cancelled_stays_done(store: Corral) -> None:
    store.agents.create("ada")
    store.agents.create("ben")
    whole = store.delegations.delegate("ada", "The whole login.")
    part = store.delegations.delegate("ben", "The form.", parent=whole.id, agent="ada")
    finish = partial(delegations.finish, delegation=part.id, result="done", agent="ben")
    cancelled = meanwhile(store, finish, partial(store.delegations.cancel, whole.id)).result()
    assert [item.id for item in cancelled] == [whole.id]
    assert store.delegations.get(part.id).state == "done"


def test_concurrent_finishes_of_a_delegation_send_one_result(store: Corral) -> None:
    store.agents.create("ada")
    id = store.delegations.delegate("ada", "Look at it.").id
    finish = partial(store.delegations.finish, id, "second", agent="ada")
    second = meanwhile(store, lambda tx: delegations.finish(tx, id, "first", agent="ada"), finish)
    assert second.result().result == "first"
    assert len(store.mail.list(mailbox="user:tester").items) == 1


def test_delegation_finished_while_its_project_is_deleted_is_reported(
    store: Corral, tmp_path: Path
) -> None:
    store.agents.create("ada")
    project = store.projects.register(tmp_path).id
    id = store.delegations.delegate("ada", "Look at it.", project_id=project).id
    finish = partial(delegations.finish, delegation=id, result="done", agent="ada")
    meanwhile(store, finish, partial(store.projects.delete, project)).result()
    (notice,) = store.mail.list(mailbox="user:tester").items
    assert notice.body["state"] == "done"


def test_letter_acked_while_its_alert_is_removed_stays_done(store: Corral) -> None:
    alert = store.alerts.add(["failed"], target_kind="command", target="true")
    first, second = (write(store, partial(_raise_alert, subject=f"run_{n}")) for n in (1, 2))
    (letter,) = store.mail.claim(alert.mailbox, owner="alert_sender")
    remove = partial(store.alerts.remove, alert.id)
    assert meanwhile(store, lambda tx: mail.ack(tx, letter), remove).result().state == "removed"
    assert [store.mail.get(id).state for id in (first, second)] == ["done", "refused"]


def _raise_alert(tx: Tx, subject: str) -> str:
    from corral.domain.alerts import ops as alerts

    return alerts.raise_alert(tx, "failed", subject, edge=1)[0].id


def test_lock_renewed_concurrently_is_not_acquired_by_another(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path).id
    lock = store.locks.acquire(project, "a.py", "user:ann", ttl_ms=MINUTE)
    clock.advance(MINUTE - 1_000)

    def renew_slowly(tx: Tx) -> None:
        locks.renew(tx, lock)
        clock.advance(2_000)

    acquire = partial(store.locks.acquire, project, "a.py", "user:eve")
    assert isinstance(meanwhile(store, renew_slowly, acquire).error, Held)
    assert store.locks.renew(lock).state == "held"


def test_task_renewed_concurrently_is_not_released(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path).id
    store.agents.create("ada")
    store.tasks.add(project, "a")
    run = running(store).id
    task = store.tasks.claim(project, "ada", run=run, lease_ms=MINUTE)
    assert task is not None
    clock.advance(MINUTE)
    renew = partial(task_lease.renew_for_run, run_id=run)
    assert meanwhile(store, renew, store.tasks.release_due).result() == []
    assert store.tasks.get(task.id).state == "running"


def test_session_reopened_while_pruning_is_kept(store: Corral, clock: ManualClock) -> None:
    id = store.sessions.open().id
    store.sessions.append(id, "user", "important")
    store.sessions.close(id)
    clock.advance(366 * DAY)
    meanwhile(store, lambda tx: sessions.reopen(tx, id), store.db.prune).result()
    assert [turn.content for turn in store.sessions.turns(id).items] == ["important"]


def test_concurrent_imports_of_a_conversation_create_one_session(store: Corral) -> None:
    head = TranscriptHead("conversation")
    begin = partial(imports.begin_transcript, source="claude", path="/srv/a.jsonl", head=head)
    second = meanwhile(store, begin, lambda: write(store, begin, repeatable=True))
    (session,) = store.sessions.list().items
    record = second.result()
    assert record is not None
    assert record.session_id == session.id


@pytest.mark.usefixtures("fake_channels")
def test_concurrent_first_messages_of_a_place_are_both_routed(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store)
    store.places.register(chat.channel.name, "room")
    store.wirings.add("ada", channel=chat.channel.name)
    for name in ("ann", "bob"):
        store.senders.approve(f"fake/{name}", person=name)
    ann = IncomingEvent(event_id="e-ann", place="room", sender="ann", text="hello")
    second = meanwhile(
        store,
        lambda tx: receive.receive(tx, chat.channel.id, ann),
        partial(chat.says, "hello", sender="bob"),
    ).result()
    assert second.state == "routed"
    assert len(store.destinations.list(agent="ada").items) == 1


def test_one_of_two_concurrent_reactions_gets_the_last_emoji_slot(store: Corral) -> None:
    store.groups.create("build", members=["user:ann", "user:bob"])
    store.groups.post("build", "hello", author="user:ann")
    for n in range(posts.MAX_EMOJIS - 1):
        store.groups.react("build", 1, f"s{n}", member="user:ann")
    first = partial(posts.react, group="build", number=1, emoji="a", member="user:ann")
    second = partial(store.groups.react, "build", 1, "b", member="user:bob")
    assert isinstance(meanwhile(store, first, second).error, Refused)
    (post,) = store.groups.read("build").items
    assert len(post.reactions) == posts.MAX_EMOJIS
    store.groups.react("build", 1, "a", member="user:bob")


def test_one_of_two_concurrent_host_requests_gets_the_last_slot(store: Corral) -> None:
    store.agents.create("ada")
    helper = {"name": "helper", "instructions": "Help."}
    for _ in range(requests.MAX_WAITING - 1):
        store.host_requests.ask("ada", "create_agent", helper)
    ask = partial(requests.ask, agent="ada", action="create_agent", arguments=helper)
    second = partial(store.host_requests.ask, "ada", "create_agent", helper)
    assert isinstance(meanwhile(store, ask, second).error, Refused)
    assert len(store.host_requests.list(agent="ada").items) == requests.MAX_WAITING


def test_chunk_added_while_its_output_is_deleted_is_rejected(store: Corral) -> None:
    store.internal.outputs.begin("run_1", host="a", folder="/x")
    add = partial(store.internal.outputs.add_chunk, "run_1", 0, b"piece")
    late = meanwhile(store, lambda tx: outputs.delete(tx, "run_1"), add)
    assert isinstance(late.error, Conflict)
    assert rows(store, "SELECT count(*) FROM output_chunks") == [(0,)]


def test_deleting_an_output_deletes_a_chunk_added_concurrently(store: Corral) -> None:
    store.internal.outputs.begin("run_1", host="a", folder="/x")
    add = partial(outputs.add_chunk, run_id="run_1", number=0, data=b"piece")
    deleted = meanwhile(store, add, partial(store.outputs.delete, "run_1")).result()
    assert deleted.state == "deleted"
    assert rows(store, "SELECT count(*) FROM output_chunks") == [(0,)]


def test_concurrent_deletes_of_an_output_are_idempotent(store: Corral) -> None:
    store.internal.outputs.begin("run_1", host="a", folder="/x")
    delete = partial(store.outputs.delete, "run_1")
    second = meanwhile(store, lambda tx: outputs.delete(tx, "run_1", "first"), delete).result()
    assert (second.state, second.reason) == ("deleted", "first")


def test_sealing_deletes_a_chunk_added_beyond_the_end(store: Corral, tmp_path: Path) -> None:
    (tmp_path / "output").write_bytes(b"one")
    index = seal(tmp_path)
    store.internal.outputs.begin("run_1", host="a", folder="/x")
    add = partial(outputs.add_chunk, run_id="run_1", number=7, data=b"piece")
    meanwhile(store, add, partial(store.internal.outputs.seal, "run_1", index)).result()
    assert rows(store, "SELECT count(*) FROM output_chunks") == [(0,)]


def test_concurrent_seals_of_an_output_are_idempotent(store: Corral, tmp_path: Path) -> None:
    (tmp_path / "output").write_bytes(b"one")
    index = seal(tmp_path)
    store.internal.outputs.begin("run_1", host="a", folder="/x")
    second = partial(store.internal.outputs.seal, "run_1", index)
    sealed = meanwhile(store, lambda tx: outputs.seal(tx, "run_1", index), second).result()
    assert (sealed.state, sealed.sha256) == ("sealed", index.sha256)
