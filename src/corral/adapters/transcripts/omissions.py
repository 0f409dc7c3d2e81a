"""Counts of the transcript lines and blocks that a reader skips, by kind, for the import report."""

from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any

from corral.adapters.providers.json_lines import (
    MAX_LINE,
    decode_object,
    get_dict,
    get_dicts,
    get_text,
)

_READ_BLOCKS = {"text", "input_text", "output_text", "tool_use", "tool_result"}
_FLAGS = ("isSidechain", "isMeta")


def count_omissions(path: Path, offset: int, upto: int, read: Container[int]) -> Counter[str]:
    """Count the skipped lines and blocks from `offset` up to `upto`, by kind.

    `read` holds the end offsets of the lines that were read. Blocks in those lines that no reader
    understands, such as images, are counted too.
    """
    counted: Counter[str] = Counter()
    with path.open("rb") as file:
        file.seek(offset)
        while file.tell() < upto and (line := file.readline(MAX_LINE)):
            while not line.endswith(b"\n") and (rest := file.readline(MAX_LINE)):
                line = rest[-1:] if rest.endswith(b"\n") else b""
            message = decode_object(line.strip()) if len(line) > 1 else None
            if message is None:
                counted["unreadable lines"] += bool(line.strip()) or len(line) == 1
            elif file.tell() not in read:
                counted[_kind_of(message)] += 1
            else:
                counted.update(_blocks_in(message))
    return +counted


def _kind_of(message: dict[str, Any]) -> str:
    kinds = [get_text(message, "type"), get_text(get_dict(message, "payload"), "type")]
    kinds += [flag for flag in _FLAGS if message.get(flag) is True]
    return " ".join(kind for kind in kinds if kind) or "lines without a type"


def _blocks_in(message: dict[str, Any]) -> list[str]:
    blocks = [*get_dicts(get_dict(message, "message"), "content")]
    blocks += get_dicts(get_dict(message, "payload"), "content")
    kinds = [get_text(block, "type") or "without a type" for block in blocks]
    return [f"block {kind}" for kind in kinds if kind not in _READ_BLOCKS]
