"""Results, errors and permissions of each MCP tool, on both engines, without a transport."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import corral
from corral.api import Corral
from corral.api.catalog import list_operations
from corral.api.idempotency import IdempotencyKey, call_with_key
from corral.kernel.clock import ManualClock
from corral.kernel.errors import Refused
from corral.mcp.registry import MAX_TOOLS, TOOLS, ToolSpec, list_tools
from tests.support.grouped_cases import each_case
from tests.support.mcp_clients import Agent, ToolError
from tests.support.run_factories import add_run
from tests.support.store import list_events, rows, unchanged


@pytest.fixture
def project(store: Corral, tmp_path: Path) -> str:
    (tmp_path / "project").mkdir()
    for name in ("ada", "bob"):
        store.agents.create(name, command="cat")
    return store.projects.register(tmp_path / "project").id


@pytest.fixture
def ada(store: Corral, project: str) -> Agent:
    return Agent(store, "ada", project=project)


@pytest.fixture
def bob(store: Corral, project: str) -> Agent:
    return Agent(store, "bob", project=project)


def call_failing(call: Any, tool: str, **arguments: Any) -> ToolError:
    """Call a tool that must fail, and return its error."""
    with pytest.raises(ToolError) as caught:
        call(tool, **arguments)
    return caught.value


def reason_of_failure(call: Any, tool: str, **arguments: Any) -> str:
    """Call a tool that must fail, and return the machine-readable reason."""
    return str(call_failing(call, tool, **arguments).details["reason"])


# -- the table ---------------------------------------------------------------------------------


def test_at_most_thirty_tools_and_each_calls_known_operations() -> None:
    operations = {f"{row.attribute}.{row.verb}" for row in list_operations()}
    assert len({tool.name for tool in TOOLS}) == len(TOOLS) <= MAX_TOOLS
    assert {operation for tool in TOOLS for operation in tool.operations} <= operations


@each_case("tool", TOOLS, ids=lambda tool: tool.name)
def test_tool_has_a_purpose_and_no_caller_argument(tool: ToolSpec) -> None:
    assert 40 <= len(tool.help) <= 400
    assert tool.help.endswith(".")
    arguments = {*tool.arguments.__struct_fields__}
    assert not arguments & {"agent", "owner", "sender", "run", "session", "project"}
    assert ("idempotency_key" in arguments) == tool.writes


def test_tool_list_is_small_enough_for_every_prompt() -> None:
    tool_list = msgspec.json.decode(list_tools())
    assert all(item["inputSchema"]["type"] == "object" for item in tool_list)
    for item in tool_list:
        del item["outputSchema"], item["annotations"]  # for programs; not offered to agents
    assert len(msgspec.json.encode(tool_list)) < 24_000


# -- the caller --------------------------------------------------------------------------------


def test_full_scope_token_has_no_agent_identity(store: Corral, project: str) -> None:
    ada = Agent(store, "ada")
    ada._who = store.internal.tokens.check(store.tokens.create("full").value)
    assert reason_of_failure(ada, "whoami") == "no_agent"


def test_retired_agent_is_rejected(store: Corral, ada: Agent) -> None:
    store.agents.retire("ada")
    assert call_failing(ada, "send", to="bob", text="x").code == "refused"


def test_run_and_session_of_another_agent_are_rejected(store: Corral, project: str) -> None:
    bob = store.agents.get("bob")
    run = add_run(store, "running", agent_id=bob.id, project_id=project)
    session = store.sessions.open("bob", project=project)
    assert reason_of_failure(Agent(store, "ada", run=run), "task_claim") == "other_run"
    assert reason_of_failure(Agent(store, "ada", session=session.id), "history") == "other_session"
    me = Agent(store, "bob", run=run, session=session.id)("whoami")
    assert (me["run"], me["session"], me["project"]["id"]) == (run, session.id, project)


def test_without_a_project_only_global_tools_work(store: Corral, project: str) -> None:
    agent = Agent(store, "ada")
    assert reason_of_failure(agent, "task_list") == "project_unknown"
    assert agent("send", to="bob", text="where am I?")["to"] == "agent:bob"


def test_tasks_of_another_project_are_not_found(store: Corral, ada: Agent, tmp_path: Path) -> None:
    other = store.projects.register(tmp_path)
    task = store.tasks.add(other.id, "secret", "Not for ada's project")
    for named in (task.id, "secret"):
        assert reason_of_failure(ada, "task_show", task=named) == "unknown_task"
        assert reason_of_failure(ada, "task_claim", task=named) == "unknown_task"


def test_token_of_one_project_opens_no_other(store: Corral, project: str, tmp_path: Path) -> None:
    other = store.projects.register(tmp_path).id
    bound = store.tokens.create("bound", scope="agent:ada", project=project).value
    ada = Agent(store, "ada", project=other)
    ada._who = store.internal.tokens.check(bound)
    assert reason_of_failure(ada, "task_list") == "other_project"
    ada._place = {}
    assert ada("whoami")["project"]["id"] == project


def test_event_names_the_calling_agent(store: Corral, ada: Agent) -> None:
    ada("task_add", tasks=[{"key": "a"}])
    assert store.tasks.get("a").created_by == "agent:ada"
    result = rows(store, "SELECT DISTINCT actor FROM events WHERE kind = 'task'")
    assert result == [("agent:ada",)]


# -- idempotency -------------------------------------------------------------------------------


WRITES: list[tuple[str, dict[str, Any]]] = [
    ("send", {"to": "bob", "text": "hello"}),
    ("task_add", {"tasks": [{"key": "new"}]}),
    ("task_claim", {}),
    ("timer_set", {"text": "look again", "in_seconds": 60}),
    ("delegate", {"to": "bob", "text": "please"}),
    ("lock", {"path": "a.py"}),
    ("plan", {"steps": [{"content": "first"}]}),
    ("progress", {"summary": "half"}),
    ("group_post", {"text": "to all"}),
    ("ask", {"text": "May I?", "options": ["yes", "no"]}),
    ("decide", {"title": "We take the first.", "confirm": True}),
    ("remember", {"text": "The build needs make."}),
]


@pytest.mark.parametrize(("tool", "arguments"), WRITES, ids=lambda value: str(value)[:12])
def test_repeated_call_with_a_key_is_done_once(
    store: Corral, project: str, ada: Agent, tool: str, arguments: dict[str, Any]
) -> None:
    store.tasks.declare(project, [{"key": "one"}, {"key": "two"}])
    first = ada(tool, **arguments, idempotency_key="k1")
    with unchanged(store):
        assert ada(tool, **arguments, idempotency_key="k1") == first
    assert list_events(store).count("task.claim") <= 1


@pytest.fixture
def run_store(
    store: Corral, project: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Corral, str]]:
    """The store as a process inside a run of ada opens it, and the run."""
    agent = store.agents.get("ada")
    run = add_run(store, "running", agent_id=agent.id, project_id=project)
    monkeypatch.setenv("CORRAL_RUN", run)
    with corral.open(store.db.url, clock=store._database.clock) as bound:
        yield bound, run


@pytest.mark.parametrize(("tool", "arguments"), WRITES, ids=lambda value: str(value)[:12])
def test_repeated_call_with_a_key_inside_a_run_is_done_once(
    store: Corral,
    project: str,
    run_store: tuple[Corral, str],
    tool: str,
    arguments: dict[str, Any],
) -> None:
    store.tasks.declare(project, [{"key": "one"}, {"key": "two"}])
    ada = Agent(store, "ada", project=project, run=run_store[1])
    ada._store = run_store[0]
    first = ada(tool, **arguments, idempotency_key="k1")
    with unchanged(store):
        assert ada(tool, **arguments, idempotency_key="k1") == first


@each_case(
    ("operation", "arguments"),
    [
        ("agents.retire", {"agent": "bob"}),
        ("notes.add", {"text": "x", "source": "agent:bob"}),
        ("groups.create", {"name": "g", "by": "user:root"}),
    ],
    ids=lambda value: str(value)[:12],
)
def test_key_does_not_bypass_the_permissions_of_a_run(
    store: Corral, run_store: tuple[Corral, str], operation: str, arguments: dict[str, Any]
) -> None:
    resource, _, verb = operation.partition(".")
    with unchanged(store), pytest.raises(Refused):
        call_with_key(
            getattr(run_store[0], resource),
            verb,
            arguments,
            key=IdempotencyKey("agent:ada", "k", "f"),
            encode=msgspec.json.encode,
        )


def test_positional_arguments_do_not_bypass_the_permissions_of_a_run(
    store: Corral, run_store: tuple[Corral, str]
) -> None:
    bound, _ = run_store
    with unchanged(store):
        with pytest.raises(Refused):
            bound.notes.add("x", source="agent:bob")
        with pytest.raises(Refused):
            bound.agents.retire("bob")
        with pytest.raises(TypeError):
            bound.agents.retire("bob", "ada")  # type: ignore[call-arg]
    assert bound.notes.add("x").source == "agent:ada"


def test_key_belongs_to_one_agent_and_one_call(ada: Agent, bob: Agent) -> None:
    message = ada("send", to="bob", text="one", idempotency_key="k")
    assert bob("send", to="bob", text="one", idempotency_key="k")["letter"] != message["letter"]
    assert reason_of_failure(ada, "send", to="bob", text="two", idempotency_key="k") == "key_reused"


def test_rejected_call_can_be_repeated_with_its_key(
    store: Corral, project: str, ada: Agent
) -> None:
    call_failing(ada, "task_add", tasks=[{"key": "a", "depends_on": ["b"]}], idempotency_key="k")
    assert ada("task_add", tasks=[{"key": "b"}])
    ada("task_add", tasks=[{"key": "a", "depends_on": ["b"]}], idempotency_key="k")


# -- letters -----------------------------------------------------------------------------------


def test_letters_of_a_lost_response_are_returned_again_in_order(store: Corral, ada: Agent) -> None:
    for text in ("one", "two", "three"):
        store.mail.put("agent:ada", text)
    assert [item["body"] for item in ada("inbox", limit=2)["letters"]] == ["one", "two"]
    letters = ada("inbox", limit=3)["letters"]
    assert [item["body"] for item in letters] == ["one", "two", "three"]
    assert ada("ack", letters=[item["id"] for item in letters])["failed"] == []
    assert ada("ack", letters=[letters[0]["id"]])["acknowledged"] == [letters[0]["id"]]
    assert ada("inbox")["letters"] == []


def test_inbox_claims_only_the_letters_that_it_returns(store: Corral, project: str) -> None:
    session = store.sessions.open("ada", project=project)
    ada = Agent(store, "ada", session=session.id)
    mailboxes = (f"session:{session.id}", "agent:ada")
    sent = [store.mail.put(mailbox, text) for text in ("one", "two") for mailbox in mailboxes]
    for _ in range(2):
        (shown,) = ada("inbox", limit=1)["letters"]
        assert shown["times_shown"] == 1
        assert [letter.id for letter in sent if store.mail.get(letter.id).attempts] == [shown["id"]]


def test_unacknowledged_letter_is_delivered_again(
    store: Corral, clock: ManualClock, ada: Agent
) -> None:
    store.mail.put("agent:ada", "important")
    ada("inbox")
    clock.advance(601_000)
    (letter,) = ada("inbox")["letters"]
    assert letter["times_shown"] == 2


def test_letter_of_another_agent_cannot_be_acknowledged(
    store: Corral, ada: Agent, bob: Agent
) -> None:
    letter = store.mail.put("agent:bob", "for bob")
    assert call_failing(ada, "ack", letters=[letter.id]).details["reasons"] == ["other_recipient"]
    assert call_failing(bob, "ack", letters=[letter.id]).details["reasons"] == ["not_claimed"]
    assert store.mail.get(letter.id).state == "waiting"


def test_agent_cannot_write_to_system_mailboxes(ada: Agent) -> None:
    for to in ("hook:deploy", "place:general", "unknown"):
        assert call_failing(ada, "send", to=to, text="x")


def test_session_has_its_own_mailbox(store: Corral, project: str) -> None:
    session = store.sessions.open("ada", project=project)
    ada = Agent(store, "ada", session=session.id)
    store.mail.put(f"session:{session.id}", "in this conversation")
    store.mail.put("agent:ada", "to ada")
    letters = ada("inbox")["letters"]
    assert {item["body"] for item in letters} == {"to ada", "in this conversation"}
    ada("ack", letters=[item["id"] for item in letters])
    store.sessions.append(session.id, "user", "an earlier message")
    assert [turn["content"] for turn in ada("history")["turns"]] == ["an earlier message"]


def test_disconnected_caller_stops_waiting(ada: Agent) -> None:
    ada.gone.set()
    assert ada("inbox", wait_seconds=50)["letters"] == []


# -- work --------------------------------------------------------------------------------------


def test_worker_cannot_review_itself_and_sees_why_it_was_rejected(
    store: Corral, ada: Agent, bob: Agent
) -> None:
    ada("task_add", tasks=[{"key": "a"}, {"key": "b", "depends_on": ["a"]}])
    assert bob("task_claim")["task"]["key"] == "a"
    assert bob("task_claim")["task"] is None
    assert reason_of_failure(bob, "task_submit", task="a") == "evidence_missing"
    assert bob("task_submit", task="a", text="done")["state"] == "submitted"
    assert reason_of_failure(bob, "task_review", task="a", accept=True) == "own_work"
    assert reason_of_failure(ada, "task_review", task="a", accept=False) == "feedback_missing"
    assert ada("task_review", task="a", accept=False, comment="no tests")["state"] == "ready"
    assert bob("inbox")["letters"][0]["body"]["reason"] == "no tests"
    bob("task_claim", task="a")
    bob("task_submit", task="a", commands=[{"command": "make test", "exit_code": 0}])
    assert ada("task_review", task="a", accept=True)["state"] == "done"
    assert bob("task_claim")["task"]["key"] == "b"
    assert bob("task_fail", task="b", reason="no disk", release=True)["state"] == "ready"


def test_task_of_another_agent_cannot_be_submitted(ada: Agent, bob: Agent) -> None:
    ada("task_add", tasks=[{"key": "a"}])
    ada("task_claim")
    assert call_failing(bob, "task_submit", task="a", text="I did it")
    assert call_failing(bob, "progress", summary="mine", task="a")


def test_task_without_a_run_is_kept_by_reporting_progress(
    store: Corral, clock: ManualClock, ada: Agent
) -> None:
    ada("task_add", tasks=[{"key": "a"}])
    ada("task_claim")
    clock.advance(25 * 60_000)
    ada("progress", summary="half", percent=50, task="a")
    clock.advance(25 * 60_000)
    store.tasks.release_due()
    assert store.tasks.get("a").state == "running"
    clock.advance(10 * 60_000)
    store.tasks.release_due()
    assert store.tasks.get("a").state == "ready"


def test_delegated_work_returns_its_result(ada: Agent, bob: Agent) -> None:
    handed = ada("delegate", to="bob", text="count the files", within_minutes=5)
    (letter,) = bob("inbox")["letters"]
    assert letter["body"]["delegation"] == handed["delegation"]
    assert (
        reason_of_failure(ada, "result", delegation=handed["delegation"], result=1)
        == "other_delegate"
    )
    bob("result", delegation=handed["delegation"], result={"files": 12})
    assert ada("inbox")["letters"][0]["body"]["result"] == {"files": 12}
    assert reason_of_failure(ada, "delegate", to="bob") == "text_or_task"


def test_lock_conflict_names_the_owner_and_can_be_queued(
    store: Corral, ada: Agent, bob: Agent
) -> None:
    lock = ada("lock", path="src/", reason="moving things")
    assert "agent:ada" in str(call_failing(bob, "lock", path="src/a.py"))
    assert "agent:ada" in str(call_failing(bob, "lock", path="src/a.py", wait_seconds=1))
    assert bob("lock", path="src/a.py", queue=True)["lock"]["state"] == "waiting"
    assert reason_of_failure(bob, "lock_release", lock=lock["lock"]["id"]) == "other_owner"
    assert [item["owner"] for item in bob("lock_list", path="src/a.py")["locks"]] == ["agent:ada"]
    ada("lock_release", lock=lock["lock"]["id"])
    assert bob("lock_list")["locks"][0]["state"] == "held"
    assert bob("inbox")["letters"]


# -- questions, groups, memory -----------------------------------------------------------------


def test_question_is_answered_in_the_same_call_or_later(
    store: Corral, ada: Agent, bob: Agent
) -> None:
    question = ada("ask", text="Which one?", options=["left", "right"], to=["agent:bob"])
    assert (question["state"], question["answer"]) == ("open", None)
    assert question["next_step"]
    (letter,) = bob("inbox")["letters"]
    assert question["id"] in str(letter["body"])
    assert reason_of_failure(bob, "answer_wait", id=question["id"]) == "not_yours"
    assert call_failing(ada, "answer", id=question["id"], answer="left").code == "refused"
    assert bob("answer", id=question["id"], answer="left")["answer"] == "left"
    result = ada("answer_wait", id=question["id"], wait_seconds=1)
    assert (result["state"], result["answer"], result["by"]) == ("answered", "left", "agent:bob")
    assert ada("inbox")["letters"] == []  # reported already


def test_decision_waits_for_approval(store: Corral, ada: Agent, bob: Agent) -> None:
    assert ada("decide", title="Tabs.", rationale="Short.")["state"] == "recorded"
    proposed = ada("decide", title="Rewrite it.", confirm=True, to=["agent:bob"])
    assert proposed["state"] == "proposed"
    assert call_failing(bob, "answer", id=proposed["id"], answer="maybe").code == "invalid"
    assert bob("answer", id=proposed["id"], answer="No", reason="too soon")["state"] == "rejected"
    result = ada("answer_wait", id=proposed["id"])
    assert (result["state"], result["answer"]) == ("rejected", "too soon")
    assert result["next_step"]


def test_group_is_read_up_to_the_acknowledged_post(
    store: Corral, project: str, ada: Agent, bob: Agent
) -> None:
    store.groups.create("build", project=project)
    store.groups.join("build", member="agent:ada", project=project)
    store.groups.join("build", member="agent:bob", project=project)
    ada("group_post", group="build", text="one")
    last = ada("group_post", group="build", text="two")
    for _ in range(2):
        result = bob("group_read", group="build")["posts"]
        assert [post["text"] for post in result] == ["one", "two"]
    assert bob("group_read", group="build", seen=last["number"])["posts"] == []
    store.groups.create("all-hands")
    store.groups.join("all-hands", member="agent:ada")
    assert ada("group_post", group="all-hands", text="of no project")["number"] == 1
    store.agents.create("eve", command="cat")
    eve = Agent(store, "eve", project=project)
    assert call_failing(eve, "group_read", group="build")
    assert call_failing(eve, "group_post", group="build", text="let me in")


def test_notes_are_found_within_their_scope(store: Corral, ada: Agent, bob: Agent) -> None:
    ada("remember", text="The tests need a running PostgreSQL server.", key="tests")
    ada("remember", text="My own PostgreSQL password is elsewhere.", whom="me")
    results = [
        note["text"] for note in bob("recall", about="how do PostgreSQL tests run?")["notes"]
    ]
    assert results == ["The tests need a running PostgreSQL server."]
    assert len(ada("recall", about="PostgreSQL")["notes"]) == 2
    assert bob("recall", about="weather")["notes"] == []


@each_case(
    ("tool", "arguments"),
    [
        ("send", {"to": "bob"}),
        ("send", {"to": "bob", "text": "a\0b"}),
        ("send", {"to": "bob", "text": "x", "priority": 10**30}),
        ("send", {"to": "bob\n", "text": "x"}),
        ("send", {"to": "bob", "text": "x", "idempotency_key": "k" * 10_000}),
        ("task_add", {"tasks": []}),
        ("task_add", {"tasks": [{"key": "a", "depends_on": ["a"]}]}),
        ("task_add", {"tasks": [{"key": "a", "check": "rm -rf /"}]}),
        ("task_submit", {"task": "tsk_" + "0" * 26, "text": "x"}),
        ("lock", {"path": "/"}),
        ("lock", {"path": "../x"}),
        ("lock", {"path": "a\nb"}),
        ("lock", {"path": "*" * 100_000}),
        ("lock_release", {"lock": "lck_x"}),
        ("ack", {"letters": ["let_999999", "nothing"]}),
        ("timer_set", {"text": "x", "in_seconds": 1}),
        ("inbox", {"wait_seconds": 10_000}),
        ("history", {"limit": -1}),
        ("result", {"delegation": "dlg_nothing", "result": 1}),
        ("group_read", {"group": "nowhere"}),
        ("group_post", {"group": "nowhere", "text": "x"}),
        ("ask", {"text": "x", "to": ["not a mailbox"]}),
        ("answer", {"id": "qst_nothing", "answer": "yes"}),
        ("answer", {"id": "dec_nothing", "answer": "perhaps"}),
        ("answer_wait", {"id": "nothing"}),
        ("remember", {"text": "x", "category": "a\nb"}),
        ("recall", {"about": "x" * 1_000_000}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_arguments_are_rejected_and_change_nothing(
    store: Corral, ada: Agent, tool: str, arguments: dict[str, Any]
) -> None:
    with unchanged(store):
        assert call_failing(ada, tool, **arguments).code != "internal"


# -- the host -------------------------------------------------------------------------------------


def test_host_request_is_decided_by_others(store: Corral, ada: Agent, bob: Agent) -> None:
    arguments = {"name": "helper", "instructions": "Help."}
    request = ada("request", action="create_agent", arguments=arguments, idempotency_key="k")
    assert request["state"] == "waiting"
    repeated = ada("request", action="create_agent", arguments=arguments, idempotency_key="k")
    assert repeated["id"] == request["id"]
    question = store.host_requests.get(request["id"]).question_id
    for agent in (ada, bob):
        assert reason_of_failure(agent, "answer", id=question, answer="yes") == "not_an_answerer"
    assert (
        reason_of_failure(ada, "request", action="create_agent", arguments={"x": 1})
        == "bad_arguments"
    )
    assert "rebuild" in str(call_failing(ada, "request", action="rebuild", arguments={}))
    store.agents.grant("bob", "host:create_agent(b-*)")
    other = bob("request", action="create_agent", arguments={**arguments, "name": "b-helper"})
    assert (other["state"], other["result"]["agent"]) == ("done", "b-helper")


def test_letter_names_its_task_and_replies_reach_the_sender(
    store: Corral, ada: Agent, bob: Agent, project: str
) -> None:
    message = ada("send", to="bob", text="which port?")
    (letter,) = bob("inbox")["letters"]
    assert letter["id"] == message["letter"]
    answer = bob("send", text="8080", reply_to=letter["id"])
    assert answer["to"] == "agent:ada"
    assert reason_of_failure(ada, "send", text="x", reply_to=letter["id"]) == "unknown_letter"
