"""An output that is capped, sealed and followed while its process writes."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from corral.adapters.output.capped_file import cut_middle, read_cut
from corral.adapters.output.reader import OutputFiles
from corral.adapters.output.seal import remove_plain, seal
from tests.support.threads import SECONDS

LINES = 100_000
WRITE = f"""
import sys
for n in range({LINES}):
    sys.stdout.write("%07d output line\\n" % n)
"""
LENGTH = len("0000000 output line\n")


def parse_numbers(text: bytes) -> list[int]:
    """Return the numbers of all complete lines. A gap may split a line."""
    return [int(line[:7]) for line in text.splitlines() if line.endswith(b" output line")]


def test_every_byte_is_kept_or_counted_while_output_is_capped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "output"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    over = threading.Event()
    followed: list[bytes] = []

    def follow() -> None:
        followed.extend(
            piece.text for piece in OutputFiles(tmp_path).follow(is_finished=over.is_set)
        )

    reader = threading.Thread(target=follow)
    reader.start()
    with subprocess.Popen([sys.executable, "-c", WRITE], stdout=file) as child:
        os.close(file)
        while child.poll() is None:
            if path.stat().st_size - (cut.length if (cut := read_cut(path)) else 0) > 600_000:
                cut_middle(path, 200_000, 200_000)
    cut_middle(path, 200_000, 200_000)
    index = seal(tmp_path)
    remove_plain(tmp_path, index)
    over.set()
    reader.join(SECONDS)
    assert not reader.is_alive()
    assert child.returncode == 0
    assert index.bytes == LINES * LENGTH
    kept_numbers = parse_numbers(OutputFiles(tmp_path).bytes(0, index.bytes))
    assert len(kept_numbers) * LENGTH == index.bytes - index.dropped_bytes
    assert (kept_numbers[0], kept_numbers[-1]) == (0, LINES - 1)
    assert kept_numbers == sorted(set(kept_numbers))
    followed_numbers = parse_numbers(b"".join(followed))
    assert (followed_numbers[0], followed_numbers[-1]) == (0, LINES - 1)
    assert followed_numbers == sorted(set(followed_numbers)), "no duplicate lines, in order"
