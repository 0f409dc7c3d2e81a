"""A conversation with a model, independent of the protocol, and the stub's replies."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

DIRECTIVE = re.compile(r"STUB:\s*(?=\{)")
# tags that a client adds around the prompt
CONTEXT = re.compile(r"<([a-zA-Z_-]+)>.*?</\1>", re.DOTALL)
PIECE = 16  # characters per streamed chunk


@dataclass
class Tool:
    name: str
    freeform: bool = False  # takes a string, not an object (OpenAI "custom" tools)
    namespace: str | None = None


@dataclass
class Conversation:
    """One request, independent of the protocol; entries are ("user"|"assistant"|"tool", text)."""

    model: str
    stream: bool
    entries: list[tuple[str, str]]
    tools: list[Tool] = field(default_factory=list)
    schema: dict[str, Any] | None = None  # the reply must be JSON of this schema


@dataclass
class Call:
    tool: Tool
    args: Any
    id: str


@dataclass
class Turn:
    text: str
    calls: list[Call]
    usage: dict[str, int]
    step: dict[str, Any]
    key: str


def text_of(content: Any) -> str:
    """Return the text of a content field of any protocol."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "\n".join(texts)


def directive_in(text: str) -> list[dict[str, Any]] | None:
    result = None
    for match in DIRECTIVE.finditer(text):
        try:
            value, _ = json.JSONDecoder().raw_decode(text[match.end() :])
        except ValueError:
            continue
        if isinstance(value, dict):
            result = value["steps"] if isinstance(value.get("steps"), list) else [value]
    return result


def plan(conversation: Conversation) -> Turn:
    """Choose the reply: the current step of the conversation."""
    start, finished, step = find_step(conversation)
    requested = step.get("calls") or ([step] if "tool" in step else [])
    calls, missing = [], []
    for call in requested:
        tool = find_tool(conversation.tools, call["tool"])
        if tool is None and call.get("force") and conversation.tools:
            tool = Tool(call["tool"])
        if tool is None:
            missing.append(call["tool"])
        else:
            calls.append(Call(tool, call.get("args", {}), "call_" + uuid.uuid4().hex[:20]))
    text = step.get("text", "")
    if missing or not (text or calls):
        text = reply_text(conversation, missing)
    size = sum(len(text) for _, text in conversation.entries)
    usage = {
        "input": size // 4 + 1,
        "output": len(text) // 4 + 20 * len(calls) + 1,
        "cache_read": 0,
        "cache_write": 0,
    }
    usage.update(step.get("usage", {}))
    position = json.dumps(
        [conversation.entries[max(start, 0) : start + 1], finished, bool(conversation.tools)]
    )
    return Turn(text, calls, usage, step, hashlib.sha256(position.encode()).hexdigest())


def find_step(conversation: Conversation) -> tuple[int, int, dict[str, Any]]:
    """Return the last directive, the number of its finished steps, and the next step."""
    start, steps = -1, []
    for at, (role, text) in enumerate(conversation.entries):
        if role == "user" and (result := directive_in(text)) is not None:
            start, steps = at, result
    finished, before = 0, "user"
    for role, _ in conversation.entries[start + 1 :]:
        if role == "assistant" and before != "assistant":
            finished += 1
        before = role
    return start, finished, steps[finished] if start >= 0 and finished < len(steps) else {}


def reply_text(conversation: Conversation, missing: list[str]) -> str:
    """Return the text where the step has none."""
    if missing and conversation.tools:
        return f"stub: no such tool is offered: {', '.join(missing)}"
    if conversation.schema is not None:
        return json.dumps(sample(conversation.schema))
    if missing:  # a side request, for a title or a routing decision
        return "stub title"
    prompts = (
        CONTEXT.sub("", text) for role, text in reversed(conversation.entries) if role == "user"
    )
    prompt = next((text for text in prompts if text.strip()), "")
    return "stub: " + " ".join(prompt.split())[-200:]


def find_tool(tools: list[Tool], name: str) -> Tool | None:
    if name.startswith("~"):
        pattern = re.compile(name[1:], re.IGNORECASE)
        return next((tool for tool in tools if pattern.search(tool.name)), None)
    return next((tool for tool in tools if tool.name == name), None)


def sample(schema: dict[str, Any]) -> Any:
    """Return the simplest value that a JSON schema allows."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for union in ("anyOf", "oneOf"):
        if schema.get(union):
            return sample(schema[union][0])
    kind = schema.get("type")
    kind = (kind[0] if isinstance(kind, list) else kind or "object").lower()
    if kind == "object":
        return {name: sample(part) for name, part in (schema.get("properties") or {}).items()}
    return {"array": [], "string": "stub", "boolean": False, "null": None}.get(
        kind, schema.get("minimum", 1)
    )


def chunks(text: str) -> Iterator[str]:
    for at in range(0, len(text), PIECE):
        yield text[at : at + PIECE]


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:24]}"
