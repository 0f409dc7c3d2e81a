"""Process marks of a run survive an empty environment and a new session."""

import os
import subprocess
import sys

import pytest

from corral.adapters.processes import process_marks

pytestmark = pytest.mark.skipif(not process_marks.is_supported(), reason="Linux alone has it")
ONE, TWO = process_marks.run_mark("run_1"), process_marks.run_mark("run_2")


def read_marks_after(script: str, *wanted: str, user: int | None = None) -> list[bool]:
    """Run a script in a process and return which marks another process reads from it."""
    module = "corral.adapters.processes.process_marks"
    code = f"from {module} import *\n{script}\nprint(flush=True); input()"
    setuid = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **setuid,  # type: ignore[call-overload]
    ) as child:
        child.stdout.readline()
        results = [process_marks.is_marked(child.pid, mark) for mark in wanted]
        child.communicate(b"\n")
    assert child.returncode == 0
    return results


def test_process_has_the_mark_that_was_set() -> None:
    assert read_marks_after("pass", ONE) == [False]
    assert read_marks_after(f"mark_process({ONE!r})", ONE, TWO) == [True, False]


def test_nested_run_has_its_own_mark_without_privileges() -> None:
    drop = "import os, resource; os.setgid(65534); os.setuid(65534)" if os.getuid() == 0 else "pass"
    script = f"{drop}; mark_process({ONE!r}); leave_run(); mark_process({TWO!r})"
    assert read_marks_after(script, ONE, TWO) == [False, True]
    assert read_marks_after(f"{drop}; mark_process({ONE!r}); leave_run()", ONE, TWO) == [
        False,
        False,
    ]


def test_child_with_an_empty_environment_keeps_the_mark() -> None:
    script = (
        f"mark_process({ONE!r})\n"
        "import os, sys\n"
        "os.setsid() if os.getpid() != os.getpgid(0) else None\n"
        "code = 'print(flush=True); input()'\n"
        "os.execve(sys.executable, [sys.executable, '-S', '-c', code], {})"
    )
    assert read_marks_after(script, ONE) == [True]


def test_unreadable_process_has_no_mark() -> None:
    assert not process_marks.is_marked(1 << 30, ONE)
