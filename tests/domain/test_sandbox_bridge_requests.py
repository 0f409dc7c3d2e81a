"""Host requests and files of sandboxed agents: approval, limits and invalid rows."""

import os
import shutil
from pathlib import Path

import pytest

from corral import config
from corral.api import Corral
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.ids import new_id
from corral.services.chat.session_folder import get_session_folder
from tests.support.fake_sandbox_agent import FakeSandboxAgent, SandboxConversation
from tests.support.invariants import check_store

pytestmark = pytest.mark.usefixtures("fake_channels")


def begin_turn(conversation: SandboxConversation) -> FakeSandboxAgent:
    conversation.chat.says("hello")
    return conversation.begin()


def request_action(ada: FakeSandboxAgent, action: str, **arguments: object) -> str:
    with ada.files.writing() as connection:
        id, _ = ada.files.put(connection, "system", {"action": action, "arguments": arguments})
    return id


def list_refusal_reasons(store: Corral) -> list[str]:
    events = store.events.after(None, limit=500).items
    return [str(event.data["reason"]) for event in events if event.verb == "refuse"]


# -- host requests --------------------------------------------------------------------------------


def test_host_request_from_sandbox_is_decided_and_reported(
    conversation: SandboxConversation,
) -> None:
    ada = begin_turn(conversation)
    id = request_action(ada, "create_agent", name="helper", instructions="Help.")
    assert conversation.store.internal.chat.sync_sandbox(ada.run.id).ingested == 1
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    (request,) = conversation.store.host_requests.list().items
    assert (request.state, request.session_id) == ("waiting", ada.session)
    assert "in the same sandbox: none" in request.effect
    assert ada.outcomes() == {id: "delivered"}
    ada.answer("asked")
    conversation.end(ada)
    conversation.store.questions.answer(str(request.question_id), "yes", by="user:olga")
    conversation.store.internal.chat.run_upkeep()
    next_turn = conversation.begin()
    assert "was carried out" in next_turn.prompt()
    assert "helper" in next_turn.prompt()
    check_store(conversation.store)


def test_agent_created_by_a_sandboxed_one_is_sandboxed(conversation: SandboxConversation) -> None:
    conversation.store.agents.grant("ada", "host:create_agent")
    ada = begin_turn(conversation)
    request_action(ada, "create_agent", name="helper", instructions="Help.")
    conversation.store.internal.chat.sync_sandbox(ada.run.id)
    assert conversation.store.agents.get("helper").state == "active"
    assert conversation.store.settings.get("chat.sandbox", agent="helper").value == "none"
    ada.answer("done")
    conversation.end(ada)
    assert "was carried out" in conversation.begin().prompt(), (
        "the agent is notified of granted requests too"
    )


def test_host_request_from_sandbox_is_executed_once(conversation: SandboxConversation) -> None:
    conversation.store.agents.grant("ada", "host:schedule_prompt")
    ada = begin_turn(conversation)
    request_action(ada, "schedule_prompt", text="look around", every_seconds=3600)
    for _ in range(3):
        conversation.store.internal.chat.sync_sandbox(ada.run.id)
    assert len(conversation.store.schedules.list().items) == 1
    assert len(conversation.store.host_requests.list().items) == 1


def test_schedule_script_from_sandbox_is_rejected(
    conversation: SandboxConversation,
) -> None:
    conversation.store.agents.grant("ada", "host:schedule_prompt")
    ada = begin_turn(conversation)
    id = request_action(
        ada, "schedule_prompt", text="x", every_seconds=3600, script="touch /tmp/out"
    )
    assert conversation.store.internal.chat.sync_sandbox(ada.run.id).refused == 1
    assert "would run outside" in list_refusal_reasons(conversation.store)[0]
    assert ada.outcomes()[id] == "failed"
    assert conversation.store.schedules.list().items == []


INVALID_REQUESTS: list[tuple[str, object]] = [
    ("create_agent", {"name": "../x", "instructions": "y"}),
    ("create_agent", {"name": "x", "instructions": "y", "admin": True}),
    ("create_agent", {"name": "ada", "instructions": "y"}),
    ("create_agent", ["name"]),
    ("destination", {"place": "plc_nowhere"}),
    ("change_prompt", {"schedule": "sch_unknown", "verb": "cancel"}),
    ("secret", {"name": "x\0y", "reason": "z"}),
]


@pytest.mark.parametrize(("action", "arguments"), INVALID_REQUESTS)
def test_invalid_host_request_does_not_block_other_rows(
    conversation: SandboxConversation, action: str, arguments: object
) -> None:
    ada = begin_turn(conversation)
    with ada.files.writing() as connection:
        content = {"action": action, "arguments": arguments}
        id, _ = ada.files.put(connection, "system", content)
    ada.say("valid")
    result = conversation.store.internal.chat.sync_sandbox(ada.run.id)
    assert (result.ingested, result.refused) == (1, 1)
    assert ada.outcomes()[id] == "failed"
    assert conversation.store.host_requests.list().items == []
    check_store(conversation.store)


def test_deny_rule_applies_to_sandboxed_requests(conversation: SandboxConversation) -> None:
    conversation.store.agents.grant("ada", "host:create_agent", allow=False)
    ada = begin_turn(conversation)
    request_action(ada, "create_agent", name="helper", instructions="Help.")
    assert conversation.store.internal.chat.sync_sandbox(ada.run.id).refused == 1
    assert len(list_refusal_reasons(conversation.store)) == 1


# -- files ----------------------------------------------------------------------------------------


def write_outbox_file(ada: FakeSandboxAgent, id: str, name: str, data: bytes = b"bytes") -> Path:
    path = Path(ada.files.outbox) / id / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_file_from_sandbox_is_copied_at_ingest(conversation: SandboxConversation) -> None:
    ada = begin_turn(conversation)
    write_outbox_file(ada, "out-1", "1-report.txt", b"first")
    ada.forge("out-1", 9, {"text": "the report", "files": ["1-report.txt"]})
    assert conversation.store.internal.chat.sync_sandbox(ada.run.id).ingested == 1
    write_outbox_file(ada, "out-1", "1-report.txt", b"changed")
    ada.answer(None)
    conversation.end(ada)
    messages = conversation.store.messages.list(limit=5).items
    files = [message.data["file"] for message in messages if message.kind == "file"]
    assert [Path(file["path"]).read_bytes() for file in files] == [b"first"]
    assert conversation.shown()[0] == "the report"
    assert [message.state for message in messages if message.direction == "out"][:1] == ["sent"]


INVALID_NAMES = ["../../secret", "/etc/passwd", "..", "", "link", "folder", "pipe", "missing"]


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_file_name_with_a_path_is_rejected(
    conversation: SandboxConversation, tmp_path: Path, name: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("precious")
    ada = begin_turn(conversation)
    folder = write_outbox_file(ada, "out-1", "plain").parent
    (folder / "link").symlink_to(secret)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    ada.forge("out-1", 9, {"text": "look", "files": ["plain", name]})
    result = conversation.store.internal.chat.sync_sandbox(ada.run.id)
    assert (result.ingested, result.refused) == (0, 1)
    conversation.chat.deliver()
    assert conversation.shown() == [], "a message with an invalid file is not sent"
    assert ada.outcomes()["out-1"] == "failed"


def test_symlink_instead_of_the_outbox_is_not_followed(
    conversation: SandboxConversation, tmp_path: Path
) -> None:
    target = tmp_path / "target" / "out-1"
    target.mkdir(parents=True)
    (target / "precious").write_text("precious")
    ada = begin_turn(conversation)
    os.symlink(target.parent, ada.files.outbox)
    ada.forge("out-1", 9, {"text": "look", "files": ["precious"]})
    assert conversation.store.internal.chat.sync_sandbox(ada.run.id).refused == 1
    assert "link" in list_refusal_reasons(conversation.store)[0]


def test_too_many_or_too_large_files_are_rejected(conversation: SandboxConversation) -> None:
    conversation.store.settings.set("chat.max_file_bytes", 10)
    ada = begin_turn(conversation)
    write_outbox_file(ada, "out-1", "large", b"x" * 11)
    ada.forge("out-1", 9, {"text": "x", "files": ["large"]})
    ada.forge("out-2", 11, {"text": "x", "files": ["large"] * 11})
    ada.forge("out-3", 13, {"text": "x", "files": "large"})
    assert conversation.store.internal.chat.sync_sandbox(ada.run.id).refused == 3
    assert not any((config.home() / "channels").rglob("large"))


# -- the folder of a session ----------------------------------------------------------------------


def test_session_folder_is_removed_only_for_own_sessions(
    conversation: SandboxConversation, clock: ManualClock
) -> None:
    store = conversation.store
    ada = begin_turn(conversation)
    ada.answer("hi")
    conversation.end(ada)
    locked = Path(ada.folder.home) / "locked"
    locked.mkdir()
    (locked / "file").write_text("x")
    locked.chmod(0)
    foreign_folder, unknown_folder = (
        Path(get_session_folder(name).top) for name in (new_id("ses", clock.now()), "ses_unknown")
    )
    for path in (foreign_folder, unknown_folder):
        shutil.copytree(ada.folder.inside, path / "in")
        (path / "store").write_text("another")
    store.db.prune()
    assert Path(ada.folder.top).is_dir(), "the session is open"
    store.sessions.close(ada.session)
    clock.advance(3_650 * DAY)
    store.db.prune()
    assert not Path(ada.folder.top).exists()
    assert foreign_folder.is_dir()
    assert unknown_folder.is_dir()
