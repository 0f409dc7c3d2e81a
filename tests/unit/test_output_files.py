"""Output files: truncated, sealed and read, compared with slices of the original text."""

import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.adapters.output.capped_file import CappedWriter, cut_middle, read_cut
from corral.adapters.output.lines import MAX_LINE_BYTES
from corral.adapters.output.plain_file import PlainOutput
from corral.adapters.output.reader import OutputFiles
from corral.adapters.output.redact import Redactor
from corral.adapters.output.seal import load_index, remove_plain, seal, seal_lock, sealed_path
from corral.adapters.output.sealed_file import open_sealed
from corral.adapters.output.sealed_format import (
    FRAME_BYTES,
    Cut,
    OffsetMap,
    Replacement,
    format_cut_notice,
    merge_replacements,
)
from corral.kernel.errors import NotFound, StoreUnavailable
from tests.support.errors import because
from tests.support.grouped_cases import each_case
from tests.support.output_samples import KEY, NARROW, follow_all, text_of_lines

ANY_OUTPUT = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    result = tmp_path / "run"
    result.mkdir(exist_ok=True)
    return result


def write_output(folder: Path, data: bytes) -> Path:
    path = folder / "output"
    for old in folder.iterdir():
        old.unlink()
    path.write_bytes(data)
    return path


def redact(data: bytes) -> bytes:
    redactor = Redactor()
    return redactor.feed(data) + redactor.finish()


def split_lines(text: bytes) -> list[bytes]:
    lines = text.split(b"\n")
    return lines if lines[-1] else lines[:-1]


pieces = st.lists(
    st.one_of(
        st.binary(max_size=300),
        st.sampled_from([b"\n", b"\n\n", b"word " * 50, KEY, b"https://u:p@h/ ", b"x" * 3_000]),
        st.integers(1, 40).map(lambda n: b"line of text\n" * n),
    ),
    max_size=40,
).map(b"".join)


@ANY_OUTPUT
@given(data=pieces, start=st.integers(0, 400), count=st.integers(1, 50))
def test_pages_of_lines_are_equal_for_plain_and_sealed_files(
    folder: Path, data: bytes, start: int, count: int
) -> None:
    path = write_output(folder, data)
    text = redact(data)
    plain = PlainOutput(path)
    index = seal(folder)
    assert index.lines == len(split_lines(text))
    sealed = open_sealed(sealed_path(path))
    assert sealed is not None
    expected = split_lines(text)[start : start + count]
    assert sealed.lines(start, count) == expected
    assert sealed.tail(count) == split_lines(text)[-count:]
    # A growing file holds back bytes that may still become a secret.
    visible = text_of_lines(plain.lines(0, 10_000))
    assert text.startswith(visible.rstrip(b"\n"))
    if data.endswith(b"\n"):
        assert plain.lines(start, count) == expected
        assert plain.tail(count) == sealed.tail(count)


@ANY_OUTPUT
@given(data=pieces, cuts=st.lists(st.integers(0, 9_000), min_size=2, max_size=6))
def test_slices_by_source_offset_add_up_to_the_whole(
    folder: Path, data: bytes, cuts: list[int]
) -> None:
    data += b"\n"
    path = write_output(folder, data)
    text = redact(data)
    borders = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    plain = PlainOutput(path)
    seal(folder)
    sealed = open_sealed(sealed_path(path))
    assert sealed is not None
    assert sealed.bytes(0, len(data)) == text == plain.bytes(0, len(data))
    for form in (plain, sealed):
        parts = [form.bytes(a, b - a) for a, b in pairwise(borders)]
        assert b"".join(parts) == text
    for a, b in pairwise(borders):
        assert plain.bytes(a, b - a) == sealed.bytes(a, b - a)


@ANY_OUTPUT
@given(data=pieces, stop=st.integers(0, 30))
def test_follower_continues_at_the_same_offset_after_sealing(
    folder: Path, data: bytes, stop: int
) -> None:
    data = data * 3
    write_output(folder, data)
    with NARROW:
        begun = []
        follower = OutputFiles(folder).follow(is_finished=lambda: True)
        for piece in follower:
            begun.append(piece)
            if len(begun) == stop:
                break
        at = begun[-1].next if begun else 0
        index = seal(folder)
        remove_plain(folder, index)
        rest = list(OutputFiles(folder).follow(at, is_finished=lambda: True))
        # The same reader, whose file was unlinked, reaches the same end.
        same = list(follower)
    text = redact(data)
    assert b"".join(piece.text for piece in begun + rest) == text
    assert b"".join(piece.text for piece in begun + same) == text


@ANY_OUTPUT
@given(data=pieces)
def test_sealed_file_is_decompressed_by_the_zstd_library(folder: Path, data: bytes) -> None:
    import zstandard

    path = write_output(folder, data)
    index = seal(folder)
    packed = sealed_path(path).read_bytes()
    with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
        assert reader.read() == redact(data)
    assert index.sealed_bytes == len(packed)
    assert index.bytes == len(data)


def test_sealed_file_is_decompressed_by_the_zstd_program(folder: Path) -> None:
    path = write_output(folder, b"some text\n" * 50_000)
    seal(folder)
    try:
        result = subprocess.run(["zstd", "-dc", sealed_path(path)], capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("zstd is not installed; the package's own reader is tested instead")
    assert result.stdout == path.read_bytes()


def test_sealed_text_is_at_most_a_third_of_its_size(folder: Path) -> None:
    from tests.support.output_samples import log_text

    data = log_text(3_000_000)
    write_output(folder, data)
    assert seal(folder).sealed_bytes < 0.35 * len(data)


def test_empty_output_is_sealed(folder: Path) -> None:
    write_output(folder, b"")
    index = seal(folder)
    assert (index.bytes, index.lines, index.head, index.tail, index.utf8) == (0, 0, "", "", True)
    remove_plain(folder, index)
    output = OutputFiles(folder)
    assert (output.size, output.lines(0, 5), output.tail(5), output.bytes(0, 5)) == (0, [], [], b"")
    assert follow_all(output) == b""


@each_case(
    ("data", "utf8"),
    [(b"plain", True), ("ü☃".encode() * 40_000, True), (b"\xff\xfe", False), (b"cut \xc3", False)],
)
def test_output_is_recorded_as_utf_8_or_not(folder: Path, data: bytes, utf8: bool) -> None:
    write_output(folder, data)
    index = seal(folder)
    assert index.utf8 is utf8
    remove_plain(folder, index)
    assert OutputFiles(folder).bytes(0, len(data)) == data


def test_head_and_tail_are_storable_text(folder: Path) -> None:
    write_output(folder, b"\0a\xff" + b"x" * 100_000 + b"end\0")
    index = seal(folder)
    assert index.head.startswith("\ufffda\ufffdxxx")
    assert index.tail.endswith("xend\ufffd")
    assert len(index.head) == len(index.tail) == 4_096


def test_line_of_100_megabytes_needs_little_memory(
    folder: Path,
) -> None:
    path = folder / "output"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b"y" * 1_000_000)
        file.write(b"the end")
    plain = PlainOutput(path)
    (line,) = plain.tail(3)
    assert line.endswith(b"the end")
    assert len(line) < 70_000
    index = seal(folder)
    remove_plain(folder, index)
    output = OutputFiles(folder)
    assert index.lines == 1
    (line,) = output.lines(0, 10)
    assert line.startswith(b"yyy")
    assert line.endswith(b"ythe end")
    assert len(line) < 70_000
    assert b"[corral left out 99934471 bytes here]" in line


# -- truncation --------------------------------------------------------------------------------


def test_truncation_keeps_head_and_tail_and_counts_the_rest(folder: Path) -> None:
    lines = [b"line %06d\n" % n for n in range(100_000)]
    path = write_output(folder, b"".join(lines))
    cut = cut_middle(path, 300_000, 200_000)
    assert cut is not None
    index = seal(folder)
    assert (index.bytes, index.dropped_bytes) == (1_200_000, cut.length)
    remove_plain(folder, index)
    assert not list(folder.glob("*cut*"))
    output = OutputFiles(folder)
    visible = output.bytes(0, 1_200_000)
    assert (
        visible
        == b"".join(lines)[: cut.start] + format_cut_notice(cut.length) + b"".join(lines)[cut.end :]
    )
    assert output.lines(24_999, 3) == [
        lines[24_999][:-1],
        format_cut_notice(cut.length)[:-1],
        b"line 083334",
    ]
    assert output.tail(1) == [b"line 099999"]


def test_truncation_does_not_end_inside_a_private_key(folder: Path) -> None:
    secret = b"MIIEpAIBAAKCAQEA" * 4 + b"\n"
    key = b"-----BEGIN RSA PRIVATE KEY-----\n" + secret * 20 + b"-----END RSA PRIVATE KEY-----\n"
    data = b"head\n" * 1_000 + key + b"tail\n" * 100
    for tail in range(500, len(key) + 500, 97):
        path = write_output(folder, data)
        cut_middle(path, 1_000, tail)
        seal(folder)
        assert b"MIIE" not in OutputFiles(folder).bytes(0, len(data))
        (folder / "output").unlink()
        visible = OutputFiles(folder).bytes(0, len(data))
        assert b"MIIE" not in visible
        assert visible.endswith(b"tail\n" * 100)


def test_truncation_frees_disk_space(folder: Path) -> None:
    path = write_output(folder, os.urandom(8_000_000))
    before = path.stat().st_blocks
    cut_middle(path, 500_000, 500_000)
    if path.stat().st_blocks == before:
        pytest.skip("the file system does not support holes; other tests check the truncation")
    assert path.stat().st_blocks * 512 < 1_200_000
    assert path.stat().st_size == 8_000_000


@ANY_OUTPUT
@given(
    sizes=st.lists(st.integers(1, 90_000), max_size=30),
    cap=st.integers(1_000, 300_000),
    lines=st.booleans(),
)
def test_every_byte_is_kept_or_counted_as_dropped(
    folder: Path, sizes: list[int], cap: int, lines: bool
) -> None:
    data = b"".join((b"%07d\n" % n if lines else b"%08d" % n) for n in range(sum(sizes) // 8 + 1))
    write_output(folder, b"").unlink()
    writer = CappedWriter(folder / "output", cap)
    written_bytes = 0
    for size in sizes:
        writer.write(data[written_bytes : written_bytes + size])
        written_bytes += size
        assert writer.bytes - writer.dropped_bytes <= cap + max(cap // 8, 65_536)
    writer.close()
    expected = data[:written_bytes]
    growing = OutputFiles(folder).bytes(0, written_bytes)
    index = seal(folder, cap=cap)
    assert index.bytes == written_bytes
    kept_bytes = index.bytes - index.dropped_bytes
    assert kept_bytes <= max(cap, min(written_bytes, cap)) + 16_384
    remove_plain(folder, index)
    text = OutputFiles(folder).bytes(0, written_bytes)
    if not index.dropped_bytes:
        assert text == expected == growing
        return
    head, _, tail = text.partition(format_cut_notice(index.dropped_bytes))
    head = head if expected.startswith(head) else head[:-1]  # the end of a split line
    assert expected.startswith(head)
    assert expected.endswith(tail)
    assert len(head) + len(tail) == kept_bytes


def test_writer_continues_after_a_crashed_writer(folder: Path) -> None:
    first = CappedWriter(folder / "output", 200_000)
    first.write(b"one\n" * 100_000)
    cut = first.dropped_bytes
    assert cut > 0
    second = CappedWriter(folder / "output", 200_000)  # the first was never closed
    assert (second.bytes, second.dropped_bytes) == (400_000, cut)
    second.write(b"two\n" * 10)
    second.close()
    assert OutputFiles(folder).tail(1) == [b"two"]
    first.close()


def test_writer_redacts_and_flushes_held_back_bytes_at_the_end(folder: Path) -> None:
    writer = CappedWriter(folder / "output", 1_000_000, Redactor(["hunter2"]))
    writer.write(b"login hunt")
    assert (folder / "output").read_bytes() == b"login "
    writer.write(b"er2 then hunt")
    writer.close()
    writer.close()
    assert (folder / "output").read_bytes() == b"login [redacted] then hunt"
    assert (folder / "output").stat().st_mode & 0o777 == 0o600


def test_follower_gets_a_notice_of_truncation(folder: Path) -> None:
    path = write_output(folder, b"a line of it\n" * 100_000)
    follower = OutputFiles(folder).follow(is_finished=lambda: True)
    first = next(follower)
    cut = cut_middle(path, 100, 1_000)
    assert cut is not None
    rest = b"".join(piece.text for piece in follower)
    assert rest == b"\n" + format_cut_notice(cut.end - first.next) + path.read_bytes()[cut.end :]


# -- errors ------------------------------------------------------------------------------------


def test_sealing_twice_has_no_further_effect(folder: Path) -> None:
    path = write_output(folder, b"text\n")
    index = seal(folder)
    when = sealed_path(path).stat().st_mtime_ns
    assert seal(folder) == index
    assert sealed_path(path).stat().st_mtime_ns == when
    assert remove_plain(folder, index)
    assert remove_plain(folder, index)
    assert seal(folder) == index == load_index(sealed_path(path))


def test_file_that_grew_after_sealing_is_kept_and_sealed_again(
    folder: Path,
) -> None:
    path = write_output(folder, b"text\n")
    index = seal(folder)
    with path.open("ab") as file:
        file.write(b"late\n")
    assert not remove_plain(folder, index)
    index = seal(folder)
    assert remove_plain(folder, index)
    assert OutputFiles(folder).lines(0, 9) == [b"text", b"late"]


def test_missing_file_cannot_be_sealed(folder: Path) -> None:
    with pytest.raises(NotFound, match="No output"):
        seal(folder)
    with pytest.raises(NotFound, match="No output"):
        OutputFiles(folder).lines(0, 1)
    assert follow_all(OutputFiles(folder)) == b""


@each_case("damage", [b"", b"rubbish", b"x" * 40])
def test_damaged_sealed_file_is_rebuilt_from_the_plain_file(folder: Path, damage: bytes) -> None:
    path = write_output(folder, b"text\n")
    sealed_path(path).write_bytes(damage)
    index = seal(folder)
    assert load_index(sealed_path(path)) == index
    remove_plain(folder, index)
    sealed_path(path).write_bytes(damage)
    with pytest.raises(StoreUnavailable, check=because("corrupt")):
        seal(folder)
    with pytest.raises(StoreUnavailable, check=because("corrupt")):
        OutputFiles(folder).lines(0, 1)


def test_damaged_frame_is_reported(folder: Path) -> None:
    path = write_output(folder, os.urandom(FRAME_BYTES * 2))
    index = seal(folder)
    remove_plain(folder, index)
    with sealed_path(path).open("r+b") as file:
        file.seek(FRAME_BYTES // 2)
        file.write(b"\0" * 100)
    with pytest.raises(StoreUnavailable, match="Frame 0"):
        OutputFiles(folder).bytes(0, 10)


def test_files_are_private(folder: Path) -> None:
    write_output(folder, b"text\n" * 1_000).chmod(0o600)
    cut_middle(folder / "output", 100, 100)
    seal(folder)
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    assert read_cut(folder / "output") is not None


def test_concurrent_sealing_is_serialised(folder: Path) -> None:
    import threading

    order: list[str] = []
    with seal_lock(folder):

        def other() -> None:
            with seal_lock(folder):
                order.append("other")

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


# -- the map between source and text offsets ---------------------------------------------------


@ANY_OUTPUT
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30), st.integers(1, 12)), max_size=12))
def test_offset_map_round_trips(gaps: list[Any]) -> None:
    marks, at, text = [], 5, 0
    starts = []
    for gap, source_length, text_length in gaps:
        at, text = at + gap, text + gap
        starts.append((at, text))
        marks.append(Replacement(at, source_length, text_length))
        at, text = at + source_length, text + text_length
    other = OffsetMap(marks, 5)
    for source, expected in starts:
        assert other.to_text(source) == expected
        assert other.to_source(expected) == source
    assert other.to_text(at) == text
    assert other.to_source(text) == at
    joined = merge_replacements(marks)
    assert len(joined) == (len(marks) + 1) // 2
    assert OffsetMap(joined, 5).to_text(at) == text


def test_thousands_of_secrets_need_a_bounded_index(folder: Path) -> None:
    data = (b"a " + KEY + b"\n") * 20_000
    write_output(folder, data)
    index = seal(folder)
    assert len(index.marks) <= 4_096 * 24
    remove_plain(folder, index)
    assert OutputFiles(folder).bytes(0, len(data)) == b"a [redacted]\n" * 20_000
    assert OutputFiles(folder).lines(19_999, 5) == [b"a [redacted]"]


def test_cut_has_the_length_of_its_range() -> None:
    assert Cut(3, 10).length == 7
    assert MAX_LINE_BYTES >= 1_024
