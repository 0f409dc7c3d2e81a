"""A run's output: its sealed size, read speed, and the cost of redaction and truncation."""

import os
import random
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyte
import zstandard
from tests.support.output_samples import log_text

from bench.harness import Bar, Bench, Rates, Rival, Row, Spread
from corral.adapters.output.capped_file import CappedWriter
from corral.adapters.output.plain_file import PlainOutput
from corral.adapters.output.redact import Redactor
from corral.adapters.output.render import TerminalEmulator, render_pipe
from corral.adapters.output.seal import remove_plain, seal, sealed_path
from corral.adapters.output.sealed_file import SealedOutput, open_sealed
from corral.adapters.output.sealed_format import COMPRESSION_LEVEL, FRAME_BYTES

TITLE = "Output of runs"
ABOUT = """
    The text is prose between log lines with times, numbers and ids; no frame repeats another. A
    page is 100 lines from a random position, over a plain file whose reader has an index of
    every 64 KiB. Copying writes pieces of 64 KiB into a file, over the same without redaction
    and cap. Sealing (redaction, compression, hash, verification, fsync) is over compression
    alone. A terminal is replayed over a bare pyte with the same history.
"""
LINES = 100
SECRETS = ["correct-horse-battery-staple", "tok/en+with=signs", "a-third-secret-value"]


def measure(bench: Bench) -> list[Row]:
    folder = bench.new_file().parent
    text = log_text(bench.pick(32, 8) * 1024 * 1024)
    (folder / "output").write_bytes(text)
    index = seal(folder)
    sealed = open_sealed(sealed_path(folder / "output"))
    assert sealed is not None
    size = index.sealed_bytes / len(text)
    return [
        Row("size of the sealed text", Spread(size, size, size), Bar("<=", 0.35)),
        *_pages(bench, folder / "output", sealed),
        *_copies(bench, folder, text),
        *_sealing(bench, folder / "again", text),
        *_rendering(bench, text),
    ]


def _pages(bench: Bench, path: Path, sealed: SealedOutput) -> list[Row]:
    pages = bench.pick(2_000, 400)
    by_hand, growing = _ByHand(path), PlainOutput(path)
    growing.lines(sealed.index.lines - 1, 1)  # the first read builds the index

    def read(lines: Callable[[int, int], list[bytes]]) -> Rates:
        rng = random.Random(7)
        starts = [rng.randrange(sealed.index.lines - LINES) for _ in range(pages)]
        start_time = time.perf_counter()
        for start in starts:
            assert len(lines(start, LINES)) == LINES
        return {"page": pages / (time.perf_counter() - start_time)}

    assert sealed.lines(1_234, LINES) == by_hand.lines(1_234, LINES) == growing.lines(1_234, LINES)
    result = bench.compare(
        Rival("plain file", partial(read, by_hand.lines)),
        [Rival("sealed", partial(read, sealed.lines)), Rival("open", partial(read, growing.lines))],
        rounds=bench.pick(9, 5),
    )
    return [
        Row("a page of a sealed output", result.speed_of("sealed", "page"), Bar(">=", 0.5)),
        Row("a page of an open output, redacted", result.speed_of("open", "page")),
    ]


class _ByHand:
    """A plain file with the number of lines before every 64 KiB."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._ends, ends, at = array("Q"), 0, 0
        while data := os.pread(self._file, FRAME_BYTES, at):
            self._ends.append(ends)
            ends += data.count(b"\n")
            at += len(data)

    def lines(self, start: int, count: int) -> list[bytes]:
        nth = max(bisect_right(self._ends, start - 1) - 1, 0)
        skip, data = start - self._ends[nth], b""
        at = nth * FRAME_BYTES
        while data.count(b"\n") < skip + count:
            data += os.pread(self._file, FRAME_BYTES, at)
            at += FRAME_BYTES
        return data.split(b"\n")[skip : skip + count]


def _copies(bench: Bench, folder: Path, text: bytes) -> list[Row]:
    pieces = [text[at : at + FRAME_BYTES] for at in range(0, len(text), FRAME_BYTES)]

    speeds: list[float] = []
    redacting: list[float] = []

    def plain() -> Rates:
        target = folder / "copy"
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        start = time.perf_counter()
        for piece in pieces:
            os.write(file, piece)
        elapsed = time.perf_counter() - start
        os.close(file)
        target.unlink()
        return {"copy": len(text) / elapsed}

    def capped(cap: int, redactor: Callable[[], Redactor] | None) -> Rates:
        target = folder / "capped"
        writer = CappedWriter(target, cap, redactor() if redactor else None)
        start, busy = time.perf_counter(), time.process_time()
        for piece in pieces:
            writer.write(piece)
        writer.close()
        elapsed, busy = time.perf_counter() - start, time.process_time() - busy
        speeds.append(len(text) / busy / 1e6)
        for file in folder.glob("capped*"):
            file.unlink()
        return {"copy": len(text) / elapsed}

    def redacted(redactor: Callable[[], Redactor]) -> Rates:
        speeds.clear()
        rates = capped(1 << 40, redactor)
        redacting.append(speeds[0])
        return rates

    cases = {
        "copying under a cap of half of it": partial(capped, len(text) // 2, None),
        "copying, redacted by shape": partial(redacted, Redactor),
        "copying, redacted by shape and three values": partial(
            capped, 1 << 40, partial(Redactor, SECRETS)
        ),
    }
    result = bench.compare(
        Rival("plain copy", plain),
        [Rival(name, sample) for name, sample in cases.items()],
        rounds=bench.pick(7, 3),
    )
    return [
        *(Row(name, result.speed_of(name, "copy")) for name in cases),
        Row("redaction by shape, MB in a second of work", Spread.of(redacting), unit=""),
    ]


def _sealing(bench: Bench, folder: Path, text: bytes) -> list[Row]:
    folder.mkdir(exist_ok=True)

    def packing() -> Rates:
        packer = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
        start = time.perf_counter()
        for at in range(0, len(text), FRAME_BYTES):
            packer.compress(text[at : at + FRAME_BYTES])
        return {"seal": len(text) / (time.perf_counter() - start)}

    def sealing() -> Rates:
        (folder / "output").write_bytes(text)
        start = time.perf_counter()
        remove_plain(folder, seal(folder))
        elapsed = time.perf_counter() - start
        (folder / "output.zst").unlink()
        return {"seal": len(text) / elapsed}

    result = bench.compare(
        Rival("packing alone", packing), [Rival("sealing", sealing)], rounds=bench.pick(5, 3)
    )
    return [Row("sealing", result.speed_of("sealing", "seal"))]


def _rendering(bench: Bench, text: bytes) -> list[Row]:
    data = b"".join(
        b"\x1b[32m%b\x1b[0m 10%%\r\x1b[1m%b\x1b[0m\r\n" % (line[:20], line)
        for line in text[: bench.pick(400_000, 100_000)].split(b"\n")
    )

    def bare() -> Rates:
        screen = pyte.HistoryScreen(80, 24, history=10_000)
        stream = pyte.ByteStream(screen)
        start = time.perf_counter()
        stream.feed(data)
        return {"render": len(data) / (time.perf_counter() - start)}

    def emulate() -> Rates:
        terminal = TerminalEmulator(80, 24, history=10_000)
        start = time.perf_counter()
        terminal.feed(data)
        terminal.text()
        return {"render": len(data) / (time.perf_counter() - start)}

    def render_as_pipe() -> Rates:
        start = time.perf_counter()
        render_pipe(data)
        return {"render": len(data) / (time.perf_counter() - start)}

    result = bench.compare(
        Rival("pyte", bare),
        [Rival("terminal", emulate), Rival("pipe", render_as_pipe)],
        rounds=bench.pick(5, 3),
    )
    return [
        Row("playing a terminal", result.speed_of("terminal", "render"), over="pyte"),
        Row("taking escapes out of a pipe", result.speed_of("pipe", "render"), over="pyte"),
    ]
