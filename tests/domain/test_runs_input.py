"""Text for a run whose supervisor is reachable but does not respond."""

import threading

import pytest

from corral.adapters import control_socket
from corral.adapters.processes import process
from corral.api import Corral
from corral.config import run_folder
from corral.kernel.errors import Conflict
from tests.support.run_factories import held, queued


def test_text_that_may_have_been_typed_is_not_mailed_too(store: Corral) -> None:
    session = store.sessions.open()
    me = process.identify_self()
    supervisor = held(
        host=me.host,
        boot_id=me.boot_id,
        pid=me.pid,
        start_token=me.start_token,
        supervisor_pid=me.pid,
        supervisor_token=me.start_token,
    )
    requested = queued(store, session_id=session.id)
    run = store.internal.runs.launch(store.internal.runs.acquire(requested.id, supervisor))
    folder = run_folder(run.id)
    folder.mkdir(parents=True)
    with control_socket.listen(folder) as server:
        server.setblocking(True)

        def receive_and_exit() -> None:
            client = server.accept()[0]
            client.recv(65_536)
            client.close()

        thread = threading.Thread(target=receive_and_exit)
        thread.start()
        with pytest.raises(Conflict) as error:
            store.runs.send(run.id, "Go on.")
        thread.join()
    assert error.value.details["code"] == "outcome_unknown"
    assert not store.mail.list(mailbox=f"session:{session.id}").items


def test_text_is_mailed_when_no_supervisor_is_reachable(store: Corral) -> None:
    session = store.sessions.open()
    requested = queued(store, session_id=session.id)
    run = store.internal.runs.launch(store.internal.runs.acquire(requested.id, held()))
    assert store.runs.send(run.id, "Go on.").how == "mailed"
