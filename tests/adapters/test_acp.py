"""The client of the Agent Client Protocol, with the SDK's agent and the scripted agent."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.adapters.providers.acp import AcpClient, PromptResult
from corral.adapters.providers.facts import (
    LimitFact,
    LogFact,
    PermissionFact,
    PlanFact,
    ResultFact,
    SessionFact,
    TurnFact,
    UsageFact,
)
from corral.kernel.clock import ManualClock
from corral.kernel.errors import Conflict, NotFound
from tests.support.acp_client import AcpRun

pytestmark = pytest.mark.slow

SCRIPTED = [sys.executable, "-m", "corral.demo.agent", "--acp"]
SDK = [sys.executable, "-m", "tests.support.acp_sdk_agent"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _agent_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_AGENT_HOME", str(tmp_path / "agent"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")


def list_facts(run: AcpRun, kind: type) -> list[Any]:
    return [fact for fact in run.facts if isinstance(fact, kind)]


class FakeConnection:
    """The agent's side of a conversation, driven by the test."""

    def __init__(self, **talk: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        talk = {"cwd": "/demo", "prompt": "hello", **talk}
        self.talk = AcpClient(lambda data: self.sent.append(msgspec.json.decode(data)), **talk)
        self.talk.start()

    def send(self, **message: Any) -> list[Any]:
        return self.talk.feed(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")

    def reply(self, result: Any) -> list[Any]:
        return self.send(id=self.sent[-1]["id"], result=result)

    def open(self) -> "FakeConnection":
        self.reply({"protocolVersion": 1, "agentCapabilities": {"loadSession": True}})
        self.reply({"sessionId": "s1"})
        return self

    def update(self, kind: str, **rest: Any) -> list[Any]:
        update = {"sessionUpdate": kind, **rest}
        return self.send(method="session/update", params={"sessionId": "s1", "update": update})


# -- invalid input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        b"\n",
        b"not json\n",
        b"{\n",
        b"\xff\xfe\n",
        b"[]\n",
        b'{"jsonrpc":"2.0"}\n',
        b'{"id":[],"result":1}\n',
        b'{"id":999,"result":{}}\n',
        b'{"method":5,"params":7}\n',
        b'{"method":"session/update","params":[]}\n',
        b'{"method":"session/update","params":{"sessionId":"s1","update":[[]]}}\n',
        b'{"method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"tool_call","toolCallId":{}}}}\n',
        b'{"method":"session/request_permission","id":{},"params":{"options":[1,null,{"kind":[]}],"toolCall":7}}\n',
    ],
)
def test_invalid_lines_are_ignored(noise: bytes) -> None:
    connection = FakeConnection().open()
    assert not [fact for fact in connection.talk.feed(noise) if isinstance(fact, PromptResult)]
    connection.update("agent_message_chunk", content={"type": "text", "text": "valid text"})
    prompt = next(request for request in connection.sent if request["method"] == "session/prompt")
    facts = connection.send(id=prompt["id"], result={"stopReason": "end_turn"})
    assert TurnFact("assistant", "valid text") in facts


def test_endless_line_is_an_error() -> None:
    connection = FakeConnection()
    facts = connection.talk.feed(b"x" * (17 * 1024 * 1024))
    assert facts[-1] == PromptResult(False, "failed", "The agent sent a line that is too long.")


def test_unsupported_protocol_version_is_a_clear_error() -> None:
    facts = FakeConnection().reply({"protocolVersion": 2})
    assert isinstance(facts[-1], PromptResult)
    assert "Update the agent" in str(facts[-1].message)


def test_agent_without_resume_is_a_clear_error() -> None:
    facts = FakeConnection(session="old").reply({"protocolVersion": 1, "agentCapabilities": {}})
    assert "cannot resume" in str(facts[-1].message)


def test_failed_resume_falls_back_to_load() -> None:
    connection = FakeConnection(session="old")
    able = {"loadSession": True, "sessionCapabilities": {"resume": {}}}
    connection.reply({"protocolVersion": 1, "agentCapabilities": able})
    assert connection.sent[-1]["method"] == "session/resume"
    assert (
        connection.send(id=connection.sent[-1]["id"], error={"code": -32601, "message": "none"})
        == []
    )
    assert connection.sent[-1]["method"] == "session/load"
    assert connection.reply({}) == [SessionFact("old")]


def test_agent_that_exits_during_a_turn_has_failed() -> None:
    connection = FakeConnection().open()
    connection.update("agent_message_chunk", content={"type": "text", "text": "partial"})
    facts = connection.talk.close()
    assert facts[0] == TurnFact("assistant", "partial")
    assert isinstance(facts[-1], PromptResult)
    assert not facts[-1].ok
    assert connection.talk.close() == []


@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/write_text_file", "terminal/create"])
def test_file_and_terminal_requests_are_refused(method: str) -> None:
    connection = FakeConnection().open()
    connection.send(
        id="r1", method=method, params={"sessionId": "s1", "path": "/demo/a", "content": ""}
    )
    assert connection.sent[-1]["error"]["code"] == -32601
    assert connection.sent[0]["params"]["clientCapabilities"]["fs"]["readTextFile"] is False


def test_second_prompt_waits_for_the_first() -> None:
    connection = FakeConnection().open()
    with pytest.raises(Conflict):
        connection.talk.prompt("again")


def test_closed_dialog_cannot_be_answered() -> None:
    connection = FakeConnection().open()
    with pytest.raises(NotFound):
        connection.talk.answer("1-1-x", False)


def test_option_that_allows_always_is_not_chosen_by_policy() -> None:
    connection = FakeConnection(policy=frozenset({"all"})).open()
    options = [{"optionId": "a", "name": "Always", "kind": "allow_always"}]
    params = {"sessionId": "s1", "toolCall": {"toolCallId": "t", "kind": "edit"}}
    facts = connection.send(
        id=7, method="session/request_permission", params={**params, "options": options}
    )
    assert [type(fact) for fact in facts] == [PermissionFact]
    connection.talk.answer(facts[0].id, False)
    assert connection.sent[-1] == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {"outcome": {"outcome": "cancelled"}},
    }


def test_update_of_another_session_is_ignored() -> None:
    connection = FakeConnection().open()
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}}
    connection.send(method="session/update", params={"sessionId": "s2", "update": update})
    assert TurnFact("assistant", "x") not in connection.talk.close()


# -- the SDK's agent ------------------------------------------------------------------------------


def test_prompt_is_answered_by_the_sdks_agent(tmp_path: Path) -> None:
    with AcpRun(SDK, cwd=str(tmp_path), prompt="hello") as run:
        assert run.done() == PromptResult(True, "end_turn")
        assert list_facts(run, TurnFact) == [TurnFact("assistant", "You said: hello")]
        assert list_facts(run, UsageFact) == [UsageFact(None, input=10, output=5)]
        assert len(list_facts(run, SessionFact)) == 1
        run.talk.prompt("more")
        assert run.done().ok
        assert list_facts(run, TurnFact)[-1].content == "You said: more"


def test_permission_request_is_answered_by_a_person(tmp_path: Path) -> None:
    with AcpRun(SDK, cwd=str(tmp_path), prompt="touch it") as run:
        request = run.wait_for_permission_request()
        assert (request.title, request.tool) == ("touch a", "execute")
        assert request.options == ["Always", "Once", "No"]
        with pytest.raises(NotFound):
            run.talk.answer(request.id, "Perhaps")
        run.talk.answer(request.id, "No")
        run.done()
        turn = list_facts(run, TurnFact)[-1]
        assert (turn.role, turn.content, turn.is_error) == ("tool", "option 3", True)


def test_permission_requests_for_one_tool_call_keep_their_own_keys() -> None:
    connection = FakeConnection().open()
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]

    def ask(id: int) -> str:
        params = {"sessionId": "s1", "options": options, "toolCall": {"toolCallId": "call"}}
        (fact,) = connection.send(method="session/request_permission", id=id, params=params)
        assert isinstance(fact, PermissionFact)
        return fact.id

    first, second = ask(101), ask(102)
    connection.talk.answer(first, "Yes")
    third = ask(103)
    assert len({first, second, third}) == 3
    connection.talk.answer(second, "Yes")
    connection.talk.answer(third, "Yes")
    assert [message["id"] for message in connection.sent[-3:]] == [101, 102, 103]


def test_policy_grants_its_class_once_and_logs_it(tmp_path: Path) -> None:
    with AcpRun(SDK, cwd=str(tmp_path), prompt="touch it", policy=frozenset({"run"})) as run:
        run.done()
        assert list_facts(run, PermissionFact) == []
        assert list_facts(run, TurnFact)[-1].content == "option 2"
        assert [fact.metadata for fact in list_facts(run, LogFact)] == [
            {"class": "run", "option": "Once"}
        ]


def test_policy_for_another_class_grants_nothing(tmp_path: Path) -> None:
    with AcpRun(SDK, cwd=str(tmp_path), prompt="touch it", policy=frozenset({"edit"})) as run:
        run.wait_for_permission_request()


def test_loading_a_session_does_not_repeat_earlier_turns(tmp_path: Path) -> None:
    with AcpRun(SDK, cwd=str(tmp_path), prompt="hello", session="abc") as run:
        assert run.done().ok
        assert list_facts(run, TurnFact) == [TurnFact("assistant", "You said: hello")]
        assert list_facts(run, SessionFact) == [SessionFact("abc")]


def test_required_login_is_a_clear_error(tmp_path: Path) -> None:
    with AcpRun(SDK, cwd=str(tmp_path), prompt="login") as run:
        result = run.done()
        assert not result.ok
        assert "requires a login" in str(result.message)


# -- the scripted agent ---------------------------------------------------------------------------


def test_scripted_agent_works_and_reports_usage(tmp_path: Path) -> None:
    prompt = "say hi; write a.txt hello; spend 1000 100"
    with AcpRun(SCRIPTED, cwd=str(tmp_path), prompt=prompt) as run:
        assert run.done().ok
        assert (tmp_path / "a.txt").read_text() == "hello\n"
        call, answer = list_facts(run, TurnFact)[-2:]
        assert (call.tool_name, call.arguments) == ("write", {"file": "a.txt", "text": "hello"})
        assert (answer.role, answer.tool_call_id) == ("tool", call.tool_call_id)
        assert list_facts(run, UsageFact) == [
            UsageFact(None, input=1000, output=100, cost_micros=4500)
        ]
        run.talk.prompt("spend 1000 0")
        run.done()
        assert list_facts(run, UsageFact)[-1].cost_micros == 3000


def test_scripted_agent_resumes_in_a_new_process(tmp_path: Path) -> None:
    with AcpRun(SCRIPTED, cwd=str(tmp_path), prompt="say one") as run:
        run.done()
        session = run.talk.session
    with AcpRun(SCRIPTED, cwd=str(tmp_path), prompt="say two", session=session) as run:
        assert run.done().ok
        assert [fact.content.strip() for fact in list_facts(run, TurnFact)] == ["two"]


def test_unknown_session_fails_with_the_message_of_the_agent(tmp_path: Path) -> None:
    with AcpRun(SCRIPTED, cwd=str(tmp_path), prompt="x", session="gone") as run:
        assert run.done() == PromptResult(
            False, "failed", "No conversation found with session ID: gone"
        )


def test_hanging_agent_is_cancelled(tmp_path: Path) -> None:
    with AcpRun(SCRIPTED, cwd=str(tmp_path), prompt="ask may I; hang") as run:
        run.talk.answer(run.wait_for_permission_request().id, "Yes")
        run.talk.cancel()
        assert run.done() == PromptResult(True, "cancelled")


def test_cancellation_closes_the_dialog(tmp_path: Path) -> None:
    with AcpRun(SCRIPTED, cwd=str(tmp_path), prompt="ask may I") as run:
        request = run.wait_for_permission_request()
        run.talk.cancel()
        assert run.done().reason == "cancelled"
        with pytest.raises(NotFound):
            run.talk.answer(request.id, "Yes")


def test_crash_is_reported(tmp_path: Path) -> None:
    with AcpRun(SCRIPTED, cwd=str(tmp_path), prompt="say hi; crash 3") as run:
        assert run.done() == PromptResult(False, "failed", "The agent exited before it answered.")
        assert run.process.wait() == 3


def test_quota_reports_its_reset_time(tmp_path: Path) -> None:
    with AcpRun(SCRIPTED, cwd=str(tmp_path), prompt="quota 3600") as run:
        assert run.done().reason == "refused"
        (limit,) = list_facts(run, LimitFact)
        assert limit.reset_at is not None


def test_client_of_the_sdk_works_with_the_scripted_agent(tmp_path: Path) -> None:
    from acp import PROTOCOL_VERSION, Client, spawn_agent_process, text_block
    from acp.schema import AllowedOutcome, RequestPermissionResponse

    class Person(Client):
        def __init__(self) -> None:
            self.updates: list[Any] = []

        async def session_update(self, session_id: str, update: Any, **rest: Any) -> None:
            self.updates.append(update)

        async def request_permission(self, **request: Any) -> RequestPermissionResponse:
            chosen = AllowedOutcome(outcome="selected", option_id=request["options"][0].option_id)
            return RequestPermissionResponse(outcome=chosen)

    async def run_conversation() -> tuple[str, Person, Any]:
        person = Person()
        async with spawn_agent_process(person, *SCRIPTED, cwd=tmp_path, env=dict(os.environ)) as (
            agent,
            _,
        ):
            await agent.initialize(protocol_version=PROTOCOL_VERSION)
            session = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
            script = "ask may I; write b.txt hi; spend 5 6"
            answer = await agent.prompt(session_id=session.session_id, prompt=[text_block(script)])
            await agent.load_session(
                cwd=str(tmp_path), session_id=session.session_id, mcp_servers=[]
            )
            return answer.stop_reason, person, answer.usage

    reason, person, usage = asyncio.run(run_conversation())
    assert reason == "end_turn"
    assert (usage.input_tokens, usage.output_tokens) == (5, 6)
    kinds = [update.session_update for update in person.updates]
    assert kinds[:4] == [
        "agent_message_chunk",
        "tool_call",
        "tool_call_update",
        "usage_update",
    ]
    assert "user_message_chunk" in kinds
    assert (tmp_path / "b.txt").read_text() == "hi\n"


def test_reset_time_is_relative_to_the_given_clock() -> None:
    connection = FakeConnection(clock=ManualClock(1_800_000_000_000)).open()
    error = {"code": -32603, "message": "Usage limit reached; try again in 2 hours."}
    facts = connection.send(id=connection.sent[-1]["id"], error=error)
    assert facts[0] == LimitFact(error["message"], 1_800_000_000_000 + 7_200_000)
    assert isinstance(facts[1], ResultFact)


def test_plan_is_recorded_up_to_a_limit() -> None:
    entries = [
        {"content": "look", "status": "completed", "priority": "high"},
        {"content": "x" * 9_000, "status": 7},
        {"no": "content"},
    ]

    def update(entries: Any) -> list[Any]:
        params = {"sessionId": "s1", "update": {"sessionUpdate": "plan", "entries": entries}}
        return connection.send(method="session/update", params=params)

    connection = FakeConnection().open()
    (plan,) = update(entries)
    assert isinstance(plan, PlanFact)
    assert plan.steps[0] == {"content": "look", "status": "completed", "priority": "high"}
    assert len(plan.steps[1]["content"]) < 2_000
    assert "status" not in plan.steps[1]
    assert plan.steps[2] == {"content": "?"}
    (many,) = update([{"content": "again"}] * 5_000)
    assert len(many.steps) == 200
    assert update("nonsense") == [PlanFact([])]
