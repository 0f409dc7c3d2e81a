"""Outputs on a full disk, in deleted files, and with little memory."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import corral
from corral.adapters.output.reader import OutputFiles
from corral.adapters.output.seal import remove_plain, seal
from corral.adapters.processes.process import host
from corral.kernel import open_files
from corral.kernel.errors import NotFound, Refused
from tests.support.errors import because
from tests.support.full_disk import fill
from tests.support.output_samples import follow_all
from tests.support.processes import Child

RUN = "run_1"


def test_full_disk_while_sealing_leaves_the_output_unchanged(
    small_disk: Path, tmp_path: Path
) -> None:
    folder = small_disk / "runs" / RUN
    folder.mkdir(parents=True)
    data = os.urandom(1_500_000) + b"\n"  # otherwise its end may look like the start of a key
    (folder / "output").write_bytes(data)
    fill(small_disk / "ballast")
    with corral.open(tmp_path / "corral.db") as store:
        store.internal.outputs.begin(RUN, host=host(), folder=str(folder))
        with pytest.raises(Refused, check=because("not_sealed", error="No space left on device")):
            store.internal.outputs.seal_folder(RUN)
        assert sorted(file.name for file in folder.iterdir()) == ["output"]
        assert store.outputs.get(RUN).state == "open"
        assert store.outputs.open(RUN).bytes(0, len(data)) == data
        (small_disk / "ballast").unlink()
        assert store.internal.outputs.seal_folder(RUN).state == "sealed"
        assert store.outputs.open(RUN).bytes(0, len(data)) == data


def test_file_size_limit_while_sealing_leaves_the_output_unchanged(
    tmp_path: Path,
) -> None:
    data = os.urandom(500_000)
    (tmp_path / "output").write_bytes(data)

    def seal_with_limit() -> str:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            seal(tmp_path)
        except Refused as refused:
            return str(refused.details["reason"])
        return "sealed"

    with Child(seal_with_limit) as child:
        assert child.result() == "not_sealed"
    assert [file.name for file in tmp_path.iterdir()] == ["output"]
    assert seal(tmp_path).bytes == 500_000


def test_deleted_plain_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_bytes(b"one line\n" * 100_000)
    output = OutputFiles(tmp_path)
    follower = output.follow(is_finished=lambda: False, wait=lambda seconds: pytest.fail("waits"))
    first = next(follower)
    path.unlink()
    assert len(first.text) + sum(len(piece.text) for piece in follower) == 900_000
    with pytest.raises(NotFound):
        output.tail(1)
    assert follow_all(output) == b""


def test_deleted_sealed_file_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "output").write_bytes(b"one line\n" * 100_000)
    remove_plain(tmp_path, seal(tmp_path))
    output = OutputFiles(tmp_path)
    assert output.lines(5, 1) == [b"one line"]
    (tmp_path / "output.zst").unlink()
    assert output.lines(99_999, 2) == [b"one line"]


def test_file_truncated_while_sealing_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_bytes(b"x" * 500_000)

    def shorten(moment: str) -> None:
        os.truncate(path, 100)

    with pytest.raises(Refused, check=because("not_sealed")):
        seal(tmp_path, probe=shorten)
    assert seal(tmp_path).bytes == 100


@pytest.mark.parametrize(
    "plant",
    [
        Path.mkdir,
        lambda path: os.mkfifo(path),
        lambda path: path.symlink_to("/etc/passwd"),
    ],
    ids=["folder", "pipe", "link"],
)
def test_special_file_is_not_an_output(tmp_path: Path, plant: Callable[[Path], object]) -> None:
    """An agent may plant a special file: it is neither waited for nor followed."""
    plant(tmp_path / "output")
    with pytest.raises(NotFound):
        seal(tmp_path)


MEMORY = """
import sys
from collections.abc import Callable
from pathlib import Path
import corral, corral.api.outputs, corral.domain.outputs.ops, apsw
from corral.adapters.output.seal import seal
with corral.open(Path(sys.argv[1]) / "corral.db") as store:
    store.internal.outputs.begin("run_1", host="h", folder="/x")
def peak():
    return next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
index = seal(Path(sys.argv[1]))
print(before, peak(), index.bytes)
"""


def test_sealing_needs_little_memory_for_any_file_size(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("the memory of a process cannot be read on this system")
    from tests.support.output_samples import log_text

    text = log_text(1_000_000)
    used = []
    for times in (1, 15):
        (tmp_path / "output").write_bytes(text * times)
        result = subprocess.run(
            [sys.executable, "-c", MEMORY, str(tmp_path)],
            capture_output=True,
            check=True,
            text=True,
        )
        before, after, size = map(int, result.stdout.split())
        assert size == len(text) * times
        print(f"{size:,} bytes: {before:,} KiB before, {after:,} KiB after")
        used.append(after - before)
        (tmp_path / "output.zst").unlink()
    assert used[1] - used[0] < 2_000
    assert used[1] < 8_000


def test_output_that_cannot_be_opened_is_not_reported_as_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "output"
    output.write_text("some output")
    status = output.stat()
    monkeypatch.setattr(open_files, "IN_USE", {(status.st_dev, status.st_ino)})
    with pytest.raises(Refused, check=because("not_sealed")):
        seal(tmp_path)
    with pytest.raises(OSError, match="is a Corral store"):
        OutputFiles(tmp_path).exists()
    monkeypatch.undo()
    assert seal(tmp_path).bytes == len("some output")
