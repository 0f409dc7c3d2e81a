"""An agent built with the ACP SDK: it echoes the prompt and requests permission."""

import asyncio
from typing import Any
from uuid import uuid4

from acp import (
    Agent,
    InitializeResponse,
    NewSessionResponse,
    PromptResponse,
    RequestError,
    run_agent,
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message,
    update_tool_call,
)
from acp.schema import (
    AgentCapabilities,
    LoadSessionResponse,
    PermissionOption,
    ToolCallUpdate,
    Usage,
)


class Echo(Agent):
    conn: Any

    def __init__(self) -> None:
        self.sessions: set[str] = set()

    def on_connect(self, conn: Any) -> None:
        self.conn = conn

    async def initialize(self, protocol_version: int, **rest: Any) -> InitializeResponse:
        return InitializeResponse(
            protocol_version=protocol_version,
            agent_capabilities=AgentCapabilities(load_session=True),
        )

    async def new_session(self, cwd: str, **rest: Any) -> NewSessionResponse:
        session = uuid4().hex
        self.sessions.add(session)
        return NewSessionResponse(session_id=session)

    async def load_session(self, cwd: str, session_id: str, **rest: Any) -> LoadSessionResponse:
        self.sessions.add(session_id)
        await self.conn.session_update(session_id, update_agent_message(text_block("said before")))
        return LoadSessionResponse()

    async def prompt(self, prompt: list[Any], session_id: str, **rest: Any) -> PromptResponse:
        text = " ".join(block.text for block in prompt)
        if "login" in text:
            raise RequestError.auth_required()
        for piece in ("You said: ", text):
            await self.conn.session_update(session_id, update_agent_message(text_block(piece)))
        if "touch" in text:
            await self.touch(session_id)
        return PromptResponse(
            stop_reason="end_turn",
            usage=Usage(total_tokens=15, input_tokens=10, output_tokens=5),
        )

    async def touch(self, session: str) -> None:
        await self.conn.session_update(
            session, start_tool_call("t1", "touch", kind="execute", raw_input={"file": "a"})
        )
        answer = await self.conn.request_permission(
            session_id=session,
            tool_call=ToolCallUpdate(tool_call_id="t1", title="touch a", kind="execute"),
            options=[
                PermissionOption(option_id="1", name="Always", kind="allow_always"),
                PermissionOption(option_id="2", name="Once", kind="allow_once"),
                PermissionOption(option_id="3", name="No", kind="reject_once"),
            ],
        )
        chosen = getattr(answer.outcome, "option_id", None)
        await self.conn.session_update(
            session,
            update_tool_call(
                "t1",
                status="completed" if chosen in ("1", "2") else "failed",
                content=[tool_content(text_block(f"option {chosen}"))],
            ),
        )


asyncio.run(run_agent(Echo()))
