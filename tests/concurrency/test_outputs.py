"""A child that writes straight into its file, while its supervisor cuts it and others read it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from corral.adapters.output.capped_file import cut_middle, read_cut
from corral.adapters.output.reader import OutputReader
from corral.adapters.output.seal import remove_plain, seal
from tests.support.threads import SECONDS

LINES = 100_000
WRITE = f"""
import sys
for n in range({LINES}):
    sys.stdout.write("%07d a line of it\\n" % n)
"""
LENGTH = len("0000000 a line of it\n")


def numbers(text: bytes) -> list[int]:
    """The numbers of all whole lines. A cut may reach a reader in the middle of one."""
    return [int(line[:7]) for line in text.splitlines() if line.endswith(b" a line of it")]


def test_every_byte_is_kept_or_counted_while_output_is_capped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "output"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    over = threading.Event()
    followed: list[bytes] = []

    def follow() -> None:
        followed.extend(piece.text for piece in OutputReader(tmp_path).follow(over=over.is_set))

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
    kept = numbers(OutputReader(tmp_path).bytes(0, index.bytes))
    assert len(kept) * LENGTH == index.bytes - index.dropped_bytes
    assert (kept[0], kept[-1]) == (0, LINES - 1)
    assert kept == sorted(set(kept))
    seen = numbers(b"".join(followed))
    assert (seen[0], seen[-1]) == (0, LINES - 1)
    assert seen == sorted(set(seen)), "no line twice, none out of order"
