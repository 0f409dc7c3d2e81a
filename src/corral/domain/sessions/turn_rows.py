"""Validation of turns, and their conversion to and from rows."""

from typing import Any

import msgspec

from corral.domain.sessions.model import NewTurn, Turn, TurnRole
from corral.kernel.errors import Invalid
from corral.kernel.validation import (
    MAX_NAME,
    check_int,
    check_optional_text,
    check_text,
    convert,
    encode_json,
)

MAX_CONTENT = 4 * 1024 * 1024
MAX_TITLE = 1_000
_ROLES: dict[str, TurnRole] = {role.value: role for role in TurnRole}

_DEFAULTS: dict[str, Any] = {
    "key": None,
    "tool_call_id": None,
    "tool_name": None,
    "arguments": None,
    "result": None,
    "is_error": 0,
    "input_tokens": None,
    "output_tokens": None,
    "run_id": None,
    "meta": None,
}


def encode_turn(new: NewTurn) -> dict[str, Any]:
    """Return the columns of a new turn, except session, number, author and time."""
    if new.role not in _ROLES:
        raise Invalid(
            f"Invalid role {new.role!r}: expected one of {', '.join(TurnRole)}.",
            role=new.role,
            reason="unknown_role",
        )
    if new.content:
        check_text(new.content, "The content", max_bytes=MAX_CONTENT)
    row = {**_DEFAULTS, "role": new.role, "content": new.content}
    if new.key:
        row["key"] = check_text(new.key, "The key", max_bytes=MAX_NAME)
    if new.run:
        row["run_id"] = check_text(new.run, "The run", max_bytes=MAX_NAME)
    if new.input_tokens is not None or new.output_tokens is not None:
        row["input_tokens"] = _check_tokens(new.input_tokens)
        row["output_tokens"] = _check_tokens(new.output_tokens)
    if new.meta is not None:
        row["meta"] = _encode_value(new.meta, "The metadata")
    if new.tool_name or new.tool_call_id or new.arguments is not None or new.result is not None:
        row["tool_call_id"] = check_optional_text(new.tool_call_id, "The call", max_bytes=MAX_NAME)
        row["tool_name"] = check_optional_text(new.tool_name, "The tool", max_bytes=MAX_NAME)
        row["arguments"] = _encode_value(new.arguments, "The arguments")
        row["result"] = _encode_value(new.result, "The result")
    if new.is_error:
        row["is_error"] = 1
    return row


def is_plain_text(new: NewTurn) -> bool:
    """Whether a turn has only a role, a content and an agent."""
    return new == NewTurn(new.role, new.content, agent=new.agent)


def decode_turn(row: dict[str, Any], seq: int, number: int, agent_id: str | None) -> Turn:
    """Build the turn that was inserted, without reading it back."""
    arguments, result, meta = row["arguments"], row["result"], row["meta"]
    return Turn(
        f"trn_{seq}",
        row["session_id"],
        number,
        _ROLES[row["role"]],
        row["content"],
        row["tool_call_id"],
        row["tool_name"],
        arguments and msgspec.json.decode(arguments),
        result and msgspec.json.decode(result),
        row["is_error"] == 1,
        row["input_tokens"],
        row["output_tokens"],
        agent_id,
        row["run_id"],
        row["key"],
        meta and msgspec.json.decode(meta),
        row["now"],
    )


def compute_turn_time(new: NewTurn, now: int) -> int:
    """Return the time of a turn; a time in the future is replaced by now."""
    return now if new.at is None else min(check_int(new.at, "The time"), now)


def _encode_value(value: Any, what: str) -> str | None:
    return None if value is None else encode_json(value, what, max_bytes=MAX_CONTENT)


def _check_tokens(tokens: int | None) -> int | None:
    if tokens is not None and check_int(tokens, "The number of tokens") < 0:
        raise Invalid(f"Invalid token count {tokens}: it must not be negative.")
    return tokens


def parse_turn_cursor(after: str | int | None, default: int) -> int:
    """Return the turn number of a cursor; raises Invalid for any other text."""
    if after is None:
        return default
    text = str(after)
    if isinstance(after, bool) or not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Invalid(
            f"Invalid cursor {text!r}: expected the number of a turn, or `next` of a page.",
            value=text,
        )
    return int(text)


def parse_turns(turns: Any) -> list[NewTurn]:
    """Convert structs or dicts to new turns; raises Invalid for anything else."""
    try:
        return [
            turn if isinstance(turn, NewTurn) else convert(_to_dict(turn), NewTurn)
            for turn in turns
        ]
    except (TypeError, msgspec.ValidationError) as error:
        raise Invalid(
            f"Invalid turns: {error}. Each needs role and content; optional fields are "
            f"{', '.join(NewTurn.__struct_fields__[2:])}."
        ) from None


def _to_dict(turn: Any) -> Any:
    # A provider's record of a turn has the same field names.
    return msgspec.structs.asdict(turn) if isinstance(turn, msgspec.Struct) else turn
