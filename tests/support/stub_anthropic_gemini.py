"""The stub for the Anthropic and Gemini protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.stub_conversation import Conversation, Tool, Turn, chunks, new_id, text_of


def read_anthropic(body: dict[str, Any]) -> Conversation:
    entries: list[tuple[str, str]] = []
    for message in body.get("messages", []):
        content = message.get("content")
        if message["role"] == "assistant":
            entries.append(("assistant", text_of(content)))
            continue
        if message["role"] != "user":
            continue
        blocks = content if isinstance(content, list) else []
        for block in blocks:
            if isinstance(block, dict) and block.get("type") == "tool_result":
                entries.append(("tool", text_of(block.get("content"))))
        if text := text_of(content):
            entries.append(("user", text))
    tools = [Tool(t["name"]) for t in body.get("tools") or [] if "name" in t]
    output_format = (
        (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    )
    return Conversation(
        body.get("model", "stub"),
        bool(body.get("stream")),
        entries,
        tools,
        output_format.get("schema"),
    )


def anthropic_usage(usage: dict[str, int]) -> dict[str, int]:
    return {
        "input_tokens": usage["input"],
        "output_tokens": usage["output"],
        "cache_read_input_tokens": usage["cache_read"],
        "cache_creation_input_tokens": usage["cache_write"],
    }


def whole_anthropic(conversation: Conversation, turn: Turn) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if turn.text:
        content.append({"type": "text", "text": turn.text})
    for call in turn.calls:
        content.append(
            {"type": "tool_use", "id": call.id, "name": call.tool.name, "input": call.args}
        )
    return {
        "id": new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": conversation.model,
        "content": content,
        "stop_reason": "tool_use" if turn.calls else "end_turn",
        "stop_sequence": None,
        "usage": anthropic_usage(turn.usage),
    }


def stream_anthropic(conversation: Conversation, turn: Turn) -> Iterator[tuple[str | None, Any]]:
    response = whole_anthropic(conversation, turn)
    content, stop = response["content"], response["stop_reason"]
    yield (
        "message_start",
        {
            "type": "message_start",
            "message": {
                **response,
                "content": [],
                "stop_reason": None,
                "usage": {**response["usage"], "output_tokens": 1},
            },
        },
    )
    for at, block in enumerate(content):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        yield (
            "content_block_start",
            {"type": "content_block_start", "index": at, "content_block": empty},
        )
        if block["type"] == "text":
            deltas = [{"type": "text_delta", "text": p} for p in chunks(block["text"])]
        else:
            deltas = [
                {"type": "input_json_delta", "partial_json": p}
                for p in chunks(json.dumps(block["input"]))
            ]
        for delta in deltas:
            yield (
                "content_block_delta",
                {"type": "content_block_delta", "index": at, "delta": delta},
            )
        yield "content_block_stop", {"type": "content_block_stop", "index": at}
    yield (
        "message_delta",
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": response["usage"],
        },
    )
    yield "message_stop", {"type": "message_stop"}


def read_gemini(body: dict[str, Any], model: str, stream: bool) -> Conversation:
    entries: list[tuple[str, str]] = []
    for content in body.get("contents", []):
        parts = content.get("parts", [])
        if content.get("role") == "model":
            entries.append(("assistant", text_of(parts)))
            continue
        for part in parts:
            if "functionResponse" in part:
                entries.append(("tool", json.dumps(part["functionResponse"].get("response"))))
        if words := text_of(parts):
            entries.append(("user", words))
    tools = [
        Tool(d["name"])
        for t in body.get("tools") or []
        for d in t.get("functionDeclarations") or []
    ]
    config = body.get("generationConfig") or {}
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    if schema is None and config.get("responseMimeType") == "application/json":
        schema = {"type": "object"}
    return Conversation(model, stream, entries, tools, schema)


def whole_gemini(conversation: Conversation, turn: Turn) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": turn.text}] if turn.text else []
    parts += [
        {"functionCall": {"name": c.tool.name, "args": c.args, "id": c.id}} for c in turn.calls
    ]
    return {
        "candidates": [
            {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        ],
        "modelVersion": conversation.model,
        "responseId": new_id("resp"),
        "usageMetadata": {
            "promptTokenCount": turn.usage["input"],
            "candidatesTokenCount": turn.usage["output"],
            "cachedContentTokenCount": turn.usage["cache_read"],
            "totalTokenCount": turn.usage["input"] + turn.usage["output"],
        },
    }


def stream_gemini(conversation: Conversation, turn: Turn) -> Iterator[tuple[str | None, Any]]:
    response = whole_gemini(conversation, turn)
    last = response["candidates"][0]
    for piece in chunks(turn.text):
        part = {
            "candidates": [{"content": {"role": "model", "parts": [{"text": piece}]}, "index": 0}],
            "modelVersion": conversation.model,
            "responseId": response["responseId"],
        }
        yield None, part
    rest = [p for p in last["content"]["parts"] if "functionCall" in p] or [{"text": ""}]
    yield None, {**response, "candidates": [{**last, "content": {"role": "model", "parts": rest}}]}
