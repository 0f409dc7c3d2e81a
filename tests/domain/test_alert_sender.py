"""The alert sender: webhooks, commands, desktop notifications, timeouts and retries."""

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
from corral.api.alert_delivery import deliver_once, deliver_test, run_alert_sender
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


def add_webhook(store: Corral, target: str, secret: str | None = None) -> Alert:
    return store.alerts.add(["crashed"], target_kind="webhook", target=target, secret=secret)


def raise_crash_alert(store: Corral, run: str = "run_1") -> None:
    store.internal.alerts.raise_alert("crashed", run, edge=1, data={"reason": "process lost"})


def test_webhook_signature_can_be_verified(
    store: Corral, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_KEY", "signing-key")
    store.secrets.set("key", "env:HOOK_KEY")
    alert = add_webhook(store, receiver.url, secret="key")
    raise_crash_alert(store)
    (delivery,) = deliver_once(store, "me")
    assert (delivery.alert_id, delivery.state, delivery.error) == (alert.id, "done", None)
    (request,) = receiver.posted
    seconds, signature = (
        part.partition("=")[2] for part in request.headers["Corral-Signature"].split(",")
    )
    signed_text = f"{seconds}.".encode() + request.body
    assert signature == hmac.new(b"signing-key", signed_text, hashlib.sha256).hexdigest()
    assert int(seconds) == store.now() // 1_000
    body = json.loads(request.body)
    assert (body["alert"], body["event"], body["subject"]) == (alert.id, "crashed", "run_1")
    assert body["letter"] == delivery.letter_id
    assert body["data"] == {"reason": "process lost"}
    assert request.headers["Content-Type"] == "application/json"
    assert deliver_once(store, "me") == []


def test_foreign_letter_is_refused_and_does_not_block(store: Corral, receiver: Receiver) -> None:
    first_alert, second_alert = add_webhook(store, receiver.url), add_webhook(store, receiver.url)
    foreign_letters = [store.mail.put(first_alert.mailbox, body).id for body in ("hello", {"a": 1})]
    raise_crash_alert(store)
    deliveries = [delivery for _ in range(3) for delivery in deliver_once(store, "me")]
    assert {delivery.letter_id for delivery in deliveries if delivery.state == "refused"} == {
        *foreign_letters
    }
    assert {delivery.alert_id for delivery in deliveries if delivery.state == "done"} == {
        first_alert.id,
        second_alert.id,
    }
    assert len(receiver.posted) == 2


def test_webhook_without_a_secret_is_not_signed(store: Corral, receiver: Receiver) -> None:
    add_webhook(store, receiver.url)
    raise_crash_alert(store)
    deliver_once(store, "me")
    assert "Corral-Signature" not in receiver.posted[0].headers


def test_status_500_is_retried_after_a_back_off(
    store: Corral, clock: ManualClock, receiver: Receiver
) -> None:
    add_webhook(store, receiver.url)
    receiver.answers = [500]
    raise_crash_alert(store)
    (delivery,) = deliver_once(store, "me")
    assert (delivery.state, "500" in str(delivery.error)) == ("waiting", True)
    assert delivery.due_at is not None
    assert deliver_once(store, "me") == [], "the back-off has not passed"
    clock.at = delivery.due_at
    (delivery,) = deliver_once(store, "me")
    assert delivery.state == "done"
    assert len(receiver.posted) == 2


def test_too_many_failures_leave_a_dead_letter_that_can_be_resent(
    store: Corral, clock: ManualClock, receiver: Receiver
) -> None:
    store.settings.set("mail.max_attempts", 2)
    add_webhook(store, receiver.url)
    receiver.answers = [503, 404]
    raise_crash_alert(store)
    deliver_once(store, "me")
    clock.advance(5 * MINUTE)
    (delivery,) = deliver_once(store, "me")
    assert (delivery.state, "404" in str(delivery.error)) == ("dead", True)
    (dead_letter,) = store.mail.dead().items
    store.mail.resend(dead_letter.id)
    assert [resent.state for resent in deliver_once(store, "me")] == ["done"]


def test_redirect_is_not_followed(store: Corral, receiver: Receiver) -> None:
    add_webhook(store, receiver.url)
    with run_receiver() as other_receiver:
        receiver.location = other_receiver.url
        for status in (301, 302, 303, 307, 308):
            receiver.answers = [status]
            raise_crash_alert(store, f"run_{status}")
            with pytest.raises(notifications.Undelivered, check=because("redirect")):
                notifications.post_webhook(receiver.url, b"{}", at=0)
        assert other_receiver.posted == []
    receiver.answers = [302]
    (delivery,) = deliver_once(store, "me")
    assert delivery.state == "waiting"


def test_hanging_server_times_out(receiver: Receiver) -> None:
    receiver.hang.clear()
    with pytest.raises(notifications.Undelivered, check=because("timeout")):
        notifications.post_webhook(receiver.url, b"{}", at=0, seconds=0.2)


def test_server_that_trickles_bytes_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send_slowly() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1_000:
                    connection.send(bytes([byte]))
                    time.sleep(0.05)

        racer = Racer(send_slowly)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(notifications.Undelivered, check=because("timeout")):
            notifications.post_webhook(url, b"{}", at=0, seconds=0.4)
        racer.join()


@each_case("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "javascript:1"])
def test_only_http_urls_are_posted_to(url: str) -> None:
    with pytest.raises(notifications.Undelivered, check=because("bad_url")):
        notifications.post_webhook(url, b"{}", at=0)


def test_connection_after_the_deadline_is_closed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, closed = HTTPConnection.connect, threading.Event()
    close_all = notifications._RequestConnections.close_all

    def close_and_signal(connections: notifications._RequestConnections) -> None:
        close_all(connections)
        closed.set()

    def connect_late(connection: HTTPConnection) -> None:
        assert closed.wait(SECONDS)
        connect(connection)

    monkeypatch.setattr(notifications._RequestConnections, "close_all", close_and_signal)
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
    add_webhook(store, "secret:slack")
    raise_crash_alert(store)
    (delivery,) = deliver_once(store, "me")
    assert delivery.state == "waiting"
    assert "SLACK_URL" in str(delivery.error)
    monkeypatch.setenv("SLACK_URL", "http://private-host:99x/")
    clock.advance(5 * MINUTE)
    (delivery,) = deliver_once(store, "me")
    assert "private-host" not in str(delivery.error)
    monkeypatch.setenv("SLACK_URL", receiver.url)
    clock.advance(5 * MINUTE)
    assert [result.state for result in deliver_once(store, "me")] == ["done"]
    assert len(receiver.posted) == 1


def test_command_gets_json_on_stdin(store: Corral, tmp_path: Path) -> None:
    file = tmp_path / "stdin.json"
    code = f"import sys, pathlib; pathlib.Path({str(file)!r}).write_bytes(sys.stdin.buffer.read())"
    store.alerts.add(["crashed"], target_kind="command", target=f'{sys.executable} -c "{code}"')
    raise_crash_alert(store)
    assert [delivery.state for delivery in deliver_once(store, "me")] == ["done"]
    assert json.loads(file.read_text())["subject"] == "run_1"


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

    def wait_for_child(command: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        if timeout is not None:
            wait_until(
                lambda: file.exists() and file.read_text().endswith("\n"), "the child has started"
            )
        return wait(command, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_for_child)
    script = f"sleep 3600 & echo $! > {file}; wait"
    with pytest.raises(notifications.Undelivered, check=because("timeout")):
        notifications.run_command(f'sh -c "{script}"', b"{}", seconds=0.1)
    child = int(file.read_text())
    wait_until(lambda: not is_alive(child), "the child has exited")  # the kill is asynchronous


def fake_notifier(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Path:
    """Install a notification program that writes its arguments to a file, one per line."""
    output = folder / "arguments"
    script = folder / program
    script.write_text(f'#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done > {output}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return output


def test_desktop_notification_cannot_inject_options(
    store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = fake_notifier(tmp_path, monkeypatch, "notify-send")
    store.alerts.add(["needs_input"], target_kind="desktop")
    store.internal.alerts.raise_alert("needs_input", "--help", edge=1, data={"reason": '"; rm -rf'})
    assert [delivery.state for delivery in deliver_once(store, "me")] == ["done"]
    arguments = output.read_text().splitlines()
    assert arguments[-3:] == ["--", "corral: needs input", '--help: "; rm -rf']


def test_macos_passes_the_text_as_script_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = fake_notifier(tmp_path, monkeypatch, "osascript")
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.setattr(sys, "platform", "darwin")
    notifications.show_on_desktop('a"b', "c")
    assert output.read_text().splitlines()[-2:] == ['a"b', "c"]


def test_missing_desktop_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(notifications.Undelivered, check=because("no_desktop")):
        notifications.show_on_desktop("a", "b")


def test_failing_alert_does_not_block_others(store: Corral, receiver: Receiver) -> None:
    store.alerts.add(["crashed"], target_kind="command", target="false")
    working_alert = add_webhook(store, receiver.url)
    raise_crash_alert(store, "run_1")
    raise_crash_alert(store, "run_2")
    deliveries = deliver_once(store, "me")
    assert [(delivery.alert_id == working_alert.id, delivery.state) for delivery in deliveries] == [
        (False, "waiting"),
        (True, "done"),
        (True, "done"),
    ]


def test_two_senders_deliver_each_letter_once(store: Corral, receiver: Receiver) -> None:
    add_webhook(store, receiver.url)
    for n in range(4):
        raise_crash_alert(store, f"run_{n}")
    alert_sender = run_alert_sender(store, "first")
    assert next(alert_sender).state == "done"
    deliver_once(store, "second")
    alert_sender.close()
    subjects = [json.loads(request.body)["subject"] for request in receiver.posted]
    assert subjects == [f"run_{n}" for n in range(4)]


def test_letter_of_a_dead_sender_is_delivered_later(
    store: Corral, clock: ManualClock, receiver: Receiver
) -> None:
    alert = add_webhook(store, receiver.url)
    raise_crash_alert(store)
    store.mail.claim(alert.mailbox, owner="dead")
    assert deliver_once(store, "me") == []
    clock.advance(MINUTE)
    assert [delivery.state for delivery in deliver_once(store, "me")] == ["done"]


def test_alert_test_returns_the_delivery_of_its_own_letter(
    store: Corral, receiver: Receiver
) -> None:
    alert = add_webhook(store, receiver.url)
    letter, concurrent = store.alerts.test(alert.id), store.alerts.test(alert.id)
    delivery = deliver_test(store, "me", letter)
    assert delivery is not None
    assert (delivery.letter_id, delivery.state, delivery.error) == (letter.id, "done", None)
    assert store.mail.get(concurrent.id).state == "refused"
    assert deliver_test(store, "me", letter) is None
