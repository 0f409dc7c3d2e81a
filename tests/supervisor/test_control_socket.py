"""The control socket of a run: its protocol, and which processes may use it."""

import os
import select
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from corral.adapters import control_socket
from corral.adapters.processes import process, process_marks
from corral.adapters.processes.process import ProcessIdentity
from corral.adapters.processes.process_ancestry import list_ancestors_of
from corral.api import Corral
from corral.domain.runs.model import Run
from corral.kernel.errors import StoreUnavailable
from corral.supervisor import control_permissions
from corral.supervisor.agent_io import AgentIO
from corral.supervisor.control_permissions import ControlPermissions
from corral.supervisor.control_server import ControlServer
from tests.support.run_factories import held, queued, running


class FakeTarget:
    """A run whose agent has no terminal."""

    agent_process: ProcessIdentity | None = None
    recent_output = b"some output"

    def __init__(self) -> None:
        self.agent_io = AgentIO()

    def type_in(self, data: bytes) -> bool:
        return False

    def resize(self, rows: int, columns: int) -> None: ...
    def check_stop(self, grace_period_ms: int | None) -> None: ...


class AnyoneMay(ControlPermissions):
    """Permits everything."""

    def __init__(self) -> None: ...
    def may_connect(self, pid: int | None) -> bool:
        return True

    def may_type(self, pid: int | None) -> bool:
        return True


def handle_events(server: ControlServer) -> None:
    """Handle the events that are pending."""
    poll = select.poll()
    server.register(poll)
    server.handle(poll.poll(0))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ControlServer]:
    server = ControlServer(tmp_path, FakeTarget(), AnyoneMay())
    server.open()
    yield server
    server.end({})


@pytest.mark.parametrize("second", [{"op": "attach"}, {"op": "send", "text": "x"}])
def test_pipelined_requests_of_a_client_that_disconnected(
    server: ControlServer, tmp_path: Path, second: dict[str, Any]
) -> None:
    client = control_socket.connect(tmp_path)
    handle_events(server)
    requests = [{"op": "signal", "number": 0}, second, second]
    client.sendall(
        b"".join(control_socket.encode_frame(control_socket.REQUEST, line) for line in requests)
    )
    client.close()
    handle_events(server)
    assert not server.has_watchers
    with control_socket.connect(tmp_path) as other:  # the server still accepts clients
        handle_events(server)
        other.sendall(control_socket.encode_frame(control_socket.REQUEST, {"op": "attach"}))
        handle_events(server)
        assert server.has_watchers


def request(server: ControlServer, folder: Path, **fields: Any) -> dict[str, Any]:
    with control_socket.connect(folder) as client:
        handle_events(server)
        client.sendall(control_socket.encode_frame(control_socket.REQUEST, fields))
        handle_events(server)
        (frame,) = control_socket.FrameDecoder().feed(client.recv(65_536))
        response: dict[str, Any] = frame.value
        return response


def test_unknown_request_is_rejected(server: ControlServer, tmp_path: Path) -> None:
    assert request(server, tmp_path, op="stop") == {"ok": True}
    assert request(server, tmp_path, op="dance") == {"ok": False, "error": "unknown_operation"}
    assert request(server, tmp_path) == {"ok": False, "error": "unknown_operation"}


# -- permissions -----------------------------------------------------------------------------------


@pytest.fixture
def permissions(store: Corral, monkeypatch: pytest.MonkeyPatch) -> ControlPermissions:
    """The permissions for a run whose supervisor is not an ancestor of the clients."""
    monkeypatch.setattr(
        control_permissions, "list_ancestors_of", lambda pid: list_ancestors_of(pid)[:1]
    )
    return ControlPermissions(store, running(store), FakeTarget())


@pytest.fixture
def client() -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to no run."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as client:
        yield client
        client.communicate()


@pytest.fixture
def marked_client() -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries the mark of a run."""
    mark = partial(process_marks.mark_process, process_marks.run_mark("run_other"))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, preexec_fn=mark) as client:
        yield client
        client.communicate()


def make_agent_of(store: Corral, pid: int) -> Run:
    """Return a run whose agent is this process."""
    identity = process.identify(pid)
    assert identity is not None
    run = queued(store)
    return store.internal.runs.acquire(
        run.id,
        held(
            2,
            host=identity.host,
            boot_id=identity.boot_id,
            pid=identity.pid,
            start_token=identity.start_token,
        ),
    )


def raise_unavailable(*_: Any) -> Any:
    raise StoreUnavailable("Cannot reach the store.", reason="unreachable")


def test_agent_of_another_run_is_not_taken_for_a_person_after_an_outage(
    store: Corral,
    permissions: ControlPermissions,
    client: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_agent_of(store, client.pid)
    with monkeypatch.context() as patch:
        patch.setattr(store, "run_of_process", raise_unavailable)
        permissions.may_type(client.pid)
    assert not permissions.may_type(client.pid)


@pytest.mark.parametrize("question", [ControlPermissions.may_type, ControlPermissions.may_connect])
def test_only_a_process_outside_all_runs_is_served_while_the_store_is_away(
    store: Corral,
    permissions: ControlPermissions,
    client: subprocess.Popen[bytes],
    marked_client: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    question: Callable[[ControlPermissions, int], bool],
) -> None:
    monkeypatch.setattr(store, "run_of_process", raise_unavailable)
    assert question(permissions, client.pid)
    assert not question(permissions, marked_client.pid)


@pytest.mark.parametrize("question", [ControlPermissions.may_type, ControlPermissions.may_connect])
def test_process_of_another_pid_namespace_is_refused(
    permissions: ControlPermissions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    question: Callable[[ControlPermissions, int | None], bool],
) -> None:
    monkeypatch.setattr(
        control_socket, "_read_credentials", lambda client: (0, os.getuid(), os.getgid())
    )
    server = ControlServer(tmp_path, FakeTarget(), permissions)
    server.open()
    with control_socket.connect(tmp_path) as client:
        assert not question(permissions, control_socket.peer_pid(client))
        handle_events(server)
        assert client.recv(1) == b"", "the server has closed the connection"
    server.end({})
