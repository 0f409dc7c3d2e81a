"""A denial that is also a tool result is shown once."""

import json
from typing import Any, cast

from corral.adapters.providers.claude import ClaudeParser
from corral.services.runs.output_rendering import StreamRenderer

WHY = "Claude requested permissions to write to a.txt, but you haven't granted it yet."


def line(**fields: Any) -> bytes:
    return json.dumps({"session_id": "s", "uuid": "u", **fields}).encode() + b"\n"


def test_denial_that_is_also_the_result_of_its_call_is_shown_once() -> None:
    renderer = StreamRenderer(cast("Any", None), ClaudeParser(None))
    result = {"type": "tool_result", "tool_use_id": "t1", "content": WHY, "is_error": True}
    text = renderer.feed(
        line(
            type="system",
            subtype="permission_denied",
            tool_name="Write",
            tool_use_id="t1",
            message=WHY,
        )
        + line(type="user", message={"role": "user", "content": [result]})
    )
    assert text == f"! {WHY}\n"
