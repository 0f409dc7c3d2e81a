"""Boxed agents ask the host for something and send files: by rows of which nothing is believed."""

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


def begun(talk: SandboxConversation) -> FakeSandboxAgent:
    talk.chat.says("hello")
    return talk.begin()


def wish(ada: FakeSandboxAgent, action: str, **arguments: object) -> str:
    with ada.files.writing() as connection:
        id, _ = ada.files.put(connection, "system", {"action": action, "arguments": arguments})
    return id


def reasons(store: Corral) -> list[str]:
    found = store.events.after(None, limit=500).items
    return [str(each.data["reason"]) for each in found if each.verb == "refuse"]


# -- what it asks of the host ---------------------------------------------------------------------


def test_host_request_from_sandbox_is_decided_and_reported(
    talk: SandboxConversation,
) -> None:
    ada = begun(talk)
    id = wish(ada, "create_agent", name="helper", instructions="Help.")
    assert talk.store.internal.chat.sync_sandbox(ada.run.id).ingested == 1
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    (request,) = talk.store.host_requests.list().items
    assert (request.state, request.session_id) == ("waiting", ada.session)
    assert "in the same sandbox: none" in request.effect
    assert ada.outcomes() == {id: "delivered"}
    ada.answer("asked")
    talk.end(ada)
    talk.store.questions.answer(str(request.question_id), "yes", by="user:olga")
    talk.store.internal.chat.run_upkeep()
    again = talk.begin()
    assert "was carried out" in again.prompt()
    assert "helper" in again.prompt()
    check_store(talk.store)


def test_agent_created_by_a_sandboxed_one_is_sandboxed(talk: SandboxConversation) -> None:
    talk.store.agents.grant("ada", "host:create_agent")
    ada = begun(talk)
    wish(ada, "create_agent", name="helper", instructions="Help.")
    talk.store.internal.chat.sync_sandbox(ada.run.id)
    assert talk.store.agents.get("helper").state == "active"
    assert talk.store.settings.get("chat.sandbox", agent="helper").value == "none"
    ada.answer("done")
    talk.end(ada)
    assert "was carried out" in talk.begin().prompt(), "it learns also what was done at once"


def test_host_request_from_sandbox_is_executed_once(talk: SandboxConversation) -> None:
    talk.store.agents.grant("ada", "host:schedule_task")
    ada = begun(talk)
    wish(ada, "schedule_task", text="look around", every_seconds=3600)
    for _ in range(3):
        talk.store.internal.chat.sync_sandbox(ada.run.id)
    assert len(talk.store.schedules.list().items) == 1
    assert len(talk.store.host_requests.list().items) == 1


def test_schedule_script_from_sandbox_is_rejected(
    talk: SandboxConversation,
) -> None:
    talk.store.agents.grant("ada", "host:schedule_task")
    ada = begun(talk)
    id = wish(ada, "schedule_task", text="x", every_seconds=3600, script="touch /tmp/out")
    assert talk.store.internal.chat.sync_sandbox(ada.run.id).refused == 1
    assert "would run outside" in reasons(talk.store)[0]
    assert ada.outcomes()[id] == "failed"
    assert talk.store.schedules.list().items == []


WRONG: list[tuple[str, object]] = [
    ("create_agent", {"name": "../x", "instructions": "y"}),
    ("create_agent", {"name": "x", "instructions": "y", "admin": True}),
    ("create_agent", {"name": "ada", "instructions": "y"}),
    ("create_agent", ["name"]),
    ("destination", {"place": "plc_nowhere"}),
    ("change_task", {"task": "sch_of_another", "verb": "cancel"}),
    ("secret", {"name": "x\0y", "reason": "z"}),
]


@pytest.mark.parametrize(("action", "arguments"), WRONG)
def test_invalid_host_request_does_not_block_other_rows(
    talk: SandboxConversation, action: str, arguments: object
) -> None:
    ada = begun(talk)
    with ada.files.writing() as connection:
        content = {"action": action, "arguments": arguments}
        id, _ = ada.files.put(connection, "system", content)
    ada.say("honest")
    looked = talk.store.internal.chat.sync_sandbox(ada.run.id)
    assert (looked.ingested, looked.refused) == (1, 1)
    assert ada.outcomes()[id] == "failed"
    assert talk.store.host_requests.list().items == []
    check_store(talk.store)


def test_deny_rule_applies_to_sandboxed_requests(talk: SandboxConversation) -> None:
    talk.store.agents.grant("ada", "host:create_agent", allow=False)
    ada = begun(talk)
    wish(ada, "create_agent", name="helper", instructions="Help.")
    assert talk.store.internal.chat.sync_sandbox(ada.run.id).refused == 1
    assert len(reasons(talk.store)) == 1


# -- files ----------------------------------------------------------------------------------------


def lay_out(ada: FakeSandboxAgent, id: str, name: str, data: bytes = b"bytes") -> Path:
    path = Path(ada.files.outbox) / id / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_file_from_sandbox_is_copied_at_ingest(talk: SandboxConversation) -> None:
    ada = begun(talk)
    lay_out(ada, "out-1", "1-report.txt", b"first")
    ada.forge("out-1", 9, {"text": "the report", "files": ["1-report.txt"]})
    assert talk.store.internal.chat.sync_sandbox(ada.run.id).ingested == 1
    lay_out(ada, "out-1", "1-report.txt", b"changed")
    ada.answer(None)
    talk.end(ada)
    messages = talk.store.messages.list(limit=5).items
    files = [each.data["file"] for each in messages if each.kind == "file"]
    assert [Path(each["path"]).read_bytes() for each in files] == [b"first"]
    assert talk.shown()[0] == "the report"
    assert [each.state for each in messages if each.direction == "out"][:1] == ["sent"]


STRANGE_NAMES = ["../../secret", "/etc/passwd", "..", "", "link", "folder", "pipe", "missing"]


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_file_name_with_a_path_is_rejected(
    talk: SandboxConversation, tmp_path: Path, name: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("precious")
    ada = begun(talk)
    folder = lay_out(ada, "out-1", "plain").parent
    (folder / "link").symlink_to(secret)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    ada.forge("out-1", 9, {"text": "look", "files": ["plain", name]})
    looked = talk.store.internal.chat.sync_sandbox(ada.run.id)
    assert (looked.ingested, looked.refused) == (0, 1)
    talk.chat.deliver()
    assert talk.shown() == [], "all of it, or nothing"
    assert ada.outcomes()["out-1"] == "failed"


def test_symlink_instead_of_the_outbox_is_not_followed(
    talk: SandboxConversation, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere" / "out-1"
    elsewhere.mkdir(parents=True)
    (elsewhere / "precious").write_text("precious")
    ada = begun(talk)
    os.symlink(elsewhere.parent, ada.files.outbox)
    ada.forge("out-1", 9, {"text": "look", "files": ["precious"]})
    assert talk.store.internal.chat.sync_sandbox(ada.run.id).refused == 1
    assert "link" in reasons(talk.store)[0]


def test_too_many_or_too_large_files_are_rejected(talk: SandboxConversation) -> None:
    talk.store.settings.set("chat.max_file_bytes", 10)
    ada = begun(talk)
    lay_out(ada, "out-1", "large", b"x" * 11)
    ada.forge("out-1", 9, {"text": "x", "files": ["large"]})
    ada.forge("out-2", 11, {"text": "x", "files": ["large"] * 11})
    ada.forge("out-3", 13, {"text": "x", "files": "large"})
    assert talk.store.internal.chat.sync_sandbox(ada.run.id).refused == 3
    assert not any((config.home() / "channels").rglob("large"))


# -- the folder of a session ----------------------------------------------------------------------


def test_session_folder_is_removed_only_for_own_sessions(
    talk: SandboxConversation, clock: ManualClock
) -> None:
    store = talk.store
    ada = begun(talk)
    ada.answer("hi")
    talk.end(ada)
    locked = Path(ada.folder.home) / "locked"
    locked.mkdir()
    (locked / "file").write_text("x")
    locked.chmod(0)
    foreign, stray = (
        Path(get_session_folder(name).top) for name in (new_id("ses", clock.now()), "ses_of_whom")
    )
    for path in (foreign, stray):
        shutil.copytree(ada.folder.inside, path / "in")
        (path / "store").write_text("another")
    store.db.prune()
    assert Path(ada.folder.top).is_dir(), "the session is open"
    store.sessions.close(ada.session)
    clock.advance(3_650 * DAY)
    store.db.prune()
    assert not Path(ada.folder.top).exists()
    assert foreign.is_dir()
    assert stray.is_dir()
