"""The MCP SDK's client, with both protocol versions and on both transports."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.api import Corral
from corral.mcp.http import routes
from corral.mcp.registry import TOOLS
from tests.support.http_server import run_http_server
from tests.support.mcp_clients import environment, over_http, over_stdio

pytestmark = pytest.mark.slow

Scenario = Callable[[Any], Awaitable[None]]
RunScenario = Callable[[str, Scenario], None]


@pytest.fixture
def team(url: str, tmp_path: Path) -> Iterator[Corral]:
    """Two agents and a project, with the real clock, because other processes use it too."""
    (tmp_path / "project").mkdir()
    with corral.open(url) as store:
        store.agents.create("ada", command="cat", role="developer")
        store.agents.create("bob", command="cat")
        store.projects.register(tmp_path / "project")
        yield store


@pytest.fixture(params=["stdio", "http"])
def run_scenario(
    request: pytest.FixtureRequest, team: Corral, url: str, tmp_path: Path
) -> Iterator[RunScenario]:
    """Run a scenario as ada with a client of one protocol version."""
    project = team.projects.list().items[0]
    if request.param == "stdio":
        env = environment(url, "ada", tmp_path / "home")

        def by_stdio(era: str, scenario: Scenario) -> None:
            async def main() -> None:
                async with over_stdio(env, tmp_path / "project", era) as client:
                    await scenario(client)

            asyncio.run(main())

        yield by_stdio
        return
    token = team.tokens.create("ada", scope="agent:ada").value
    with run_http_server(team, pages=routes()) as http_server:

        def by_http(era: str, scenario: Scenario) -> None:
            async def main() -> None:
                endpoint = f"{http_server.url}/mcp?project={project.id}"
                async with over_http(endpoint, token, era) as client:
                    await scenario(client)

            asyncio.run(main())

        yield by_http


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_agent_does_a_task_from_start_to_end(
    run_scenario: RunScenario, team: Corral, era: str
) -> None:
    async def scenario(client: Any) -> None:
        assert client.protocol_version == {"auto": "2026-07-28", "legacy": "2025-11-25"}[era]
        tool_list = await client.list_tools()
        assert [tool.name for tool in tool_list.tools] == [row.name for row in TOOLS]

        async def call(tool: str, **arguments: Any) -> Any:
            # the client validates the result by its schema
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result.content
            return result.structured_content

        me = await call("whoami")
        assert (me["agent"], me["role"], me["project"]["name"]) == ("ada", "developer", "project")
        await call("task_add", tasks=[{"key": "build", "title": "Build it", "files": ["a.py"]}])
        task = await call("task_claim", idempotency_key="first")
        repeated = await call("task_claim", idempotency_key="first")
        assert task["task"]["key"] == "build"
        assert repeated == task
        lock = await call("lock", path="a.py")
        await call("progress", summary="half", percent=50, task="build")
        commands = [{"command": "make", "exit_code": 0}]
        submitted = await call("task_submit", task="build", text="built", commands=commands)
        assert submitted["state"] == "submitted"
        await call("lock_release", lock=lock["lock"]["id"])
        message = await call("send", to="bob", text="It is built.", data={"n": 1})
        assert team.mail.get(message["letter"]).sender == "agent:ada"
        letters = (await call("inbox"))["letters"]
        assert [letter["body"]["event"] for letter in letters] == ["submitted"]
        assert (await call("ack", letters=[letters[0]["id"]]))["failed"] == []
        assert (await call("inbox", wait_seconds=1))["letters"] == []

    run_scenario(era, scenario)
    assert team.tasks.get("build").evidence is not None
    assert team.locks.list().items == []


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_errors_are_readable_by_the_agent(
    run_scenario: RunScenario, team: Corral, era: str
) -> None:
    async def scenario(client: Any) -> None:
        for tool, arguments, fragment in [
            ("send", {"to": "zed", "text": "x"}, "No agent named 'zed'"),
            ("task_claim", {"agent": "bob"}, "unknown field `agent`"),
            ("task_claim", {"task": "none"}, "none"),
            ("lock", {"path": "../x"}, "outside"),
            ("history", {}, "no session"),
        ]:
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert fragment in result.content[0].text
        with pytest.raises(Exception, match="task_claim"):
            await client.call_tool("task_clame", {})

    run_scenario(era, scenario)


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_waiting_call_blocks_no_other_call(
    run_scenario: RunScenario, team: Corral, era: str
) -> None:
    async def scenario(client: Any) -> None:
        waiting = asyncio.ensure_future(client.call_tool("inbox", {"wait_seconds": 50}))
        await asyncio.sleep(0.2)
        result = await asyncio.wait_for(client.call_tool("whoami", {}), 45)
        assert result.structured_content["letters"] == 0
        team.mail.put("agent:ada", "hello", sender="user:tester")
        result = await asyncio.wait_for(waiting, 120)
        assert [letter["body"] for letter in result.structured_content["letters"]] == ["hello"]

    run_scenario(era, scenario)
