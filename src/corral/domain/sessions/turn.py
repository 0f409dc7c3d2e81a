"""What a turn may be: checked, and as the store keeps it."""

from typing import Any

import msgspec

from corral.domain.sessions.model import NewTurn, Role, Turn
from corral.kernel.errors import Invalid
from corral.kernel.text import MAX_NAME, check_int, clean_text, convert, encode_json

MAX_CONTENT = 4 * 1024 * 1024
MAX_TITLE = 1_000
_ROLES: dict[str, Role] = {role.value: role for role in Role}

_PLAIN: dict[str, Any] = {
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


def row_of(new: NewTurn) -> dict[str, Any]:
    """The columns of a new turn, but for its session, number, author and time."""
    if new.role not in _ROLES:
        raise Invalid(
            f"{new.role!r} speaks in no session; a turn's role is one of {', '.join(Role)}.",
            role=new.role,
            reason="unknown_role",
        )
    if new.content:
        clean_text(new.content, "The content", most=MAX_CONTENT)
    row = {**_PLAIN, "role": new.role, "content": new.content}
    if new.key:
        row["key"] = clean_text(new.key, "The key", most=MAX_NAME)
    if new.run:
        row["run_id"] = clean_text(new.run, "The run", most=MAX_NAME)
    if new.input_tokens is not None or new.output_tokens is not None:
        row["input_tokens"] = _count(new.input_tokens)
        row["output_tokens"] = _count(new.output_tokens)
    if new.meta is not None:
        row["meta"] = _json(new.meta, "The metadata")
    if new.tool_name or new.tool_call_id or new.arguments is not None or new.result is not None:
        row["tool_call_id"] = check_optional(new.tool_call_id, "The call")
        row["tool_name"] = check_optional(new.tool_name, "The tool")
        row["arguments"] = _json(new.arguments, "The arguments")
        row["result"] = _json(new.result, "The result")
    if new.is_error:
        row["is_error"] = 1
    return row


def is_plain(new: NewTurn) -> bool:
    """Whether it is words and nothing else."""
    return new == NewTurn(new.role, new.content, agent=new.agent)


def turn_of(row: dict[str, Any], seq: int, number: int, agent_id: str | None) -> Turn:
    """The turn that a row has become, as it would be read."""
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


def moment_of(new: NewTurn, now: int) -> int:
    """When a turn was said; nothing was said in the future."""
    return now if new.at is None else min(check_int(new.at, "The moment"), now)


def check_optional(text: str | None, what: str, *, most: int = MAX_NAME) -> str | None:
    return clean_text(text, what, most=most) if text else None


def _json(value: Any, what: str) -> str | None:
    return None if value is None else encode_json(value, what, most=MAX_CONTENT)


def _count(tokens: int | None) -> int | None:
    if tokens is not None and check_int(tokens, "The number of tokens") < 0:
        raise Invalid(f"Nothing uses {tokens} tokens; leave it out when it is not known.")
    return tokens


def parse_number(after: str | int | None, default: int) -> int:
    """The number of a turn, as it was given to go on behind it."""
    if after is None:
        return default
    text = str(after)
    if isinstance(after, bool) or not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Invalid(
            f"{text!r} is no place in a session; take the number of a turn, or `next` of a page.",
            value=text,
        )
    return int(text)


def read_turns(given: Any) -> list[NewTurn]:
    """Turns that were given as structs or dicts."""
    try:
        return [
            each if isinstance(each, NewTurn) else convert(_plain(each), NewTurn) for each in given
        ]
    except (TypeError, msgspec.ValidationError) as error:
        raise Invalid(
            f"These are no turns: {error}. Each has a role and a content, and may have "
            f"{', '.join(NewTurn.__struct_fields__[2:])}."
        ) from None


def _plain(turn: Any) -> Any:
    # A provider's own record of what was said has the same names.
    return msgspec.structs.asdict(turn) if isinstance(turn, msgspec.Struct) else turn
