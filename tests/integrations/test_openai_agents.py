"""Sessions for openai-agents: the framework's protocol, and a real Runner with the model stub."""

import asyncio
import json
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, SQLiteSession, function_tool
from agents.memory import Session as Protocol
from agents.memory import SessionSettings
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from corral.api import Corral
from corral.domain.sessions.turn_rows import decode_turn as kept
from corral.domain.sessions.turn_rows import encode_turn
from corral.integrations.openai_agents import CorralSession, item_from_turn, turn_from_item
from corral.kernel.errors import IllegalMove, Invalid, NotFound
from tests.support.http_server import run_http_server
from tests.support.stub_model import Stub

HELLO = {"role": "user", "content": "hello"}
ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "a zebra", "annotations": []}],
}
CALL = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "weather",
    "arguments": '{"city": "Oslo"}',
}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]}
UNUSUAL = {"role": "user", "content": "a\0b \ud83d", "n": 1.5, "deep": {"z": 1, "a": [None]}}
ITEMS: list[Any] = [HELLO, ANSWER, CALL, OUTPUT, THOUGHT, IMAGE, {"role": "user", "content": ""}]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture
def session(store: Corral) -> CorralSession:
    return CorralSession("talk", store)


def test_session_implements_the_frameworks_protocol(session: CorralSession) -> None:
    assert isinstance(session, Protocol)


def test_items_are_returned_in_order_and_unchanged(session: CorralSession) -> None:
    run(session.add_items([*ITEMS, UNUSUAL]))
    run(session.add_items([HELLO]))
    run(session.add_items([]))
    assert run(session.get_items()) == [*ITEMS, UNUSUAL, HELLO]


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 8, 100])
def test_limit_returns_the_latest_items_in_order(session: CorralSession, limit: int) -> None:
    run(session.add_items(ITEMS))
    result = run(session.get_items(limit))
    assert result == (ITEMS[-limit:] if limit else [])
    session.session_settings = SessionSettings(limit=limit)
    assert run(session.get_items()) == result


def test_session_behaves_like_the_frameworks_own(store: Corral) -> None:
    def run_operations(session: Any) -> list[Any]:
        async def use_session() -> list[Any]:
            seen = [await session.get_items(), await session.pop_item()]
            await session.add_items([*ITEMS, UNUSUAL])
            seen += [await session.pop_item(), await session.pop_item(), await session.get_items(3)]
            await session.add_items([HELLO])
            seen += [await session.pop_item(), await session.pop_item(), await session.get_items()]
            await session.clear_session()
            seen += [await session.get_items(), await session.pop_item()]
            await session.add_items([ANSWER])
            seen += [await session.get_items(), await session.get_items(1)]
            return seen

        return list(asyncio.run(use_session()))

    own_session = SQLiteSession("talk")
    assert run_operations(CorralSession("talk", store)) == run_operations(own_session)
    own_session.close()


def test_popped_and_cleared_items_stay_readable(session: CorralSession, store: Corral) -> None:
    run(session.add_items([HELLO, ANSWER]))
    assert run(session.pop_item()) == ANSWER
    assert [turn.content for turn in store.sessions.turns(session.corral_id).items] == [
        "hello",
        "a zebra",
        "Turn 2 was undone.",
    ]
    run(session.clear_session())
    reopened = CorralSession("talk", store)
    assert (run(reopened.get_items()), reopened.corral_id) == ([], session.corral_id)
    assert store.sessions.get(session.corral_id).turns == 3


def test_items_of_the_framework_are_searchable(session: CorralSession, store: Corral) -> None:
    run(session.add_items(ITEMS))
    result = store.sessions.turns(session.corral_id).items
    assert [(turn.role, turn.content, turn.tool_name, turn.arguments) for turn in result[:5]] == [
        ("user", "hello", None, None),
        ("assistant", "a zebra", None, None),
        ("assistant", "", "weather", {"city": "Oslo"}),
        ("tool", "rain", None, None),
        ("assistant", "hm", None, None),
    ]
    assert [hit.location for hit in store.search.find("zebra").items] == [2]
    assert [hit.location for hit in store.search.find("oslo").items] == [3]
    opened = store.sessions.by_provider("openai-agents", "talk")
    assert opened is not None
    assert (opened.id, opened.title) == (session.corral_id, "talk")


def test_existing_session_of_the_store_can_be_continued(store: Corral) -> None:
    stored = store.sessions.open(title="begun by hand")
    store.sessions.append(stored, "user", "from elsewhere")
    store.sessions.append(stored, "tool", "", tool_name="Bash", result={"out": 1})
    store.sessions.append(stored, "tool", "it rains", tool_name="weather")
    session = CorralSession(stored.id, store)
    run(session.add_items([ANSWER]))
    assert run(session.get_items()) == [
        {"role": "user", "content": "from elsewhere"},
        {"role": "assistant", "content": "it rains"},
        ANSWER,
    ]
    store.sessions.close(stored)
    with pytest.raises(IllegalMove, match="cannot be changed"):
        run(session.add_items([HELLO]))
    with pytest.raises(NotFound):
        run(CorralSession("ses_7z", store).get_items())


def test_unknown_role_adds_nothing(session: CorralSession) -> None:
    run(session.add_items([HELLO]))
    with pytest.raises(Invalid, match="Invalid role"):
        run(session.add_items([HELLO, {"role": "critic", "content": "x"}]))
    assert run(session.get_items()) == [HELLO]


def test_session_belongs_to_an_agent_and_a_project(store: Corral, tmp_path: Any) -> None:
    ada = store.agents.create("ada", provider="claude")
    project = store.projects.register(tmp_path)
    session = CorralSession("talk", store, agent="ada", project=project.id)
    run(session.add_items([HELLO, ANSWER]))
    stored = store.sessions.get(session.corral_id)
    assert (stored.agent_id, stored.project_id) == (ada.id, project.id)
    assert [turn.agent_id for turn in store.sessions.turns(stored).items] == [None, ada.id]


def test_concurrent_adds_lose_nothing_and_share_one_session(store: Corral, url: str) -> None:
    def add(name: str) -> None:
        session = CorralSession("talk", store)
        pairs = [{"role": "user", "content": f"{name} {n}"} for n in range(10)]
        for first in range(0, 10, 2):
            run(session.add_items(pairs[first : first + 2]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, "abcd"))
    assert len(store.sessions.list().items) == 1
    results = [item["content"] for item in run(CorralSession("talk", store).get_items())]
    assert len(results) == 40
    for name in "abcd":
        own_texts = [text for text in results if text.startswith(name)]
        assert own_texts == [f"{name} {n}" for n in range(10)]
    pairs = [text for text in results if int(text[2:]) % 2 == 0]
    assert all(results[results.index(text) + 1][0] == text[0] for text in pairs), (
        "pairs stay together"
    )


def test_concurrent_pops_return_each_item_once(store: Corral) -> None:
    items = [{"role": "user", "content": str(n)} for n in range(8)]
    run(CorralSession("talk", store).add_items(items))

    def pop(_: int) -> str:
        return str(run(CorralSession("talk", store).pop_item())["content"])

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(pop, range(8))) == [item["content"] for item in items]
    assert run(CorralSession("talk", store).get_items()) == []


def test_cancelled_add_is_waited_for(session: CorralSession) -> None:
    async def cancelled() -> list[Any]:
        task = asyncio.create_task(session.add_items([HELLO]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await session.get_items()

    assert run(cancelled()) == [HELLO]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["type", "arguments", "name", "call_id", "output", "x"]), JSON),
    st.sampled_from(["user", "assistant", "system", "developer", None]),
    JSON,
)
def test_any_item_round_trips_as_a_turn(
    item: dict[str, Any], role: str | None, content: Any
) -> None:
    item = {**item, "content": content, **({"role": role} if role else {})}
    row = encode_turn(turn_from_item(item))
    turn = kept({**row, "session_id": "ses_1", "now": 1}, 1, 1, None)
    assert item_from_turn(turn) == json.loads(json.dumps(item))


# -- a real Runner --------------------------------------------------------------------------------


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub(full=True).start()
    yield stub
    stub.shutdown()
    stub.server_close()


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"it rains in {city}"


def test_runner_remembers_across_processes_and_is_searchable(store: Corral, stub: Stub) -> None:
    steps = {"steps": [{"tool": "weather", "args": {"city": "Oslo"}}, {"text": "Take a zebra."}]}

    async def ask(prompt: str) -> str:
        async with AsyncOpenAI(base_url=f"{stub.url}/v1", api_key="none") as client:
            model = OpenAIResponsesModel("stub", client)
            agent = Agent("ada", instructions="Be brief.", model=model, tools=[weather])
            result = await Runner.run(
                agent,
                prompt,
                session=CorralSession("trip", store),
                run_config=RunConfig(tracing_disabled=True),
            )
            return str(result.final_output)

    assert run(ask(f"What now? STUB:{json.dumps(steps)}")) == "Take a zebra."
    run(ask("And then?"))
    request = [entry for entry in stub.seen if "responses" in entry["path"]][-1]
    body = json.dumps(request)
    for text in ("What now?", "it rains in Oslo", "Take a zebra.", "And then?"):
        assert text in body, "the request contains the history"
    trip = store.sessions.by_provider("openai-agents", "trip")
    assert trip is not None
    value = store.sessions.turns(trip).items
    assert [turn.role for turn in value] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert (value[1].tool_name, value[2].content) == ("weather", "it rains in Oslo")
    assert [hit.location for hit in store.search.find("zebra").items] == [4, 1]


def test_session_works_through_a_daemon(store: Corral) -> None:
    with run_http_server(store) as http_server:
        session = CorralSession("talk", http_server.url, token=http_server.token)
        run(session.add_items(ITEMS))
        assert run(session.pop_item()) == ITEMS[-1]
        assert run(session.get_items()) == ITEMS[:-1]
        run(session.clear_session())
        assert run(session.get_items()) == []
        session.close()
