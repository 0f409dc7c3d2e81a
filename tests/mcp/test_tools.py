"""What each tool does and rejects, and for which caller; on both engines, without a transport."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.api import Corral
from corral.api.catalog import list_operations
from corral.kernel.clock import ManualClock
from corral.mcp.registry import MAX_TOOLS, TOOLS, ToolSpec, list_tools
from tests.support.grouped_cases import each_case
from tests.support.mcp_clients import Agent, ToolError
from tests.support.run_factories import add_run
from tests.support.store import record, rows, unchanged


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


def refused(call: Any, tool: str, **arguments: Any) -> ToolError:
    """Call a tool that must fail, and return its error."""
    with pytest.raises(ToolError) as caught:
        call(tool, **arguments)
    return caught.value


def reason(call: Any, tool: str, **arguments: Any) -> str:
    """Call a tool that must fail, and return the machine-readable reason."""
    return str(refused(call, tool, **arguments).details["reason"])


# -- the table ---------------------------------------------------------------------------------


def test_at_most_thirty_tools_and_each_calls_known_operations() -> None:
    known = {f"{row.attribute}.{row.verb}" for row in list_operations()}
    assert len({tool.name for tool in TOOLS}) == len(TOOLS) <= MAX_TOOLS
    assert {operation for tool in TOOLS for operation in tool.operations} <= known


@each_case("tool", TOOLS, ids=lambda tool: tool.name)
def test_tool_has_a_purpose_and_no_caller_argument(tool: ToolSpec) -> None:
    assert 40 <= len(tool.help) <= 400
    assert tool.help.endswith(".")
    taken = {*tool.arguments.__struct_fields__}
    assert not taken & {"agent", "owner", "sender", "run", "session", "project"}
    assert ("idempotency_key" in taken) == tool.writes


def test_tool_list_is_small_enough_for_every_prompt() -> None:
    listed = msgspec.json.decode(list_tools())
    assert all(item["inputSchema"]["type"] == "object" for item in listed)
    for item in listed:
        del item["outputSchema"], item["annotations"]  # for programs; not offered to agents
    assert len(msgspec.json.encode(listed)) < 24_000


# -- the caller --------------------------------------------------------------------------------


def test_full_scope_token_has_no_agent_identity(store: Corral, project: str) -> None:
    ada = Agent(store, "ada")
    ada._who = store.internal.tokens.check(store.tokens.create("full").value)
    assert reason(ada, "whoami") == "no_agent"


def test_retired_agent_is_rejected(store: Corral, ada: Agent) -> None:
    store.agents.retire("ada")
    assert refused(ada, "send", to="bob", text="x").code == "refused"


def test_run_and_session_of_another_agent_are_rejected(store: Corral, project: str) -> None:
    bob = store.agents.get("bob")
    run = add_run(store, "running", agent_id=bob.id, project_id=project)
    session = store.sessions.open("bob", project=project)
    assert reason(Agent(store, "ada", run=run), "task_claim") == "other_run"
    assert reason(Agent(store, "ada", session=session.id), "history") == "other_session"
    me = Agent(store, "bob", run=run, session=session.id)("whoami")
    assert (me["run"], me["session"], me["project"]["id"]) == (run, session.id, project)


def test_without_a_project_only_global_tools_work(store: Corral, project: str) -> None:
    lost = Agent(store, "ada")
    assert reason(lost, "task_list") == "project_unknown"
    assert lost("send", to="bob", text="where am I?")["to"] == "agent:bob"


def test_tasks_of_another_project_are_not_found(store: Corral, ada: Agent, tmp_path: Path) -> None:
    other = store.projects.register(tmp_path)
    task = store.tasks.add(other.id, "secret", "Not for ada's project")
    for named in (task.id, "secret"):
        assert reason(ada, "task_show", task=named) == "unknown_task"
        assert reason(ada, "task_claim", task=named) == "unknown_task"


def test_token_of_one_project_opens_no_other(store: Corral, project: str, tmp_path: Path) -> None:
    other = store.projects.register(tmp_path).id
    bound = store.tokens.create("bound", scope="agent:ada", project=project).value
    ada = Agent(store, "ada", project=other)
    ada._who = store.internal.tokens.check(bound)
    assert reason(ada, "task_list") == "other_project"
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
    assert record(store).count("task.claim") <= 1


def test_key_belongs_to_one_agent_and_one_call(ada: Agent, bob: Agent) -> None:
    mine = ada("send", to="bob", text="one", idempotency_key="k")
    assert bob("send", to="bob", text="one", idempotency_key="k")["letter"] != mine["letter"]
    assert reason(ada, "send", to="bob", text="two", idempotency_key="k") == "key_reused"


def test_rejected_call_can_be_repeated_with_its_key(
    store: Corral, project: str, ada: Agent
) -> None:
    refused(ada, "task_add", tasks=[{"key": "a", "depends_on": ["b"]}], idempotency_key="k")
    assert ada("task_add", tasks=[{"key": "b"}])
    ada("task_add", tasks=[{"key": "a", "depends_on": ["b"]}], idempotency_key="k")


# -- letters -----------------------------------------------------------------------------------


def test_letters_of_a_lost_response_are_returned_again_in_order(store: Corral, ada: Agent) -> None:
    for text in ("one", "two", "three"):
        store.mail.put("agent:ada", text)
    assert [item["body"] for item in ada("inbox", limit=2)["letters"]] == ["one", "two"]
    shown = ada("inbox", limit=3)["letters"]
    assert [item["body"] for item in shown] == ["one", "two", "three"]
    assert ada("ack", letters=[item["id"] for item in shown])["failed"] == []
    assert ada("ack", letters=[shown[0]["id"]])["acknowledged"] == [shown[0]["id"]]
    assert ada("inbox")["letters"] == []


def test_unacknowledged_letter_is_delivered_again(
    store: Corral, clock: ManualClock, ada: Agent
) -> None:
    store.mail.put("agent:ada", "important")
    ada("inbox")
    clock.advance(601_000)
    (shown,) = ada("inbox")["letters"]
    assert shown["times_shown"] == 2


def test_letter_of_another_agent_cannot_be_acknowledged(
    store: Corral, ada: Agent, bob: Agent
) -> None:
    letter = store.mail.put("agent:bob", "for bob")
    assert refused(ada, "ack", letters=[letter.id]).details["reasons"] == ["other_recipient"]
    assert refused(bob, "ack", letters=[letter.id]).details["reasons"] == ["not_claimed"]
    assert store.mail.get(letter.id).state == "waiting"


def test_agent_cannot_write_to_system_mailboxes(ada: Agent) -> None:
    for to in ("hook:deploy", "place:general", "nobody"):
        assert refused(ada, "send", to=to, text="x")


def test_session_has_its_own_mailbox(store: Corral, project: str) -> None:
    session = store.sessions.open("ada", project=project)
    ada = Agent(store, "ada", session=session.id)
    store.mail.put(f"session:{session.id}", "in this conversation")
    store.mail.put("agent:ada", "to ada")
    shown = ada("inbox")["letters"]
    assert {item["body"] for item in shown} == {"to ada", "in this conversation"}
    ada("ack", letters=[item["id"] for item in shown])
    store.sessions.append(session.id, "user", "what was said")
    assert [turn["content"] for turn in ada("history")["turns"]] == ["what was said"]


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
    assert reason(bob, "task_submit", task="a") == "evidence_missing"
    assert bob("task_submit", task="a", text="done")["state"] == "submitted"
    assert reason(bob, "task_review", task="a", accept=True) == "own_work"
    assert reason(ada, "task_review", task="a", accept=False) == "feedback_missing"
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
    assert refused(bob, "task_submit", task="a", text="I did it")
    assert refused(bob, "progress", summary="mine", task="a")


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
    assert reason(ada, "result", delegation=handed["delegation"], result=1) == "other_delegate"
    bob("result", delegation=handed["delegation"], result={"files": 12})
    assert ada("inbox")["letters"][0]["body"]["result"] == {"files": 12}
    assert reason(ada, "delegate", to="bob") == "text_or_task"


def test_lock_conflict_names_the_owner_and_can_be_queued(
    store: Corral, ada: Agent, bob: Agent
) -> None:
    mine = ada("lock", path="src/", reason="moving things")
    assert "agent:ada" in str(refused(bob, "lock", path="src/a.py"))
    assert "agent:ada" in str(refused(bob, "lock", path="src/a.py", wait_seconds=1))
    assert bob("lock", path="src/a.py", queue=True)["lock"]["state"] == "waiting"
    assert reason(bob, "lock_release", lock=mine["lock"]["id"]) == "other_owner"
    assert [item["owner"] for item in bob("lock_list", path="src/a.py")["locks"]] == ["agent:ada"]
    ada("lock_release", lock=mine["lock"]["id"])
    assert bob("lock_list")["locks"][0]["state"] == "held"
    assert bob("inbox")["letters"]


# -- questions, groups, memory -----------------------------------------------------------------


def test_question_is_answered_in_the_same_call_or_later(
    store: Corral, ada: Agent, bob: Agent
) -> None:
    asked = ada("ask", text="Which one?", options=["left", "right"], to=["agent:bob"])
    assert (asked["state"], asked["answer"]) == ("open", None)
    assert asked["next_step"]
    (letter,) = bob("inbox")["letters"]
    assert asked["id"] in str(letter["body"])
    assert reason(bob, "answer_wait", id=asked["id"]) == "not_yours"
    assert refused(ada, "answer", id=asked["id"], answer="left").code == "refused"
    assert bob("answer", id=asked["id"], answer="left")["answer"] == "left"
    result = ada("answer_wait", id=asked["id"], wait_seconds=1)
    assert (result["state"], result["answer"], result["by"]) == ("answered", "left", "agent:bob")
    assert ada("inbox")["letters"] == []  # reported already


def test_decision_waits_for_approval(store: Corral, ada: Agent, bob: Agent) -> None:
    assert ada("decide", title="Tabs.", rationale="Short.")["state"] == "recorded"
    proposed = ada("decide", title="Rewrite it.", confirm=True, to=["agent:bob"])
    assert proposed["state"] == "proposed"
    assert refused(bob, "answer", id=proposed["id"], answer="maybe").code == "invalid"
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
    assert refused(eve, "group_read", group="build")
    assert refused(eve, "group_post", group="build", text="let me in")


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
        ("ask", {"text": "x", "to": ["nobody at all"]}),
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
        assert refused(ada, tool, **arguments).code != "internal"


# -- the host -------------------------------------------------------------------------------------


def test_host_request_is_decided_by_others(store: Corral, ada: Agent, bob: Agent) -> None:
    wish = {"name": "helper", "instructions": "Help."}
    asked = ada("request", action="create_agent", arguments=wish, idempotency_key="k")
    assert asked["state"] == "waiting"
    again = ada("request", action="create_agent", arguments=wish, idempotency_key="k")
    assert again["id"] == asked["id"]
    question = store.host_requests.get(asked["id"]).question_id
    for agent in (ada, bob):
        assert reason(agent, "answer", id=question, answer="yes") == "not_an_answerer"
    assert reason(ada, "request", action="create_agent", arguments={"x": 1}) == "bad_arguments"
    assert "rebuild" in str(refused(ada, "request", action="rebuild", arguments={}))
    store.agents.grant("bob", "host:create_agent(b-*)")
    done = bob("request", action="create_agent", arguments={**wish, "name": "b-helper"})
    assert (done["state"], done["result"]["agent"]) == ("done", "b-helper")


def test_letter_names_its_task_and_replies_reach_the_sender(
    store: Corral, ada: Agent, bob: Agent, project: str
) -> None:
    asked = ada("send", to="bob", text="which port?")
    (letter,) = bob("inbox")["letters"]
    assert letter["id"] == asked["letter"]
    answer = bob("send", text="8080", reply_to=letter["id"])
    assert answer["to"] == "agent:ada"
    assert reason(ada, "send", text="x", reply_to=letter["id"]) == "unknown_letter"
