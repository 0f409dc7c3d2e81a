"""The alert sender: alerts are sent by real webhooks and commands, and failures are retried."""

import hashlib
import hmac
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from corral.adapters import notifications
from corral.api import Corral
from corral.daemon.alert_delivery import deliver_once, deliver_test, run_alert_sender
from corral.domain.alerts.model import Alert
from corral.kernel.clock import MINUTE, ManualClock
from tests.support.errors import because
from tests.support.grouped_cases import each_case
from tests.support.home import is_alive, wait_until
from tests.support.http_receiver import Receiver, run_receiver
from tests.support.postgres_server import reserve_port
from tests.support.threads import SECONDS, Racer


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with run_receiver() as server:
        yield server


def webhook(store: Corral, target: str, secret: str | None = None) -> Alert:
    return store.alerts.add(["crashed"], target_kind="webhook", target=target, secret=secret)


def crash(store: Corral, run: str = "run_1") -> None:
    store.internal.alerts.raise_alert("crashed", run, edge=1, data={"reason": "it vanished"})


def test_webhook_signature_can_be_verified(
    store: Corral, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_KEY", "hush-hush")
    store.secrets.set("key", "env:HOOK_KEY")
    alert = webhook(store, receiver.url, secret="key")
    crash(store)
    (told,) = deliver_once(store, "me")
    assert (told.alert_id, told.state, told.error) == (alert.id, "done", None)
    (posted,) = receiver.posted
    seconds, code = (
        part.partition("=")[2] for part in posted.headers["Corral-Signature"].split(",")
    )
    signed = f"{seconds}.".encode() + posted.body
    assert code == hmac.new(b"hush-hush", signed, hashlib.sha256).hexdigest()
    assert int(seconds) == store.now() // 1_000
    body = json.loads(posted.body)
    assert (body["alert"], body["event"], body["subject"]) == (alert.id, "crashed", "run_1")
    assert body["letter"] == told.letter_id
    assert body["data"] == {"reason": "it vanished"}
    assert posted.headers["Content-Type"] == "application/json"
    assert deliver_once(store, "me") == []


def test_foreign_letter_is_refused_and_does_not_block(store: Corral, receiver: Receiver) -> None:
    first, second = webhook(store, receiver.url), webhook(store, receiver.url)
    strange = [store.mail.put(first.mailbox, body).id for body in ("hello", {"a": 1})]
    crash(store)
    told = [each for _ in range(3) for each in deliver_once(store, "me")]
    assert {each.letter_id for each in told if each.state == "refused"} == {*strange}
    assert {each.alert_id for each in told if each.state == "done"} == {first.id, second.id}
    assert len(receiver.posted) == 2


def test_webhook_without_a_secret_is_not_signed(store: Corral, receiver: Receiver) -> None:
    webhook(store, receiver.url)
    crash(store)
    deliver_once(store, "me")
    assert "Corral-Signature" not in receiver.posted[0].headers


def test_status_500_is_retried_after_a_back_off(
    store: Corral, clock: ManualClock, receiver: Receiver
) -> None:
    webhook(store, receiver.url)
    receiver.answers = [500]
    crash(store)
    (told,) = deliver_once(store, "me")
    assert (told.state, "500" in str(told.error)) == ("waiting", True)
    assert told.due_at is not None
    assert deliver_once(store, "me") == [], "not before its time"
    clock.at = told.due_at
    (told,) = deliver_once(store, "me")
    assert told.state == "done"
    assert len(receiver.posted) == 2


def test_too_many_failures_leave_a_dead_letter_that_can_be_resent(
    store: Corral, clock: ManualClock, receiver: Receiver
) -> None:
    store.settings.set("mail.max_attempts", 2)
    webhook(store, receiver.url)
    receiver.answers = [503, 404]
    crash(store)
    deliver_once(store, "me")
    clock.advance(5 * MINUTE)
    (told,) = deliver_once(store, "me")
    assert (told.state, "404" in str(told.error)) == ("dead", True)
    (dead,) = store.mail.dead().items
    store.mail.resend(dead.id)
    assert [one.state for one in deliver_once(store, "me")] == ["done"]


def test_redirect_is_not_followed(store: Corral, receiver: Receiver) -> None:
    webhook(store, receiver.url)
    with run_receiver() as elsewhere:
        receiver.location = elsewhere.url
        for status in (301, 302, 303, 307, 308):
            receiver.answers = [status]
            crash(store, f"run_{status}")
            with pytest.raises(notifications.Undelivered, check=because("redirect")):
                notifications.post_webhook(receiver.url, b"{}", at=0)
        assert elsewhere.posted == []
    receiver.answers = [302]
    (told,) = deliver_once(store, "me")
    assert told.state == "waiting"


def test_hanging_server_times_out(receiver: Receiver) -> None:
    receiver.hang.clear()
    with pytest.raises(notifications.Undelivered, check=because("timeout")):
        notifications.post_webhook(receiver.url, b"{}", at=0, seconds=0.2)


def test_server_that_trickles_bytes_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1_000:
                    connection.send(bytes([byte]))
                    time.sleep(0.05)

        dripping = Racer(drip)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(notifications.Undelivered, check=because("timeout")):
            notifications.post_webhook(url, b"{}", at=0, seconds=0.4)
        dripping.join()


@each_case("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "javascript:1"])
def test_only_http_urls_are_posted_to(url: str) -> None:
    with pytest.raises(notifications.Undelivered, check=because("bad_url")):
        notifications.post_webhook(url, b"{}", at=0)


def test_connection_after_the_deadline_is_closed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, over = HTTPConnection.connect, threading.Event()
    cut = notifications._RequestConnections.close_all

    def cut_and_tell(line: notifications._RequestConnections) -> None:
        cut(line)
        over.set()

    def connect_late(connection: HTTPConnection) -> None:
        assert over.wait(SECONDS)
        connect(connection)

    monkeypatch.setattr(notifications._RequestConnections, "close_all", cut_and_tell)
    monkeypatch.setattr(HTTPConnection, "connect", connect_late)
    with pytest.raises(notifications.Undelivered, check=because("timeout")):
        notifications.post_webhook(receiver.url, b"{}", at=0, seconds=0.01)
    assert receiver.posted == []


def test_unreachable_server_is_a_failure() -> None:
    with reserve_port() as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        with pytest.raises(notifications.Undelivered, check=because("unreachable")):
            notifications.post_webhook(url, b"{}", at=0, seconds=SECONDS)


def test_secret_url_is_resolved_when_sending_and_never_shown(
    store: Corral, clock: ManualClock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.secrets.set("slack", "env:SLACK_URL")
    webhook(store, "secret:slack")
    crash(store)
    (told,) = deliver_once(store, "me")
    assert told.state == "waiting"
    assert "SLACK_URL" in str(told.error)
    monkeypatch.setenv("SLACK_URL", "http://hush-hush:99x/")
    clock.advance(5 * MINUTE)
    (told,) = deliver_once(store, "me")
    assert "hush" not in str(told.error)
    monkeypatch.setenv("SLACK_URL", receiver.url)
    clock.advance(5 * MINUTE)
    assert [one.state for one in deliver_once(store, "me")] == ["done"]
    assert len(receiver.posted) == 1


def test_command_gets_json_on_stdin(store: Corral, tmp_path: Path) -> None:
    told_to = tmp_path / "told"
    code = (
        f"import sys, pathlib; pathlib.Path({str(told_to)!r}).write_bytes(sys.stdin.buffer.read())"
    )
    store.alerts.add(["crashed"], target_kind="command", target=f'{sys.executable} -c "{code}"')
    crash(store)
    assert [one.state for one in deliver_once(store, "me")] == ["done"]
    assert json.loads(told_to.read_text())["subject"] == "run_1"


def test_failed_command_is_reported_with_its_stderr() -> None:
    code = "import sys; sys.exit('no such channel')"
    with pytest.raises(
        notifications.Undelivered, check=because("exit_code"), match="no such channel"
    ):
        notifications.run_command(f'{sys.executable} -c "{code}"', b"{}")
    with pytest.raises(notifications.Undelivered, check=because("not_started")):
        notifications.run_command("corral-no-such-program", b"{}")


def test_hanging_command_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pid"
    wait = subprocess.Popen.wait

    def wait_from_then_on(command: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        if timeout is not None:
            wait_until(lambda: file.exists() and file.read_text().endswith("\n"), "it has begun")
        return wait(command, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_from_then_on)
    script = f"sleep 3600 & echo $! > {file}; wait"
    with pytest.raises(notifications.Undelivered, check=because("timeout")):
        notifications.run_command(f'sh -c "{script}"', b"{}", seconds=0.1)
    child = int(file.read_text())
    wait_until(lambda: not is_alive(child), "it is gone")  # killed, and soon out of the kernel too


def screen(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Path:
    """A desktop whose notifications end in a file, one argument a line."""
    shown = folder / "shown"
    script = folder / program
    script.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done > {shown}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return shown


def test_desktop_notification_cannot_inject_options(
    store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = screen(tmp_path, monkeypatch, "notify-send")
    store.alerts.add(["needs_input"], target_kind="desktop")
    store.internal.alerts.raise_alert("needs_input", "--help", edge=1, data={"reason": '"; rm -rf'})
    assert [one.state for one in deliver_once(store, "me")] == ["done"]
    words = shown.read_text().splitlines()
    assert words[-3:] == ["--", "corral: needs input", '--help: "; rm -rf']


def test_macos_passes_the_text_as_script_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = screen(tmp_path, monkeypatch, "osascript")
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.setattr(sys, "platform", "darwin")
    notifications.show_on_desktop('a"b', "c")
    assert shown.read_text().splitlines()[-2:] == ['a"b', "c"]


def test_without_a_desktop_the_error_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(notifications.Undelivered, check=because("no_desktop")):
        notifications.show_on_desktop("a", "b")


def test_failing_alert_does_not_block_others(store: Corral, receiver: Receiver) -> None:
    store.alerts.add(["crashed"], target_kind="command", target="false")
    good = webhook(store, receiver.url)
    crash(store, "run_1")
    crash(store, "run_2")
    told = deliver_once(store, "me")
    assert [(one.alert_id == good.id, one.state) for one in told] == [
        (False, "waiting"),
        (True, "done"),
        (True, "done"),
    ]


def test_two_senders_deliver_each_letter_once(store: Corral, receiver: Receiver) -> None:
    webhook(store, receiver.url)
    for n in range(4):
        crash(store, f"run_{n}")
    alert_sender = run_alert_sender(store, "first")
    assert next(alert_sender).state == "done"
    deliver_once(store, "second")
    alert_sender.close()
    subjects = [json.loads(posted.body)["subject"] for posted in receiver.posted]
    assert subjects == [f"run_{n}" for n in range(4)]


def test_letter_of_a_dead_sender_is_delivered_later(
    store: Corral, clock: ManualClock, receiver: Receiver
) -> None:
    alert = webhook(store, receiver.url)
    crash(store)
    store.mail.claim(alert.mailbox, owner="the dead one")
    assert deliver_once(store, "me") == []
    clock.advance(MINUTE)
    assert [one.state for one in deliver_once(store, "me")] == ["done"]


def test_a_test_returns_the_delivery_of_its_own_letter(store: Corral, receiver: Receiver) -> None:
    alert = webhook(store, receiver.url)
    letter, concurrent = store.alerts.test(alert.id), store.alerts.test(alert.id)
    delivery = deliver_test(store, "me", letter)
    assert delivery is not None
    assert (delivery.letter_id, delivery.state, delivery.error) == (letter.id, "done", None)
    assert store.mail.get(concurrent.id).state == "refused"
    assert deliver_test(store, "me", letter) is None
