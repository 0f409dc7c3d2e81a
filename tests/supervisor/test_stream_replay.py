"""A new supervisor replays the agent's stream: no turn is duplicated or lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from corral.adapters.output.capped_file import cut_middle
from corral.adapters.providers import registry
from corral.api import Corral
from corral.domain.runs.model import Run
from corral.supervisor.stream_io import StreamIO

PADDING = "x" * 1_000


def encode_assistant_message(number: int) -> bytes:
    block = {"type": "text", "text": f"{number} {PADDING}"}
    message = {"id": f"m{number}", "role": "assistant", "model": "m", "content": [block]}
    return json.dumps({"type": "assistant", "message": message}).encode() + b"\n"


@pytest.fixture
def run(store: Corral) -> Run:
    session = store.sessions.open()
    return store.runs.start(command=["true"], session=session.id)


def open_stream(store: Corral, run: Run, path: Path) -> StreamIO:
    parser = registry.get_provider("claude").create_parser(store)
    return StreamIO(store, run, parser, path, offset=0, secrets=(), log=lambda *_: None)


def list_turn_numbers(store: Corral, run: Run) -> list[int]:
    assert run.session_id is not None
    turns: list[Any] = []
    after = None
    while page := store.sessions.turns(run.session_id, limit=200, after=after):
        turns += page.items
        after = page.next
        if after is None or not page.items:
            break
    return [int(turn.content.split()[0]) for turn in turns if turn.role == "assistant"]


def test_stream_read_again_after_a_gap_has_no_duplicates_or_losses(
    store: Corral, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "output"
    path.write_bytes(b"".join(map(encode_assistant_message, range(100))))
    first = open_stream(store, run, path)
    first.poll()
    with path.open("ab") as file:
        file.write(b"".join(map(encode_assistant_message, range(100, 110))))
    cut = cut_middle(path, 20_000, 40_000)
    assert cut is not None
    assert cut.length > 10_000
    second = open_stream(store, run, path)  # the first reader was killed before it read the rest
    second.poll()
    second.close()
    assert list_turn_numbers(store, run) == list(range(110))


def test_gap_before_the_reader_is_skipped(store: Corral, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_bytes(b"".join(map(encode_assistant_message, range(100))))
    cut_middle(path, 20_000, 40_000)
    reader = open_stream(store, run, path)
    reader.poll()
    reader.close()
    numbers = list_turn_numbers(store, run)
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    assert numbers[-1] == 99
    assert 20 < len(numbers) < 80
