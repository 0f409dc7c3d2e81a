"""Crashes while an output is sealed, at every step: no byte is lost."""

import os
import signal
from pathlib import Path

import pytest

import corral
from corral.adapters.output.capped_file import CappedWriter
from corral.adapters.output.reader import OutputFiles
from corral.adapters.output.seal import load_index
from corral.adapters.processes.process import host
from corral.api import Corral
from corral.config import run_folder
from tests.crash.harness import FreshUrl, Probe
from tests.support.invariants import check_store
from tests.support.output_samples import KEY, follow_all
from tests.support.processes import Child, run_concurrently
from tests.support.store_urls import wait_until_alone

RUN = "run_1"
SOURCE = b"".join(b"%06d some text\n" % n for n in range(8_000)) + b"the key " + KEY + b"\n"
TEXT = SOURCE.replace(KEY, b"[redacted]")


def prepare(url: str) -> None:
    """Create the files and the row of a run that ended, with stdout and stderr."""
    folder = run_folder(RUN)
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    (folder / "output").write_bytes(SOURCE)
    (folder / "stderr").write_bytes(b"warning\n")
    with corral.open(url) as store:
        store.internal.outputs.begin(RUN, host=host(), folder=str(folder))


def seal_with_probe(probe: Probe, url: str) -> list[str]:
    with corral.open(url, probe=probe) as store:
        store.internal.outputs.seal_folder(RUN, probe=probe)
    return probe.moments


def check_readable(store: Corral) -> None:
    """Check that all output is readable at every step."""
    reader = store.outputs.open(RUN)
    assert reader.bytes(0, len(SOURCE)) == TEXT
    assert reader.tail(1) == [b"the key [redacted]"]
    assert store.outputs.open(RUN, stream="stderr").tail(1) == [b"warning"]


def check_sealed(store: Corral) -> None:
    folder = run_folder(RUN)
    row = store.outputs.get(RUN)
    index = load_index(folder / "output.zst")
    assert index is not None
    assert (row.state, row.sha256, row.bytes) == ("sealed", index.sha256, len(SOURCE))
    assert sorted(file.name for file in folder.iterdir()) == ["output.zst", "stderr.zst"]
    check_readable(store)
    if store.outputs._database.stores_output:
        for file in folder.iterdir():
            file.rename(file.with_suffix(".moved"))
        check_readable(store)


def test_no_byte_is_lost_when_sealing_is_killed_at_any_step(fresh_url: FreshUrl) -> None:
    url = fresh_url()
    prepare(url)
    with Child(lambda: seal_with_probe(Probe(), url)) as child:
        moments = child.result()
    assert {"opened", "frame", "written", "compared", "renamed", "recorded", "removed"} <= {
        *moments
    }
    for number, moment in enumerate(moments):
        url = fresh_url()
        prepare(url)
        with Child(lambda url=url, n=number: seal_with_probe(Probe(kill_at=n), url)) as child:
            assert child.ended_by() is signal.SIGKILL, "the process was not killed"
        wait_until_alone(url)
        try:
            with corral.open(url) as store:
                check_readable(store)
                store.internal.outputs.seal_folder(RUN)
                check_sealed(store)
                check_store(store)
        except BaseException as error:
            error.add_note(f"killed at {moment}, step {number + 1} of {len(moments)}")
            raise


def test_eight_processes_seal_one_output_consistently(url: str) -> None:
    prepare(url)

    def seal() -> str:
        with corral.open(url) as store:
            return str(store.internal.outputs.seal_folder(RUN).sha256)

    assert len({*run_concurrently([seal] * 8)}) == 1
    with corral.open(url) as store:
        check_sealed(store)
        verbs = [event.verb for event in store.events.newest(subject=RUN).items]
        assert verbs.count("seal") <= 1


def test_follower_in_another_process_gets_every_byte_once(url: str) -> None:
    """The output grows, ends and is sealed while the followers read."""
    folder = run_folder(RUN)
    folder.mkdir(parents=True)
    with corral.open(url) as store:
        store.internal.outputs.begin(RUN, host=host(), folder=str(folder))

    def follow() -> bytes:
        with corral.open(url) as store:
            return b"".join(
                piece.text
                for piece in OutputFiles(folder).follow(
                    is_finished=lambda: store.outputs.get(RUN).state != "open"
                )
            )

    def write() -> None:
        with (folder / "output").open("ab", buffering=0) as file:
            for begin in range(0, len(SOURCE), 997):
                file.write(SOURCE[begin : begin + 997])
        with corral.open(url) as store:
            store.internal.outputs.seal_folder(RUN)

    texts = run_concurrently([follow, follow, follow, write])
    assert texts[:3] == [TEXT] * 3


@pytest.mark.parametrize("seed", range(4))
def test_output_of_a_killed_writer_is_kept(tmp_path: Path, seed: int) -> None:
    """The writer records the gap before it frees the disk space."""
    line = b"x" * 99 + b"\n"

    def write() -> None:
        writer = CappedWriter(tmp_path / "output", 300_000)
        while True:
            writer.write(line * (seed + 1) * 7)
            if writer.dropped_bytes > 1_000_000 * (seed + 1):
                os.kill(os.getpid(), signal.SIGKILL)

    with Child(write) as child:
        assert child.ended_by() is signal.SIGKILL
    text = follow_all(OutputFiles(tmp_path))
    lines = text.splitlines(keepends=True)
    assert sum(item == line for item in lines) == len(lines) - 1
    assert sum(b"left out" in item for item in lines) == 1
