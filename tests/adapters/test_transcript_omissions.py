"""Every line and block of a transcript is imported, or counted in the report."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.adapters.providers.facts import TurnFact, UsageFact
from corral.adapters.transcripts import claude, codex
from corral.adapters.transcripts.omissions import count_omissions
from corral.api import Corral

FIXTURES = Path(__file__).parents[1] / "fixtures/transcripts"


@pytest.mark.parametrize("reader", [claude, codex])
@pytest.mark.parametrize("name", ["", "-killed"])
def test_every_line_is_read_or_counted(reader: Any, name: str) -> None:
    path = FIXTURES / f"{reader.__name__.rpartition('.')[2]}{name}.jsonl"
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    offsets = {item.offset for item in reader.iter_items(path)}
    left_out = count_omissions(path, 0, len(complete), offsets)
    lines = sum(rows for kind, rows in left_out.items() if not kind.startswith("block "))
    assert len(offsets) + lines == complete.count(b"\n")
    kinds = {type(item.fact) for item in reader.iter_items(path)}
    assert kinds <= {TurnFact, UsageFact}


def test_import_report_lists_omissions(store: Corral, tmp_path: Path) -> None:
    assistant_message = {
        "role": "assistant",
        "id": "m1",
        "content": [{"type": "text", "text": "hi"}],
    }
    assistant_message["content"] += [{"type": "thinking", "thinking": "hm"}]  # type: ignore[operator]
    base = {"sessionId": "s1", "cwd": "/srv", "timestamp": "2026-03-01T10:00:00Z"}
    lines = [
        {**base, "type": "user", "message": {"role": "user", "content": "hello"}},
        {**base, "type": "file-history-snapshot"},
        {**base, "type": "user", "isSidechain": True, "message": {"content": "sub-agent"}},
        {**base, "type": "assistant", "message": assistant_message},
    ]
    text = b"\n".join(map(msgspec.json.encode, lines[:3])) + b"\nnoise\n"
    (tmp_path / "a.jsonl").write_bytes(text + msgspec.json.encode(lines[3]) + b"\n")
    (tmp_path / "b.jsonl").write_bytes(b"no transcript\n")
    report = store.imports.import_transcripts("claude", tmp_path)
    assert report.turns == 2
    assert report.left_out == {
        "file-history-snapshot": 1,
        "user isSidechain": 1,
        "unreadable lines": 1,
        "block thinking": 1,
    }
    assert report.unreadable == [str(tmp_path / "b.jsonl")]
    assert store.imports.import_transcripts("claude", tmp_path).left_out == {}
