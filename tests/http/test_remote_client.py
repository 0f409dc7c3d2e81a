"""A store opened by HTTP URL behaves like a local store."""

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import corral
from corral import config
from corral.adapters.http_client import RETRY_SECONDS
from corral.adapters.processes import process
from corral.api import Corral
from corral.api.mail import Mail
from corral.api.remote import RemoteCorral, repeat_until_result
from corral.db.database import Database
from corral.domain.locks.model import Lock, LockState
from corral.domain.mail.model import Letter
from corral.domain.runs.model import Run, RunState
from corral.errors import (
    Ambiguous,
    Conflict,
    Held,
    IllegalMove,
    Invalid,
    NotFound,
    Refused,
    StoreUnavailable,
)
from corral.kernel.clock import ManualClock
from corral.kernel.exit_status import ExitStatus
from corral.kernel.pagination import Page
from corral.services.locks import acquisition
from tests.support.errors import because
from tests.support.home import SECONDS
from tests.support.http_server import HttpServer, closed_port, run_http_server
from tests.support.run_factories import held, queued, running
from tests.support.store import rows, walk

SECRET = "sk-ant-api03-" + "a1B2" * 23


@pytest.fixture(params=["local", "remote"])
def either(
    request: pytest.FixtureRequest, store: Corral, http_server: HttpServer
) -> Iterator[Corral]:
    """The same store, opened locally or through the daemon."""
    if request.param == "local":
        yield store
        return
    with corral.open(http_server.url, token=http_server.token) as opened:
        yield opened


@pytest.fixture
def remote(http_server: HttpServer) -> Iterator[Corral]:
    with corral.open(http_server.url, token=http_server.token) as opened:
        yield opened


def test_letter_goes_through_its_whole_life(either: Corral) -> None:
    letter = either.mail.put("agent:ada", {"a": [1, None, "ü"]}, key="k")
    assert isinstance(letter, Letter)
    assert either.mail.put("agent:ada", "other", key="k") == letter
    (claimed,) = either.mail.claim("agent:ada", owner="o")
    assert (claimed.id, claimed.body, claimed.fence) == (letter.id, {"a": [1, None, "ü"]}, 1)
    assert either.mail.renew(claimed, lease_ms=60_000).due_at > claimed.due_at
    assert either.mail.ack(claimed).state == "done"
    assert either.mail.ack(claimed).state == "done"
    assert either.mail.claim("agent:ada", owner="o") == []
    assert either.mail.next_due("agent:ada") is None


def test_record_named_like_a_verb_is_found_by_its_name(either: Corral, store: Corral) -> None:
    assert either.agents.get(either.agents.create("list").name).name == "list"
    for name in ("wait", "record"):  # called over HTTP, and by supervisors only
        run = queued(store, name=name)
        assert either.runs.get(name).id == run.id


def test_method_has_the_signature_and_docstring_of_its_declaration(either: Corral) -> None:
    for method in (either.mail.ack, either.mail.claim):
        operation = getattr(Mail, method.__name__)
        assert inspect.signature(method) == inspect.signature(operation)
        assert (method.__doc__, method.__qualname__) == (operation.__doc__, operation.__qualname__)
    assert inspect.getsource(either.mail.ack).startswith("def ack(tx: Tx, ")


def test_stale_owner_is_rejected(either: Corral, clock: ManualClock) -> None:
    either.mail.put("queue:q", 1)
    (first,) = either.mail.claim("queue:q", owner="a", lease_ms=1_000)
    clock.advance(2_000)
    (second,) = either.mail.claim("queue:q", owner="b")
    with pytest.raises(Held) as caught:
        either.mail.ack(first)
    assert caught.value.details["yours"] == 1
    either.mail.ack(second)


def test_errors_are_those_of_the_library(either: Corral, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        either.runs.get("run_0000")
    with pytest.raises(Invalid):
        either.mail.put("nowhere", 1)
    with pytest.raises(Invalid):
        either.mail.list(limit=0)
    either.agents.create("ada")
    with pytest.raises(Conflict):
        either.agents.create("ada")
    either.agents.retire("ada")
    with pytest.raises(IllegalMove) as caught:
        either.agents.retire("ada")
    assert caught.value.details["state"] == "retired"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        either.projects.register(tmp_path / name)
    with pytest.raises(Ambiguous):
        either.projects.get("prj_0")
    with pytest.raises(TypeError):
        either.mail.put("agent:ada", 1, colour="red")
    with pytest.raises(TypeError):
        either.mail.put("agent:ada")
    with pytest.raises(AttributeError):
        either.mail.paint()


def test_internal_operations_are_local(remote: Corral) -> None:
    with pytest.raises(Refused, check=because("local_only")):
        _ = remote.internal
    with pytest.raises(AttributeError):
        _ = remote.runs.heartbeat


def test_local_argument_with_an_effect_is_refused(remote: Corral, tmp_path: Path) -> None:
    project = remote.projects.register(tmp_path).id
    with pytest.raises(Refused, check=because("local_only")):
        remote.locks.acquire(project, "x", "ada", wait=True)
    with pytest.raises(Refused, check=because("local_only")):
        remote.runs.start(command=["true"], project=project, claimed=True)
    assert remote.locks.acquire(project, "x", "ada", wait=False).path == "x"


def test_lists_are_pages(either: Corral) -> None:
    for n in range(5):
        either.mail.put("queue:q", n)
    page = either.mail.list(limit=2)
    assert isinstance(page, Page)
    assert [letter.body for letter in walk(either.mail.list, limit=2)] == [0, 1, 2, 3, 4]


def test_omitted_argument_is_kept_and_none_clears(either: Corral, tmp_path: Path) -> None:
    project = either.projects.register(tmp_path, command="claude", prompt="hi")
    assert either.projects.register(tmp_path).prompt == "hi"
    assert either.projects.register(str(tmp_path), prompt=None).prompt is None
    assert either.projects.by_dir(tmp_path).id == project.id
    assert either.projects.by_dir(tmp_path).command == "claude"


def test_conversation_is_written_and_read(either: Corral) -> None:
    session = either.sessions.open(title="x")
    either.sessions.append(session, "user", "hello")
    many = either.sessions.append_many(
        session.id, [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "bye"}]
    )
    assert [turn.number for turn in many] == [2, 3]
    assert [turn.content for turn in either.sessions.turns(session, after=1).items] == ["hi", "bye"]
    either.sessions.set_state(session, "a", {"b": None})
    assert either.sessions.state(session) == {"a": {"b": None}}
    assert either.search.find("hello").items[0].subject == session.id


def test_settings_budgets_and_charges(either: Corral) -> None:
    assert either.settings.set("mail.backoff_ms", [1, 2]).value == [1, 2]
    assert either.settings.get("mail.backoff_ms").value == [1, 2]
    either.budgets.set("all", 5_000_000, period="day")
    assert either.budgets.get("all", period="day").limit_micros == 5_000_000
    assert either.budgets.remove("all", period="day") is None
    assert either.charges.total().cost_micros is None
    assert either.insights.overview().queued == 0


def test_several_records_are_requested_at_once(either: Corral) -> None:
    ids = [either.agents.create(name).id for name in ("ada", "ben")]
    assert either.insights.names(ids) == dict(zip(ids, ("ada", "ben"), strict=True))
    assert either.insights.names([]) == {}


def test_optional_arguments_may_be_none(either: Corral, tmp_path: Path) -> None:
    run = either.runs.start(command=["true"], project=str(tmp_path), dir=None, name=None)
    assert run.cwd == str(tmp_path)


def test_run_and_its_output(either: Corral, store: Corral) -> None:
    queued_run = queued(store)
    expected = b"one\ntwo\n\xff\x00three\n" + b"x" * 200_000
    folder = config.run_folder(queued_run.id)
    folder.mkdir(parents=True)
    (folder / "output").write_bytes(expected)
    holding = held(host=process.host(), folder=str(folder))
    run = store.internal.runs.launch(store.internal.runs.acquire(queued_run.id, holding))
    result = either.runs.get(run.id)
    assert isinstance(result, Run)
    assert result.state is RunState.RUNNING
    output = either.outputs.open(run.id)
    assert output.lines(1, 1) == [b"two"]
    store.internal.runs.record_end(run, ExitStatus(exit_code=0))
    assert either.runs.wait(run.id, timeout_ms=5_000).state is RunState.COMPLETED
    text = b"".join(piece.text for piece in either.outputs.follow(run.id))
    assert text == expected
    assert either.outputs.open(run.id).size == len(text)
    assert either.outputs.open(run.id).bytes(4, 3) == b"two"


def test_wait_without_result_ends_in_time(either: Corral, store: Corral) -> None:
    run = running(store)
    with pytest.raises(Refused):
        either.runs.wait(run.id, timeout_ms=50)
    assert either.mail.claim("agent:ada", owner="o", wait_ms=50) == []


def test_unlimited_wait_for_a_lock_outlives_one_request(
    remote: Corral, store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first requests time out; the lock is granted after the second one began."""
    project = store.projects.register(tmp_path).id
    for name in ("ada", "ben"):
        store.agents.create(name)
    first = store.locks.acquire(project, "a.py", "agent:ada")
    waiting = remote.locks.request(project, "a.py", "agent:ben")
    monkeypatch.setattr("corral.api.remote.MAX_WAIT_MS", 50)
    waits: list[int] = []
    wait_for_lock = acquisition.wait_for_lock

    def count_waits(database: Database, lock: str, *, timeout_ms: int | None = None) -> Lock:
        waits.append(1)
        if len(waits) == 2:
            store.locks.release(first)
        return wait_for_lock(database, lock, timeout_ms=timeout_ms)

    monkeypatch.setattr(acquisition, "wait_for_lock", count_waits)
    assert remote.locks.wait(waiting.id).state is LockState.HELD
    assert len(waits) >= 2


def test_unlimited_wait_continues_after_an_empty_result() -> None:
    results = iter([[], [], ["a letter"]])
    wait = repeat_until_result("wait_ms", lambda **_: next(results), default=0)
    assert wait(wait_ms=None) == ["a letter"]


def test_limited_wait_ends_with_an_empty_result() -> None:
    assert repeat_until_result("wait_ms", lambda **_: [], default=0)(wait_ms=10) == []


def test_waiting_claim_is_woken(either: Corral, store: Corral) -> None:
    results: list[Letter] = []
    waiting = threading.Thread(
        target=lambda: results.extend(either.mail.claim("agent:ada", owner="o", wait_ms=20_000))
    )
    waiting.start()
    store.mail.put("agent:ada", "at last")
    waiting.join(SECONDS)
    assert [letter.body for letter in results] == ["at last"]


def test_feed_is_followed_and_ends_when_idle(either: Corral, store: Corral) -> None:
    first = store.mail.put("agent:ada", 1)
    ids = [store.mail.put("agent:ada", n).id for n in range(300)]
    followed = either.events.follow("0-0", timeout_ms=3_000)
    letters = (event.subject for event in followed if event.kind == "letter")
    assert [next(letters) for _ in range(301)] == [first.id, *ids]


def test_now_is_the_stores_time(either: Corral, store: Corral) -> None:
    assert abs(either.now() - store.now()) < 10_000


def test_local_operation_says_that_it_needs_the_store(remote: Corral, tmp_path: Path) -> None:
    for call in (
        lambda: remote.db.backup(tmp_path / "x"),
        lambda: remote.secrets.resolve("x"),
        lambda: remote.runs.record(pid=1),
        lambda: remote.runs.start(command=["true"], claimed=True),
        lambda: remote.transaction(),
        lambda: remote.listening(),
    ):
        with pytest.raises(Refused) as caught:
            call()
        assert "over HTTP" in caught.value.message


def test_event_names_the_token(remote: Corral, store: Corral) -> None:
    letter = remote.mail.put("agent:ada", 1)
    assert rows(store, "SELECT actor FROM events WHERE subject = :id", id=letter.id) == [
        ("token:tests",)
    ]


def test_invalid_token_invalid_url_and_no_daemon_are_distinct(http_server: HttpServer) -> None:
    with pytest.raises(Refused, match="Invalid token"):
        corral.open(http_server.url, token="crl_" + "0" * 64)
    with pytest.raises(Invalid, check=because("token_missing")):
        corral.open(http_server.url)
    with pytest.raises(Invalid):
        corral.open("http://", token="x")
    with pytest.raises(Invalid):
        corral.open(f"http://me:secret@127.0.0.1:{http_server.port}", token="x")
    with closed_port() as port, pytest.raises(StoreUnavailable) as caught:
        corral.open(f"http://127.0.0.1:{port}", token="x")
    assert caught.value.reason == "unreachable"


def test_arguments_of_a_local_store_are_refused_over_http(http_server: HttpServer) -> None:
    arguments = (
        {"actor": "user:x"},
        {"clock": ManualClock()},
        {"check_schema": False},
        {"probe": print},
    )
    for options in arguments:
        with pytest.raises(Invalid, check=because("local_only")):
            corral.open(http_server.url, token=http_server.token, **options)


def test_methods_of_a_local_store_are_refused_over_http(remote: Corral) -> None:
    calls: list[Callable[[], object]] = [
        remote.stop_waiting,
        remote.transaction,
        lambda: remote.act_as("user:x"),
        lambda: remote.as_service("supervisor"),
        lambda: remote.clean("text"),
        lambda: remote.db.part_of,
        lambda: remote.run_of_process([]),
        lambda: remote.server_timeout(1),
    ]
    for call in calls:
        with pytest.raises(Refused, check=because("local_only")):
            call()


def test_redactions_are_reported_to_the_thread_that_wrote(remote: Corral) -> None:
    reported: list[str] = []
    with remote.report_redactions(reported.extend):
        writer = threading.Thread(target=lambda: remote.mail.put("queue:q", SECRET))
        writer.start()
        writer.join(SECONDS)
        assert reported == []
        remote.mail.put("queue:q", SECRET)
    assert reported == ["letters.body"]


def test_token_is_read_from_the_environment(
    http_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_TOKEN", http_server.token)
    with corral.open(http_server.url) as opened:
        assert isinstance(opened, RemoteCorral)
        assert opened.db.engine == http_server.store.db.engine


def test_restarted_server_is_found_again(store: Corral) -> None:
    with closed_port() as port:
        with run_http_server(store, port=port) as first:
            opened = corral.open(first.url, token=first.token)
            opened.mail.put("agent:ada", 1)
        with pytest.raises(StoreUnavailable):
            opened.mail.put("agent:ada", 2)
        store.tokens.revoke("tests")
        with run_http_server(store, port=port) as second:
            reopened = corral.open(second.url, token=second.token)
            assert [letter.body for letter in reopened.mail.list().items] == [1]
            reopened.close()
        opened.close()


def test_many_threads_share_one_store(remote: Corral, store: Corral) -> None:
    threads = [
        threading.Thread(target=lambda: [remote.mail.put("queue:q", n) for n in range(10)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert rows(store, "SELECT count(*) FROM letters") == [(80,)]


def test_opening_waits_for_a_server_only_briefly() -> None:
    before = time.monotonic()
    with closed_port() as port, pytest.raises(StoreUnavailable):
        corral.open(f"http://127.0.0.1:{port}", token="x")
    assert time.monotonic() - before < RETRY_SECONDS
