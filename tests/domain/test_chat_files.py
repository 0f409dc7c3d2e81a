"""Files sent by agents: allowed folders, private copies, limits and retention."""

import os
from pathlib import Path

import pytest

from corral.adapters.channels.contract import ChannelTraits, MessageKind, OutgoingMessage
from corral.api import Corral
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Invalid, NotFound, Refused
from tests.support.fake_channels import Chat, FakeAdapter
from tests.support.store import raises_without_change

pytestmark = pytest.mark.usefixtures("fake_channels")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "report.txt").write_text("the report")
    (folder / "other.txt").write_text("another file")
    (tmp_path / "secret.txt").write_text("private")
    return folder


@pytest.fixture
def chat(store: Corral, workspace: Path) -> Chat:
    store.agents.create("ada", provider="scripted", workspace=str(workspace))
    fake_chat = Chat(store)
    fake_chat.says("hello")
    store.destinations.grant("ada", fake_chat.place(), name="room")
    return fake_chat


def list_sent_files(chat: Chat) -> list[OutgoingMessage]:
    return [message for message in chat.platform.taken if message.kind is MessageKind.FILE]


def test_sent_file_is_copied_at_the_time_of_sending(
    store: Corral, chat: Chat, workspace: Path, tmp_path: Path
) -> None:
    report = workspace / "sub" / "report.txt"
    text_message, file = store.messages.send_files(
        [str(report)], agent="ada", to="room", text="Here."
    )
    assert (text_message.kind, text_message.text) == (MessageKind.TEXT, "Here.")
    assert (file.kind, file.text, file.state) == (MessageKind.FILE, "report.txt", "queued")
    report.write_text("another")
    report.unlink()
    assert chat.deliver() == ["done", "done"]
    (delivered,) = list_sent_files(chat)
    assert delivered.file is not None
    copy = Path(str(delivered.file.path))
    assert copy.read_text() == "the report"
    assert copy.is_relative_to(tmp_path / "home" / "channels" / "sent")
    assert copy.stat().st_mode & 0o777 == 0o600
    assert (delivered.file.name, delivered.file.bytes, delivered.file.type) == (
        "report.txt",
        10,
        "text/plain",
    )


def test_files_with_the_same_key_are_sent_once(store: Corral, chat: Chat, workspace: Path) -> None:
    for _ in range(2):
        messages = store.messages.send_files(
            ["sub/report.txt"], agent="ada", to="room", text="Here.", key="k"
        )
    repeated = store.messages.send_files(
        ["sub/report.txt"], agent="ada", to="room", text="Here.", key="k"
    )
    assert [message.id for message in messages] == [message.id for message in repeated]
    chat.deliver()
    assert len(list_sent_files(chat)) == 1


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("../secret.txt", Refused),
        ("sub/../../secret.txt", Refused),
        ("{tmp}/secret.txt", Refused),
        ("/etc/passwd", Refused),
        ("{tmp}/workspace/sub/../../secret.txt", Refused),
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
    store: Corral, chat: Chat, workspace: Path, tmp_path: Path, name: str, error: type[Exception]
) -> None:
    (workspace / "link.txt").symlink_to(tmp_path / "secret.txt")
    (workspace / "folder-link").symlink_to(workspace / "sub")
    (workspace / "link-out").symlink_to(tmp_path)
    os.mkfifo(workspace / "pipe")
    with raises_without_change(store, error):
        store.messages.send_files(
            ["sub/report.txt", name.replace("{tmp}", str(tmp_path))], agent="ada", to="room"
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
    with raises_without_change(store, Refused):
        store.messages.send_files(["home/corral.toml"], agent="eve", to="room")


@pytest.mark.parametrize("file", ["home/corral.toml", "{tmp}/home/corral.toml"])
def test_files_of_a_home_behind_a_symlink_cannot_be_sent(
    store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "corral.toml").write_text("private")
    link = tmp_path.with_name(tmp_path.name + "-link")
    link.symlink_to(tmp_path)
    monkeypatch.setenv("CORRAL_HOME", str(link / "home"))
    store.agents.create("eve", provider="scripted", workspace=str(tmp_path))
    chat = Chat(store)
    chat.says("hello")
    store.destinations.grant("eve", chat.place(), name="room")
    with raises_without_change(store, Refused):
        store.messages.send_files([file.replace("{tmp}", str(tmp_path))], agent="eve", to="room")


def test_only_folders_of_the_agent_itself_count(store: Corral, chat: Chat, tmp_path: Path) -> None:
    project_folder = tmp_path / "other"
    project_folder.mkdir()
    (project_folder / "plan.txt").write_text("a plan")
    project = store.projects.register(str(project_folder))
    store.agents.create("ben", provider="scripted")
    foreign_session = store.sessions.open("ben", project=project.id)
    with raises_without_change(store, Refused):
        store.messages.send_files(
            [str(project_folder / "plan.txt")], agent="ada", to="room", session=foreign_session.id
        )
    own_session = store.sessions.open("ada", project=project.id)
    (file,) = store.messages.send_files(
        [str(project_folder / "plan.txt")], agent="ada", to="room", session=own_session.id
    )
    assert file.text == "plan.txt"


def test_size_and_number_of_files_are_limited(store: Corral, chat: Chat, workspace: Path) -> None:
    store.settings.set("chat.max_file_bytes", 9)
    with raises_without_change(store, Invalid) as caught:
        store.messages.send_files(["sub/report.txt"], agent="ada", to="room")
    assert "chat.max_file_bytes" in caught.value.message
    for names in ([], ["sub/report.txt"] * 11):
        with raises_without_change(store, Invalid):
            store.messages.send_files(names, agent="ada", to="room")


def test_file_name_is_sanitized(store: Corral, chat: Chat, workspace: Path) -> None:
    (workspace / "a b;$(rm).txt").write_text("x")
    (file,) = store.messages.send_files(["a b;$(rm).txt"], agent="ada", to="room")
    assert file.text == "a_b_rm_.txt"


def test_file_without_destination_is_never_sent(store: Corral, chat: Chat, workspace: Path) -> None:
    store.agents.create("eve", provider="scripted", workspace=str(workspace))
    with raises_without_change(store, Refused):
        store.messages.send_files(["sub/report.txt"], agent="eve", to="room")
    with raises_without_change(store, NotFound):
        store.messages.send_files(["sub/report.txt"], agent="unknown", to="room")
    store.messages.send_files(["sub/report.txt"], agent="ada", to="room")
    store.destinations.revoke("ada", "room")
    assert chat.deliver() == ["refused"]
    assert list_sent_files(chat) == []


@pytest.mark.parametrize("change", ["changed", "deleted", "linked"])
def test_modified_copy_is_not_delivered_and_agent_is_notified(
    store: Corral, chat: Chat, workspace: Path, tmp_path: Path, change: str
) -> None:
    (file,) = store.messages.send_files(["sub/report.txt"], agent="ada", to="room")
    copy = Path(file.data["file"]["path"])
    copy.unlink()
    if change == "changed":
        copy.write_text("THE REPORT")
    elif change == "linked":
        copy.symlink_to(workspace / "sub" / "report.txt")
    assert chat.deliver() == ["refused"]
    assert list_sent_files(chat) == []
    undelivered = store.messages.get(file.id)
    assert (undelivered.state, "private copy" in (undelivered.reason or "")) == (
        "undelivered",
        True,
    )
    (letter,) = store.mail.list(mailbox="agent:ada").items
    assert "undelivered" in letter.body


def test_files_of_pruned_messages_are_removed(
    store: Corral, chat: Chat, workspace: Path, clock: ManualClock
) -> None:
    files = [
        store.messages.send_files([name], agent="ada", to="room")[0].data["file"]["path"]
        for name in ("sub/report.txt", "other.txt")
    ]
    retention_ms = 90 * DAY  # messages.retention_ms
    expired_at, recent_at = (clock.now() - n * retention_ms - n for n in (2, 1))
    os.utime(files[0], (expired_at / 1_000, expired_at / 1_000))
    os.utime(files[1], (recent_at / 1_000, recent_at / 1_000))
    store.db.prune()
    assert [Path(file).exists() for file in files] == [False, True]
    assert not Path(files[0]).parent.exists()


class TextOnlyAdapter(FakeAdapter):
    kind = "text_only"
    traits = ChannelTraits(max_text=200)


def test_platform_without_files_rejects_them_at_send_and_delivery(
    store: Corral, chat: Chat, workspace: Path
) -> None:
    silent_chat = Chat(store, "silent")
    silent_chat.says("hello")
    store.destinations.grant("ada", silent_chat.place(), name="silent")
    with raises_without_change(store, Refused) as caught:
        store.messages.send_files(["sub/report.txt"], agent="ada", to="silent")
    assert "cannot take files" in caught.value.message
    (file,) = store.messages.send_files(["sub/report.txt"], agent="ada", to="room")
    letters = store.internal.chat.deliver(
        chat.channel.id, TextOnlyAdapter(platform=chat.platform), owner="d"
    )
    assert [letter.state for letter in letters] == ["refused"]
    assert "does not support files" in (store.messages.get(file.id).reason or "")
    assert len(store.mail.list(mailbox="agent:ada").items) == 1
