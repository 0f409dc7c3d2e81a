"""Outputs of runs: begin, progress, seal, read, follow, delete, retention, and the log."""

from pathlib import Path

import pytest

from corral.adapters.output.reader import OutputFiles
from corral.adapters.output.seal import seal
from corral.adapters.processes.process import host
from corral.api import Corral
from corral.config import run_folder
from corral.domain.outputs import ops
from corral.kernel.clock import DAY, MINUTE, ManualClock
from corral.kernel.errors import Conflict, IllegalMove, Invalid, NotFound, Refused
from corral.kernel.exit_status import ExitStatus
from corral.services.runs.outputs import read_output_tail
from tests.support.errors import because
from tests.support.output_samples import KEY, follow_all
from tests.support.run_factories import add_run, running
from tests.support.store import list_events, raises_without_change, read, rows, unchanged, walk

RUN = "run_1"


def begin_output(store: Corral, data: bytes = b"one\ntwo\n", run: str = RUN) -> Path:
    """Begin the output of a run in its folder on this host."""
    folder = run_folder(run)
    folder.mkdir(parents=True, mode=0o700)
    (folder / "output").write_bytes(data)
    store.internal.outputs.begin(run, host=host(), folder=str(folder))
    return folder


def test_begin_is_idempotent(store: Corral) -> None:
    output = store.internal.outputs.begin(RUN, host="a", folder="/x", mode="pty")
    with unchanged(store):
        assert store.internal.outputs.begin(RUN, host="a", folder="/x", mode="pty") == output
    assert (output.state, output.bytes, output.dropped_bytes, output.mode) == ("open", 0, 0, "pty")
    with raises_without_change(store, Conflict) as caught:
        store.internal.outputs.begin(RUN, host="b", folder="/x")
    assert caught.value.details["reason"] == "on_other_host"


def test_lost_output_is_reopened_on_another_host(store: Corral) -> None:
    store.internal.outputs.begin(RUN, host="a", folder="/x")
    store.internal.outputs.lose(RUN, "the machine is gone")
    output = store.internal.outputs.begin(RUN, host="b", folder="/y")
    assert (output.state, output.host, output.folder, output.reason) == ("open", "b", "/y", None)
    assert list_events(store, RUN) == ["output.begin", "output.lose", "output.reopen"]


def test_progress_is_recorded_without_an_event_while_open(store: Corral) -> None:
    begin_output(store)
    events = list_events(store)
    assert store.internal.outputs.record_progress(RUN, 500) is True
    assert store.outputs.get(RUN).bytes == 500
    assert list_events(store) == events
    store.internal.outputs.seal_folder(RUN)
    with unchanged(store):
        assert store.internal.outputs.record_progress(RUN, 900) is False
        assert store.internal.outputs.record_progress("run_unknown", 1) is False
    with raises_without_change(store, Invalid):
        store.internal.outputs.record_progress(RUN, -1)


def test_sealing_writes_sealed_files_and_records_them(store: Corral, clock: ManualClock) -> None:
    folder = begin_output(store, b"token " + KEY + b"\nsecond\n")
    clock.advance(MINUTE)
    row = store.internal.outputs.seal_folder(RUN)
    assert (row.state, row.lines, row.utf8, row.dropped_bytes) == ("sealed", 2, 1, 0)
    assert row.bytes == len(KEY) + 14
    assert row.head == row.tail == "token [redacted]\nsecond\n"
    assert row.sealed_at == clock.now()
    assert sorted(file.name for file in folder.iterdir()) == ["output.zst"]
    assert store.internal.outputs.index(RUN).sha256 == row.sha256
    assert store.outputs.open(RUN).lines(0, 5) == [b"token [redacted]", b"second"]
    assert rows(store, "SELECT count(*) FROM output_chunks") == [
        (1 if store.outputs._database.stores_output else 0,)
    ]


def test_sealing_is_idempotent(store: Corral) -> None:
    folder = begin_output(store)
    output = store.internal.outputs.seal_folder(RUN)
    with unchanged(store):
        assert store.internal.outputs.seal_folder(RUN) == output
        assert store.internal.outputs.seal(RUN, store.internal.outputs.index(RUN)) == output
    (folder / "output").write_bytes(
        b"one\ntwo\n"
    )  # as if the process had crashed before this file was removed
    store.internal.outputs.seal_folder(RUN)
    assert not (folder / "output").exists()


def test_stderr_is_stored_separately_and_sealed(store: Corral) -> None:
    folder = begin_output(store, b"{}\n")
    (folder / "stderr").write_bytes(b"warning: x\n")
    row = store.internal.outputs.seal_folder(RUN)
    assert row.stderr_bytes
    assert sorted(file.name for file in folder.iterdir()) == ["output.zst", "stderr.zst"]
    assert store.outputs.open(RUN, stream="stderr").tail(5) == [b"warning: x"]


def test_shared_store_serves_outputs_without_the_files(store: Corral) -> None:
    folder = begin_output(store, b"".join(b"line %d\n" % n for n in range(200_000)))
    (folder / "stderr").write_bytes(b"oops\n")
    store.internal.outputs.seal_folder(RUN)
    for file in folder.iterdir():
        file.unlink()
    if not store.outputs._database.stores_output:
        with pytest.raises(NotFound, match="files are missing"):
            store.outputs.open(RUN)
        assert store.internal.outputs.seal_folder(RUN).state == "lost"
        return
    with unchanged(store):
        reader = store.outputs.open(RUN)
        assert reader.lines(123_456, 2) == [b"line 123456", b"line 123457"]
        assert reader.tail(1) == [b"line 199999"]
        assert reader.bytes(0, 7) == b"line 0\n"
        assert next(reader.follow(7, is_finished=lambda: True)).text.startswith(b"line 1\nline 2\n")
        assert store.outputs.open(RUN, stream="stderr").tail(1) == [b"oops"]
        assert store.internal.outputs.seal_folder(RUN).state == "sealed"


def test_end_of_an_output_is_read_without_the_rest(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_output(store, b"".join(b"line %d\n" % n for n in range(200_000)))
    monkeypatch.setattr(OutputFiles, "follow", None)
    for _ in range(2):
        assert read_output_tail(store._database, RUN, 12) == b"line 199999\n"
        assert len(read_output_tail(store._database, RUN, 10_000_000)) == 2_288_890
        store.internal.outputs.seal_folder(RUN)
    with pytest.raises(NotFound):
        read_output_tail(store._database, "run_unknown", 12)


def test_sealed_file_of_several_chunks_is_read_completely(store: Corral) -> None:
    import os

    data = os.urandom(2_500_000)
    folder = begin_output(store, data)
    store.internal.outputs.seal_folder(RUN)
    if store.outputs._database.stores_output:
        assert rows(store, "SELECT count(*) FROM output_chunks") == [(3,)]
        (folder / "output.zst").unlink()
    assert store.outputs.open(RUN).bytes(0, len(data)) == data


def test_output_on_another_host_is_refused_with_its_host(store: Corral) -> None:
    store.internal.outputs.begin(RUN, host="far-away", folder="/x")
    with raises_without_change(store, Refused) as caught:
        store.outputs.open(RUN)
    assert "far-away" in caught.value.message
    with raises_without_change(store, Refused) as caught:
        store.internal.outputs.seal_folder(RUN)
    assert "far-away" in caught.value.message


def test_output_with_a_missing_folder_is_lost(store: Corral) -> None:
    folder = begin_output(store)
    (folder / "output").unlink()
    row = store.internal.outputs.seal_folder(RUN)
    assert (row.state, row.reason) == ("lost", f"there is no output in {folder}")
    with pytest.raises(NotFound, check=because("files_missing")):
        store.outputs.open(RUN)
    begin_output(store, run="run_2")
    (run_folder("run_2") / "output").unlink()
    run_folder("run_2").rmdir()
    assert store.internal.outputs.seal_folder("run_2").state == "lost"


def test_missing_output_names_the_next_step(store: Corral) -> None:
    folder = begin_output(store)
    (folder / "output").rename(folder / "moved")
    with raises_without_change(store, NotFound) as caught:
        store.outputs.open(RUN)
    assert str(folder) in caught.value.message
    assert f"`corral show {RUN}`" in caught.value.message
    (folder / "moved").rename(folder / "output")
    store.internal.outputs.seal_folder(RUN)
    with raises_without_change(store, NotFound) as caught:
        store.outputs.open(RUN, stream="stderr")
    assert caught.value.details["reason"] == "files_missing"
    store.internal.outputs.lose(RUN, "the disk failed")
    (folder / "output.zst").unlink()
    with raises_without_change(store, NotFound) as caught:
        store.outputs.open(RUN)
    assert "the disk failed. Its head and tail are stored: `corral db sql" in str(caught.value)
    store.outputs.delete(RUN)
    with raises_without_change(store, NotFound) as caught:
        store.outputs.open(RUN)
    assert caught.value.details["reason"] == "deleted"


def test_lost_output_that_reappears_is_sealed(store: Corral) -> None:
    begin_output(store)
    store.internal.outputs.lose(RUN, "the machine is gone")
    assert store.internal.outputs.seal_folder(RUN).state == "sealed"
    assert store.outputs.get(RUN).reason is None


def test_following_continues_across_sealing(store: Corral) -> None:
    folder = begin_output(store, b"one\n")
    reader = store.outputs.open(RUN)
    follower = reader.follow(
        is_finished=lambda: store.outputs.get(RUN).state != "open", wait=lambda seconds: None
    )
    assert next(follower).text == b"one\n"
    with (folder / "output").open("ab") as file:
        file.write(b"two\n")
    assert next(follower).text == b"two\n"
    with (folder / "output").open("ab") as file:
        file.write(b"three\n")
    store.internal.outputs.seal_folder(RUN)
    assert b"".join(piece.text for piece in follower) == b"three\n"
    assert reader.lines(0, 9) == [b"one", b"two", b"three"]
    assert follow_all(store.outputs.open(RUN)) == b"one\ntwo\nthree\n"


def test_sealed_output_rejects_chunks(store: Corral) -> None:
    begin_output(store)
    store.internal.outputs.add_chunk(RUN, 0, b"early")
    store.internal.outputs.add_chunk(RUN, 0, b"again")
    assert store.internal.outputs.chunk(RUN, 0) == b"again"
    store.internal.outputs.add_chunk(RUN, 7, b"past the end")
    store.internal.outputs.seal_folder(RUN)
    with pytest.raises(NotFound):
        store.internal.outputs.chunk(RUN, 7)
    with raises_without_change(store, Conflict):
        store.internal.outputs.add_chunk(RUN, 0, b"late")
    with raises_without_change(store, NotFound):
        store.internal.outputs.add_chunk("run_unknown", 0, b"x")


def test_output_of_a_live_run_cannot_be_deleted(store: Corral) -> None:
    run = running(store)
    with raises_without_change(store, Conflict) as caught:
        store.outputs.delete(run.id)
    assert "Stop it first" in caught.value.message
    store.internal.runs.record_end(run, ExitStatus(exit_code=0))
    assert store.outputs.delete(run.id).state == "deleted"


@pytest.mark.parametrize("data", [b"", b"x" * (1024 * 1024 + 1)])
def test_invalid_chunk_is_rejected(store: Corral, data: bytes) -> None:
    begin_output(store)
    with raises_without_change(store, Invalid):
        store.internal.outputs.add_chunk(RUN, 0, data)
    with raises_without_change(store, Invalid):
        store.internal.outputs.add_chunk(RUN, 0, b"x", stream="other")


def test_sealed_output_is_not_replaced_by_another_text(store: Corral, tmp_path: Path) -> None:
    begin_output(store)
    store.internal.outputs.seal_folder(RUN)
    (tmp_path / "output").write_bytes(b"something else")
    with raises_without_change(store, IllegalMove):
        store.internal.outputs.seal(RUN, seal(tmp_path))


def test_deleting_removes_rows_files_and_log_with_events(store: Corral, clock: ManualClock) -> None:
    folder = begin_output(store)
    store.outputs.log(RUN, "info", "hello")
    store.internal.outputs.seal_folder(RUN)
    row = store.outputs.delete(RUN)
    assert (row.state, row.head, row.tail, row.deleted_at) == ("deleted", None, None, clock.now())
    assert not folder.exists()
    assert store.outputs.get(RUN).folder is None
    assert rows(store, "SELECT count(*) FROM output_chunks") == [(0,)]
    assert store.outputs.log_lines(RUN).items == []
    with unchanged(store):
        store.outputs.delete(RUN)
        with pytest.raises(NotFound, check=because("deleted")):
            store.outputs.open(RUN)
    assert store.internal.outputs.delete_record(RUN) is True
    with pytest.raises(NotFound):
        store.outputs.get(RUN)
    assert list_events(store, RUN)[-3:] == [
        "output.delete",
        "output.clear_files",
        "output.delete_record",
    ]


def test_files_on_another_host_are_left_to_that_host(store: Corral) -> None:
    store.internal.outputs.begin(RUN, host="far-away", folder="/srv/runs/run_1")
    store.outputs.delete(RUN)
    assert store.outputs.get(RUN).folder == "/srv/runs/run_1"
    assert store.internal.outputs.delete_record(RUN) is False
    assert [row.id for row in read(store, lambda tx: ops.list_uncleared(tx, host="far-away"))] == [
        RUN
    ]


def test_only_the_folder_of_the_run_is_removed(store: Corral, tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    directory.mkdir()
    (directory / "file").write_text("x")
    store.internal.outputs.begin(RUN, host=host(), folder=str(directory))
    store.outputs.delete(RUN)
    link = tmp_path / "runs" / "run_2"
    link.parent.mkdir()
    link.symlink_to(directory)
    store.internal.outputs.begin("run_2", host=host(), folder=str(link))
    store.outputs.delete("run_2")
    assert (directory / "file").read_text() == "x"


def test_old_outputs_are_deleted_by_their_retention(store: Corral, clock: ManualClock) -> None:
    old_folder = begin_output(store)
    store.internal.outputs.seal_folder(RUN)
    clock.advance(90 * DAY)
    begin_output(store, run="run_2")
    store.internal.outputs.seal_folder("run_2")
    begin_output(store, run="run_3")
    clock.advance(1)
    with unchanged(store):
        assert {p.table: p.rows for p in store.db.prune(dry_run=True)}["outputs"] == 1
    assert {p.table: p.rows for p in store.db.prune()}["outputs"] == 1
    assert store.outputs.get(RUN).state == "deleted"
    assert not old_folder.exists()
    assert store.outputs.get("run_2").state == "sealed"
    clock.advance(365 * DAY)
    store.db.prune()
    assert store.outputs.get("run_3").state == "open", "open outputs are never pruned"


def test_open_outputs_of_a_host_are_paginated(store: Corral) -> None:
    for n in range(5):
        store.internal.outputs.begin(f"run_{n}", host="a", folder="/x")
    store.internal.outputs.begin("run_other", host="b", folder="/x")
    store.internal.outputs.lose("run_2", "gone")
    outputs = walk(lambda **page: store.internal.outputs.list_unsealed(host="a", **page))
    assert [row.id for row in outputs] == ["run_0", "run_1", "run_3", "run_4"]


# -- the log ------------------------------------------------------------------------------------


def test_log_is_read_after_a_line_and_by_level(store: Corral) -> None:
    for level in ("debug", "info", "warn", "error"):
        store.outputs.log(
            RUN, level, f"{level} message", metadata={"n": [1, None]}, source="supervisor"
        )
    store.outputs.log("run_other", "error", "of another run")
    page = store.outputs.log_lines(RUN, limit=3)
    assert [line.level for line in page.items] == ["debug", "info", "warn"]
    assert page.items[0].metadata == {"n": [1, None]}
    assert page.items[0].source == "supervisor"
    next_page = store.outputs.log_lines(RUN, after=page.next)
    assert [line.message for line in next_page.items] == ["error message"]
    assert store.outputs.log_lines(RUN, after=next_page.next).next == next_page.next
    for count, level in enumerate(("error", "warn", "info", "debug"), 1):
        assert len(store.outputs.log_lines(RUN, level=level).items) == count
    with raises_without_change(store, Invalid):
        store.outputs.log_lines(RUN, level="fatal")
    with raises_without_change(store, Invalid):
        store.outputs.log(RUN, "fatal", "x")


def test_any_message_can_be_logged(store: Corral) -> None:
    line = store.outputs.log(RUN, "info", "a\0b \ud800 ü")
    assert line.message == "a\ufffdb ? ü"
    truncated = store.outputs.log(RUN, "info", "ü" * 100_000)
    assert len(truncated.message.encode()) <= 64 * 1024
    assert truncated.message.endswith("bytes here]")
    assert store.outputs.log(RUN, "info", "").message == ""
    assert [line.metadata for line in store.outputs.log_lines(RUN).items] == [None] * 3


def test_secrets_are_redacted_from_the_log(store: Corral) -> None:
    key = KEY.decode()
    line = store.outputs.log(RUN, "info", f"token {key}", metadata={"a": f"x {key}", "b": 1})
    assert line.message == "token [redacted]"
    assert line.metadata == {"a": "x [redacted]", "b": 1}
    split_key = {
        "a": ["-----BEGIN PRIVATE KEY-----\nMIIB"],
        "b": "MIIB\n-----END PRIVATE KEY-----",
    }
    assert store.outputs.log(RUN, "info", "x", metadata=split_key).metadata == {"redacted": True}


def test_deleting_a_run_without_an_output_deletes_its_log(store: Corral) -> None:
    from corral.domain.outputs import ops

    store.outputs.log(RUN, "info", "hello")
    begin_output(store, run="run_2")
    with store.transaction() as tx:
        assert ops.delete_of_run(tx, RUN, "its run was deleted") is None
        output = ops.delete_of_run(tx, "run_2", "its run was deleted")
    assert output is not None
    assert (output.state, output.reason) == ("deleted", "its run was deleted")
    assert store.outputs.log_lines(RUN).items == []
    assert store.internal.outputs.clear_deleted() == 1
    assert not run_folder("run_2").exists()


def test_log_many_is_atomic(store: Corral) -> None:
    assert store.internal.outputs.log_many(RUN, [("info", "a", None), ("warn", "b", {"x": 1})]) == 2
    with raises_without_change(store, Invalid):
        store.internal.outputs.log_many(RUN, [("info", "c", None), ("fatal", "d", None)])
    assert [line.message for line in store.outputs.log_lines(RUN).items] == ["a", "b"]


def test_log_line_wakes_followers_without_an_event(store: Corral) -> None:
    with store.listening() as listener:
        store.outputs.log(RUN, "info", "hello")
        assert listener.wait(10)
    assert list_events(store) == []


def test_log_line_numbers_are_never_reused(store: Corral) -> None:
    first_run, second_run = add_run(store, "completed"), add_run(store, "completed")
    for run in (first_run, second_run):
        store.internal.outputs.begin(run, host="other-host", folder=f"/srv/{run}")
    ids = [
        store.outputs.log(run, "info", "private").id for run in (first_run, second_run, second_run)
    ]
    store.runs.delete(second_run)
    assert rows(
        store, "SELECT run_id, message FROM log_lines WHERE run_id <> :id", id=first_run
    ) == ([("", "")])
    assert store.outputs.log(first_run, "info", "later").id not in ids
    store.runs.delete(first_run)
    assert rows(store, "SELECT count(*) FROM log_lines") == [(1,)], (
        "the newest row is kept for its number"
    )
