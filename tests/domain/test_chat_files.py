"""Files that agents send: out of their own folders, as they were when they were sent."""

import os
from pathlib import Path

import pytest

from corral.adapters.channels.contract import ChannelTraits, MessageKind, OutgoingMessage
from corral.api import Corral
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Invalid, NotFound, Refused
from tests.support.fake_channels import Chat, FakeAdapter
from tests.support.store import refuses

pytestmark = pytest.mark.usefixtures("fake_channels")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "desk"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "report.txt").write_text("the report")
    (folder / "other.txt").write_text("something else")
    (tmp_path / "secret.txt").write_text("not yours")
    return folder


@pytest.fixture
def chat(store: Corral, work: Path) -> Chat:
    store.agents.create("ada", provider="scripted", workspace=str(work))
    made = Chat(store)
    made.says("hello")
    store.destinations.grant("ada", made.place(), name="room")
    return made


def sent(chat: Chat) -> list[OutgoingMessage]:
    return [each for each in chat.platform.taken if each.kind is MessageKind.FILE]


def test_sent_file_is_copied_at_the_time_of_sending(
    store: Corral, chat: Chat, work: Path, tmp_path: Path
) -> None:
    report = work / "sub" / "report.txt"
    said, file = store.messages.send_files([str(report)], agent="ada", to="room", text="Here.")
    assert (said.kind, said.text) == (MessageKind.TEXT, "Here.")
    assert (file.kind, file.text, file.state) == (MessageKind.FILE, "report.txt", "queued")
    report.write_text("another")
    report.unlink()
    assert chat.deliver() == ["done", "done"]
    (out,) = sent(chat)
    assert out.file is not None
    kept = Path(str(out.file.path))
    assert kept.read_text() == "the report"
    assert kept.is_relative_to(tmp_path / "home" / "channels" / "sent")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert (out.file.name, out.file.bytes, out.file.type) == ("report.txt", 10, "text/plain")


def test_files_with_the_same_key_are_sent_once(store: Corral, chat: Chat, work: Path) -> None:
    for _ in range(2):
        first = store.messages.send_files(
            ["sub/report.txt"], agent="ada", to="room", text="Here.", key="k"
        )
    again = store.messages.send_files(
        ["sub/report.txt"], agent="ada", to="room", text="Here.", key="k"
    )
    assert [each.id for each in first] == [each.id for each in again]
    chat.deliver()
    assert len(sent(chat)) == 1


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("../secret.txt", Refused),
        ("sub/../../secret.txt", Refused),
        ("{tmp}/secret.txt", Refused),
        ("/etc/passwd", Refused),
        ("{tmp}/desk/sub/../../secret.txt", Refused),
        ("link.txt", Invalid),
        ("folder-link/report.txt", Invalid),
        ("link-out/secret.txt", Invalid),
        ("sub", Invalid),
        ("pipe", Invalid),
        ("never.txt", Invalid),
        ("a\0b", Refused),
        ("", Invalid),
    ],
)
def test_file_outside_the_agents_folders_or_symlink_is_rejected(
    store: Corral, chat: Chat, work: Path, tmp_path: Path, given: str, error: type[Exception]
) -> None:
    (work / "link.txt").symlink_to(tmp_path / "secret.txt")
    (work / "folder-link").symlink_to(work / "sub")
    (work / "link-out").symlink_to(tmp_path)
    os.mkfifo(work / "pipe")
    with refuses(store, error):
        store.messages.send_files(
            ["sub/report.txt", given.replace("{tmp}", str(tmp_path))], agent="ada", to="room"
        )
    assert chat.deliver() == []


def test_files_of_corrals_home_cannot_be_sent(store: Corral, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    (home / "corral.toml").write_text("private")
    store.agents.create("eve", provider="scripted", workspace=str(tmp_path))
    chat = Chat(store)
    chat.says("hello")
    store.destinations.grant("eve", chat.place(), name="room")
    with refuses(store, Refused):
        store.messages.send_files(["home/corral.toml"], agent="eve", to="room")


def test_only_folders_of_the_agent_itself_count(store: Corral, chat: Chat, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "plan.txt").write_text("a plan")
    project = store.projects.register(str(other))
    store.agents.create("ben", provider="scripted")
    theirs = store.sessions.open("ben", project=project.id)
    with refuses(store, Refused):
        store.messages.send_files(
            [str(other / "plan.txt")], agent="ada", to="room", session=theirs.id
        )
    own = store.sessions.open("ada", project=project.id)
    (file,) = store.messages.send_files(
        [str(other / "plan.txt")], agent="ada", to="room", session=own.id
    )
    assert file.text == "plan.txt"


def test_size_and_number_of_files_are_limited(store: Corral, chat: Chat, work: Path) -> None:
    store.settings.set("chat.max_file_bytes", 9)
    with refuses(store, Invalid) as caught:
        store.messages.send_files(["sub/report.txt"], agent="ada", to="room")
    assert "chat.max_file_bytes" in caught.value.message
    for many in ([], ["sub/report.txt"] * 11):
        with refuses(store, Invalid):
            store.messages.send_files(many, agent="ada", to="room")


def test_file_name_is_sanitized(store: Corral, chat: Chat, work: Path) -> None:
    (work / "a b;$(rm).txt").write_text("x")
    (file,) = store.messages.send_files(["a b;$(rm).txt"], agent="ada", to="room")
    assert file.text == "a_b_rm_.txt"


def test_file_without_destination_is_never_sent(store: Corral, chat: Chat, work: Path) -> None:
    store.agents.create("eve", provider="scripted", workspace=str(work))
    with refuses(store, Refused):
        store.messages.send_files(["sub/report.txt"], agent="eve", to="room")
    with refuses(store, NotFound):
        store.messages.send_files(["sub/report.txt"], agent="nobody", to="room")
    store.messages.send_files(["sub/report.txt"], agent="ada", to="room")
    store.destinations.revoke("ada", "room")
    assert chat.deliver() == ["refused"]
    assert sent(chat) == []


@pytest.mark.parametrize("how", ["changed", "gone", "linked"])
def test_modified_copy_is_not_delivered_and_agent_is_notified(
    store: Corral, chat: Chat, work: Path, tmp_path: Path, how: str
) -> None:
    (file,) = store.messages.send_files(["sub/report.txt"], agent="ada", to="room")
    kept = Path(file.data["file"]["path"])
    kept.unlink()
    if how == "changed":
        kept.write_text("THE REPORT")
    elif how == "linked":
        kept.symlink_to(work / "sub" / "report.txt")
    assert chat.deliver() == ["refused"]
    assert sent(chat) == []
    found = store.messages.get(file.id)
    assert (found.state, "private copy" in (found.reason or "")) == ("undelivered", True)
    (told,) = store.mail.list(mailbox="agent:ada").items
    assert "undelivered" in told.body


def test_files_of_pruned_messages_are_removed(
    store: Corral, chat: Chat, work: Path, clock: ManualClock
) -> None:
    files = [
        store.messages.send_files([name], agent="ada", to="room")[0].data["file"]["path"]
        for name in ("sub/report.txt", "other.txt")
    ]
    keep = 90 * DAY  # messages.retention_ms
    old, young = (clock.now() - n * keep - n for n in (2, 1))
    os.utime(files[0], (old / 1_000, old / 1_000))
    os.utime(files[1], (young / 1_000, young / 1_000))
    store.db.prune()
    assert [Path(file).exists() for file in files] == [False, True]
    assert not Path(files[0]).parent.exists()


class Wordy(FakeAdapter):
    kind = "wordy"
    traits = ChannelTraits(max_text=200)


def test_platform_without_files_rejects_them_at_send_and_delivery(
    store: Corral, chat: Chat, work: Path
) -> None:
    silent = Chat(store, "silent")
    silent.says("hello")
    store.destinations.grant("ada", silent.place(), name="silent")
    with refuses(store, Refused) as caught:
        store.messages.send_files(["sub/report.txt"], agent="ada", to="silent")
    assert "cannot take files" in caught.value.message
    (file,) = store.messages.send_files(["sub/report.txt"], agent="ada", to="room")
    told = store.internal.chat.deliver(chat.channel.id, Wordy(platform=chat.platform), owner="d")
    assert [each.state for each in told] == ["refused"]
    assert "does not support files" in (store.messages.get(file.id).reason or "")
    assert len(store.mail.list(mailbox="agent:ada").items) == 1
