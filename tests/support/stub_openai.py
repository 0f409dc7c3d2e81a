"""The stub for the OpenAI protocols: Responses and Chat Completions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from tests.support.stub_conversation import Conversation, Tool, Turn, chunks, new_id, text_of


def read_responses(body: dict[str, Any]) -> Conversation:
    entries: list[tuple[str, str]] = []
    items = body.get("input", [])
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            role = item.get("role", "user")
            if role in ("user", "assistant"):
                entries.append((role, text_of(item.get("content"))))
        elif kind.endswith("_output"):
            out = item.get("output")
            entries.append(("tool", out if isinstance(out, str) else json.dumps(out)))
        elif kind.endswith("_call") or kind == "reasoning":
            entries.append(("assistant", ""))
    text_format = (body.get("text") or {}).get("format") or {}
    return Conversation(
        body.get("model", "stub"),
        bool(body.get("stream")),
        entries,
        offered(body.get("tools") or [], None),
        text_format.get("schema"),
    )


def offered(definitions: list[dict[str, Any]], namespace: str | None) -> list[Tool]:
    tools: list[Tool] = []
    for tool in definitions:
        if tool.get("type") == "namespace":
            tools += offered(tool.get("tools") or [], tool.get("name"))
        elif "name" in tool:
            tools.append(Tool(tool["name"], tool.get("type") == "custom", namespace))
    return tools


def responses_items(turn: Turn) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if turn.text:
        items.append(
            {
                "type": "message",
                "id": new_id("msg"),
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": turn.text, "annotations": []}],
            }
        )
    for call in turn.calls:
        if call.tool.freeform:
            value = call.args if isinstance(call.args, str) else json.dumps(call.args)
            items.append(
                {
                    "type": "custom_tool_call",
                    "id": new_id("ctc"),
                    "call_id": call.id,
                    "name": call.tool.name,
                    "input": value,
                    "status": "completed",
                }
            )
        else:
            item = {
                "type": "function_call",
                "id": new_id("fc"),
                "call_id": call.id,
                "name": call.tool.name,
                "arguments": json.dumps(call.args),
                "status": "completed",
            }
            if call.tool.namespace:
                item["namespace"] = call.tool.namespace
            items.append(item)
    return items


def whole_responses(
    conversation: Conversation,
    turn: Turn,
    items: list[dict[str, Any]] | None = None,
    status: str = "completed",
) -> dict[str, Any]:
    usage = turn.usage
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": conversation.model,
        "error": None,
        "incomplete_details": None,
        "output": responses_items(turn) if items is None else items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["input"],
            "input_tokens_details": {"cached_tokens": usage["cache_read"]},
            "output_tokens": usage["output"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["input"] + usage["output"],
        },
    }


def stream_responses(conversation: Conversation, turn: Turn) -> Iterator[tuple[str | None, Any]]:
    items = responses_items(turn)
    response = whole_responses(conversation, turn, items)
    number = 0

    def event(kind: str, **rest: Any) -> tuple[str, Any]:
        nonlocal number
        number += 1
        return kind, {"type": kind, "sequence_number": number - 1, **rest}

    started = {**response, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=started)
    yield event("response.in_progress", response=started)
    for at, item in enumerate(items):
        location = {"output_index": at, "item_id": item["id"]}
        if item["type"] == "message":
            part = item["content"][0]
            yield event(
                "response.output_item.added",
                output_index=at,
                item={**item, "status": "in_progress", "content": []},
            )
            yield event(
                "response.content_part.added",
                **location,
                content_index=0,
                part={**part, "text": ""},
            )
            for piece in chunks(part["text"]):
                yield event(
                    "response.output_text.delta",
                    **location,
                    content_index=0,
                    delta=piece,
                    logprobs=[],
                )
            yield event(
                "response.output_text.done",
                **location,
                content_index=0,
                text=part["text"],
                logprobs=[],
            )
            yield event("response.content_part.done", **location, content_index=0, part=part)
        elif item["type"] == "function_call":
            yield event(
                "response.output_item.added",
                output_index=at,
                item={**item, "status": "in_progress", "arguments": ""},
            )
            for piece in chunks(item["arguments"]):
                yield event("response.function_call_arguments.delta", **location, delta=piece)
            yield event(
                "response.function_call_arguments.done",
                **location,
                arguments=item["arguments"],
                name=item["name"],
            )
        else:
            yield event(
                "response.output_item.added",
                output_index=at,
                item={**item, "status": "in_progress", "input": ""},
            )
            for piece in chunks(item["input"]):
                yield event("response.custom_tool_call_input.delta", **location, delta=piece)
            yield event("response.custom_tool_call_input.done", **location, input=item["input"])
        yield event("response.output_item.done", output_index=at, item=item)
    yield event("response.completed", response=response)


def read_chat(body: dict[str, Any]) -> Conversation:
    entries: list[tuple[str, str]] = []
    for message in body.get("messages", []):
        role = message.get("role")
        if role in ("user", "assistant", "tool"):
            entries.append((role, text_of(message.get("content"))))
    tools = [Tool(t["function"]["name"]) for t in body.get("tools") or [] if "function" in t]
    json_schema = (body.get("response_format") or {}).get("json_schema") or {}
    return Conversation(
        body.get("model", "stub"),
        bool(body.get("stream")),
        entries,
        tools,
        json_schema.get("schema"),
    )


def chat_usage(usage: dict[str, int]) -> dict[str, Any]:
    return {
        "prompt_tokens": usage["input"],
        "completion_tokens": usage["output"],
        "total_tokens": usage["input"] + usage["output"],
        "prompt_tokens_details": {"cached_tokens": usage["cache_read"]},
    }


def chat_calls(turn: Turn) -> list[dict[str, Any]]:
    return [
        {
            "index": at,
            "id": call.id,
            "type": "function",
            "function": {"name": call.tool.name, "arguments": json.dumps(call.args)},
        }
        for at, call in enumerate(turn.calls)
    ]


def whole_chat(conversation: Conversation, turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = [
            {k: v for k, v in c.items() if k != "index"} for c in chat_calls(turn)
        ]
    return {
        "id": new_id("chatcmpl"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": conversation.model,
        "usage": chat_usage(turn.usage),
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "tool_calls" if turn.calls else "stop",
            }
        ],
    }


def stream_chat(conversation: Conversation, turn: Turn) -> Iterator[tuple[str | None, Any]]:
    base = {
        "id": new_id("chatcmpl"),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": conversation.model,
    }

    def chunk(delta: dict[str, Any], reason: str | None = None) -> tuple[None, Any]:
        return None, {
            **base,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}],
        }

    yield chunk({"role": "assistant", "content": ""})
    for piece in chunks(turn.text):
        yield chunk({"content": piece})
    for call in chat_calls(turn):
        yield chunk({"tool_calls": [call]})
    yield chunk({}, "tool_calls" if turn.calls else "stop")
    yield None, {**base, "choices": [], "usage": chat_usage(turn.usage)}
    yield None, "[DONE]"
