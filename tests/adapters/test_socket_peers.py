"""Detection of the process at the other end of a local connection."""

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from corral.adapters.processes.socket_peers import list_peer_ancestors

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
WITHOUT_ACCOUNT = 54_321
PR_SET_DUMPABLE = 4


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def connect_to(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    return client, accepted


def test_calling_process_is_found(server: socket.socket) -> None:
    client, accepted = connect_to(server)
    with client, accepted:
        (above,) = list_peer_ancestors(accepted.getpeername(), server.getsockname()[1]) or []
        assert above[0].pid == os.getpid()


@pytest.mark.parametrize("reset", [False, True])
def test_caller_that_hung_up_is_local_and_hidden(server: socket.socket, reset: bool) -> None:
    client, accepted = connect_to(server)
    with accepted:
        peer = accepted.getpeername()
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        assert list_peer_ancestors(peer, server.getsockname()[1]) == []


def test_caller_on_another_machine_is_not_local() -> None:
    assert list_peer_ancestors(("192.0.2.1", 4_711), 80) is None


def test_caller_that_forbids_inspection_is_local_and_hidden(server: socket.socket) -> None:
    """Both ends belong to one ordinary user; as root every process can be inspected."""
    ready, go = os.pipe()
    holder = _fork(lambda: _call_and_wait(server, ready, go))
    accepted, _ = server.accept()
    accepted.recv(1)  # the process is hidden now
    try:
        peer, port = accepted.getpeername(), server.getsockname()[1]
        checker = _fork(lambda: list_peer_ancestors(peer, port) == [])
        assert os.waitstatus_to_exitcode(os.waitpid(checker, 0)[1]) == 0
    finally:
        os.close(go)
        os.waitpid(holder, 0)
        os.close(ready)
        accepted.close()


def _call_and_wait(server: socket.socket, ready: int, go: int) -> bool:
    """Call, and keep the socket open until the test closes its end of the pipe."""
    os.close(go)
    client = socket.create_connection(server.getsockname())
    client.send(b"x")
    os.read(ready, 1)
    return True


def _fork(work: Callable[[], bool]) -> int:
    """Fork a child as an unprivileged user. It exits with 0 if `work` returns True."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    with suppress(BaseException):
        if os.getuid() == 0:
            os.setgid(WITHOUT_ACCOUNT)
            os.setuid(WITHOUT_ACCOUNT)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        code = 0 if work() else 1
    os._exit(code)
