"""Checks: exit codes, output, timeouts, and clean-up of their processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corral.adapters.sandbox import checks, sandbox
from corral.adapters.sandbox.checks import TIMEOUT_EXIT_CODE, run_check
from corral.adapters.sandbox.sandbox import SandboxKind
from tests.support.home import is_alive, wait_until

FAR = 3_600_000
# A process that leaves its parent, session and environment, and ignores signals.
DETACHED_CHILD = (
    "setsid env -i /bin/sh -c "
    '\'trap "" TERM; echo $$ > "{file}"; while :; do sleep 1; done\' >/dev/null 2>&1 &'
    ' while ! [ -s "{file}" ]; do sleep 0.01; done'
)


def read_pid(file: Path) -> int:
    return int(
        wait_until(lambda: file.exists() and file.read_text().strip(), "the process wrote its pid")
    )


@pytest.mark.parametrize(
    ("command", "code", "printed"),
    [
        ("echo fine", 0, "fine\n"),
        ("echo bad >&2; exit 7", 7, "bad\n"),
        ("kill -9 $$", 137, ""),
        ("exec no-such-program", 127, "not found"),
        ("exec >&- 2>&-; sleep 0.2; exit 3", 3, ""),
        ("pwd", 0, "a folder\n"),
    ],
)
def test_check_returns_exit_code_and_output_like_a_shell(
    tmp_path: Path, command: str, code: int, printed: str
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    ended = run_check(command, str(folder), timeout_ms=FAR)
    assert ended.exit_code == code
    assert printed in ended.output


def test_hanging_check_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout starts after the children have started, however long that takes."""
    child_file, started, read_end = tmp_path / "child", tmp_path / "started", checks._read_end

    def read_end_after_start(pipe: int, child: "subprocess.Popen[bytes]", _: float) -> str:
        wait_until(started.exists, "the check started")
        return read_end(pipe, child, time.monotonic() + 0.7)

    monkeypatch.setattr(checks, "_read_end", read_end_after_start)
    ended = run_check(
        f"trap '' TERM; {DETACHED_CHILD.format(file=child_file)}; "
        f"echo started; : > {started}; sleep 600 & wait",
        str(tmp_path),
        timeout_ms=700,
    )
    assert ended.exit_code == TIMEOUT_EXIT_CODE
    assert "started" in ended.output
    assert "Timed out after 0.7 s." in ended.output
    assert not is_alive(read_pid(child_file))


def test_processes_left_by_a_check_are_killed(tmp_path: Path) -> None:
    escaped = tmp_path / "escaped"
    ended = run_check(
        f"{DETACHED_CHILD.format(file=escaped)}; exit 0", str(tmp_path), timeout_ms=FAR
    )
    assert ended.exit_code == 0
    assert not is_alive(read_pid(escaped))


def test_check_ends_when_its_runner_is_killed(tmp_path: Path) -> None:
    shell_file, child_file = tmp_path / "mine", tmp_path / "escaped"
    command = f"{DETACHED_CHILD.format(file=child_file)}; echo $$ > {shell_file}; sleep 600"
    module = "corral.adapters.sandbox.checks"
    script = f"from {module} import run_check as r\nr({command!r}, '/', timeout_ms=10**6)"
    with subprocess.Popen([sys.executable, "-c", script]) as runner:
        pids = [read_pid(shell_file), read_pid(child_file)]
        assert all(map(is_alive, pids))
        os.kill(runner.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)), "all processes of the check ended")


def test_missing_folder_is_an_error_and_not_a_failed_check(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_check("true", str(tmp_path / "gone"), timeout_ms=FAR)


@pytest.mark.parametrize("kind", [SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK])
def test_sandboxed_check_writes_only_in_its_folder(tmp_path: Path, kind: SandboxKind) -> None:
    trouble = sandbox._probe_kind(kind, network=True).problem
    if trouble is not None:
        pytest.skip(f"{kind} is not available: {trouble}")
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / "deep").mkdir(parents=True)
    ended = run_check(
        f'echo 1 > ../made; echo 2 > "$TMPDIR/x" && cat "$TMPDIR/x"; echo 3 > {outside}',
        str(inside / "deep"),
        timeout_ms=FAR,
        worktree=str(inside),
        sandbox=kind,
    )
    assert ended.output.startswith("2\n")
    assert (inside / "made").read_text() == "1\n"
    assert not outside.exists()
