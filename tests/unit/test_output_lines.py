"""Very long lines: all output is shown within bounded time and memory."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.adapters.output.lines import MAX_LINE_BYTES, LineSplitter, OutputLine
from corral.adapters.output.reader import OutputFiles
from corral.adapters.output.render import PipeRenderer, render_pipe
from tests.support.grouped_cases import each_case

pytestmark = pytest.mark.slow

MB = 1_000_000
LENGTH = 5 * MB


@each_case(
    "piece", [b"word ", b"progress\r", b"\x1b[31mred ", "ünï".encode(), b"\x1b]0;", b"\xff\xfe"]
)
def test_long_line_takes_seconds_and_little_memory(tmp_path: Path, piece: bytes) -> None:
    with (tmp_path / "output").open("wb") as file:
        for _ in range(LENGTH // MB):
            file.write(piece * (MB // len(piece)))
    busy = time.process_time()
    text, length = PipeRenderer(), 0
    for part in OutputFiles(tmp_path).follow(is_finished=lambda: True):
        rendered = text.feed(part.text)
        length += len(rendered)
        assert len(rendered) <= 2 * MAX_LINE_BYTES
        assert len(text._buffer) <= 2 * MAX_LINE_BYTES
    length += len(text.finish())
    assert time.process_time() - busy < 2
    if piece == b"word ":
        assert length == LENGTH + 1
    (last,) = OutputFiles(tmp_path).tail(5)
    assert len(last) < 2 * MAX_LINE_BYTES


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["words ", "ü", "\x1b[31m", "\n", "\r\n"]),
            st.sampled_from(["<long>", "<longer>"]),
        ),
        max_size=8,
    ),
    st.lists(st.integers(0, 200_000), max_size=6),
)
def test_chunks_give_the_same_lines_as_the_whole(parts: list[str], borders: list[int]) -> None:
    source = "".join(parts).replace("<long>", "words " * 12_000)
    data = source.replace("<longer>", "words " * 40_000).encode()
    text, out, at = PipeRenderer(), "", 0
    for border in [*sorted(min(border, len(data)) for border in borders), len(data)]:
        out += text.feed(data[at:border])
        at = border
    expected = render_pipe(data)
    out += text.finish()
    assert out in (expected, f"{expected}\n")


@given(st.lists(st.sampled_from([b"a", b"\n", b"bcd", b"efghij"]), max_size=20))
def test_lines_are_addressed_by_their_offset(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    lines = LineSplitter(7, max_bytes=5)
    result = [line for piece in pieces for line in lines.feed(piece)] + lines.finish()
    expected, at = [], 7
    for part in data.split(b"\n"):
        expected.append(OutputLine(at, len(part), part if len(part) <= 5 else None))
        at += len(part) + 1
    if not expected[-1].length:
        expected.pop()
    assert result == expected
