"""Run documentation pages as scripts: run each command and compare its output.

    ```console                        commands and their output
    $ corral ps                       a line that starts with `$ ` is a command
    $ corral show nope   # exits 3    exit code 0, unless the comment says otherwise
    run_…  completed                  `…` matches anything within a line
    …                                 and, alone, any number of lines
    ```
    ```sh                             commands without output, one per line
    ```python                         a program
    ```yaml title="plan.yaml"         a file, written to the working directory
    <!-- given                        hidden set-up commands, one per line
    -->

A command without output below it may print anything. Blocks in other languages are ignored.
"""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.command_server import run_command
from tests.support.home import kill_processes, processes_with_variable

_BLOCK = re.compile(
    r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$|^<!-- given\n(.*?)^-->$", re.M | re.S
)
_CODE = re.compile(r"#\s*exits (\d+)\b")
# One `corral` command that needs no shell: no variables, globs or pipes.
_WORD = r"""(?:[\w@%+=:,./…-]|'[^'\n]*'|"[^"$`\\\n!]*")+"""
_SIMPLE = re.compile(rf"corral((?:\s+{_WORD})*)\s*(?:\s#.*)?")
_CHANGES_VARIABLES = re.compile(r"\b(export|source|unset)\b")
_END = "-- end of the command:"
_SECONDS = 240.0  # kills a hanging command


class Step(NamedTuple):
    line: int
    command: str
    shown: list[str]

    @property
    def code(self) -> int:
        result = _CODE.search(self.command)
        return int(result[1]) if result else 0


class NewFile(NamedTuple):
    name: str
    text: str


def read(page: Path) -> Iterator[Step | NewFile]:
    """Return the steps of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        language, title, body, value = block.groups()
        line = text.count("\n", 0, block.start()) + 2
        if value is not None:
            yield from (Step(line, command, []) for command in value.splitlines())
        elif title is not None:
            yield NewFile(title, body)
        elif language == "console":
            yield from _steps(line, body.splitlines())
        elif language == "sh":
            yield from _lines(line, body)
        elif language == "python":
            yield Step(line, f"python - <<'END'\n{body}END", [])


def _lines(first: int, body: str) -> Iterator[Step]:
    """Return the commands of a block without output; a backslash continues a line."""
    for item in re.finditer(r"^(?! *(?:#|$))(?:\\\n|[^\n])+", body, re.M):
        yield Step(first + body.count("\n", 0, item.start()), item[0], [])


def _steps(first: int, lines: list[str]) -> Iterator[Step]:
    step: Step | None = None
    for number, line in enumerate(lines, first):
        if line.startswith("$ "):
            if step is not None:
                yield step
            step = Step(number, line[2:], [])
        elif step is None:
            raise ValueError(f"line {number}: output of no command: {line}")
        elif line.startswith("> ") and not step.shown:
            step = step._replace(command=f"{step.command}\n{line[2:]}")
        else:
            step.shown.append(line)
    if step is not None:
        yield step


def matches_output(shown: list[str], output: list[str]) -> bool:
    """Return whether the output is what the page shows, ignoring column widths."""
    lines = []
    for line in shown:
        pattern = "[^\n]*".join(re.escape(part) for part in re.split(" ?… ?", _narrow(line)))
        lines.append(r"(?:[^\n]*\n)*" if line.strip() == "…" else pattern + r"\n")
    return (
        re.fullmatch("".join(lines), "".join(f"{_narrow(line)}\n" for line in output)) is not None
    )


def _narrow(line: str) -> str:
    return " ".join(line.split())


class Shell:
    """One shell for a whole page, so that `cd` and `export` affect later commands."""

    @classmethod
    def with_empty_home(cls, folder: Path, programs: Path | None = None) -> "Shell":
        """Return a shell in an empty directory and home; `programs` is first on its PATH."""
        home, work = folder / "home", folder / "work"
        home.mkdir()
        work.mkdir()
        (home / ".gitconfig").write_text("[user]\nname = You\nemail = you@example.org\n")
        path = [*([str(programs)] if programs else []), str(Path(sys.executable).parent)]
        return cls(
            work,
            {
                "HOME": str(home),
                "CORRAL_HOME": f"{home}/corral",
                "CORRAL_AGENT_HOME": f"{home}/conversations",
                "PATH": ":".join([*path, os.environ["PATH"]]),
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "USER": "you",
                "LANG": "C.UTF-8",
                "NO_COLOR": "1",
            },
        )

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._directory = str(folder)
        self._environment = dict(environment)
        self._mark = f"CORRAL_HOME={environment['CORRAL_HOME']}"
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> tuple[int, list[str]]:
        """Return the exit code and the output lines of a command."""
        if simple := _SIMPLE.fullmatch(command.replace("\\\n", " ")):
            process = run_command(
                shlex.split(simple[1]),
                cwd=Path(self._directory),
                env=self._environment,
                timeout=_SECONDS,
                merge_output=True,
            )
            if process is not None:
                lines = process.stdout.decode(errors="replace").splitlines()
                return process.returncode, _trimmed([line.rstrip() for line in lines])
        code, result = self._run_in_bash(command)
        if _CHANGES_VARIABLES.search(command):
            _, variables = self._run_in_bash("env -0 | tr '\\n\\0' '\\0\\n'")
            pairs = (line.replace("\0", "\n").partition("=") for line in variables)
            self._environment = {name: value for name, _, value in pairs}
        return code, result

    def _run_in_bash(self, command: str) -> tuple[int, list[str]]:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(
            f"{{ {command}\n}} </dev/null\nprintf '\\n%s %s %s\\n' '{_END}' $? \"$PWD\"\n"
        )
        self._bash.stdin.flush()
        results: list[str] = []
        timer = threading.Timer(_SECONDS, self._end_all)
        timer.start()
        try:
            for line in self._bash.stdout:
                if line.startswith(_END):
                    code, self._directory = line.removeprefix(_END).strip().split(" ", 1)
                    return int(code), _trimmed(results)
                results.append(line.rstrip())
        finally:
            timer.cancel()
        raise AssertionError(f"the shell ended in the middle of: {command}\n" + "\n".join(results))

    def write(self, file: NewFile) -> None:
        (self._folder / file.name).write_text(file.text, encoding="utf-8")

    def close(self) -> None:
        """End the shell and all processes that it started."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.close()
        self._bash.wait(60)
        self._bash.stdout.close()
        self._end_all()

    def _end_all(self) -> None:
        kill_processes(lambda: processes_with_variable(self._mark))


def _trimmed(lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines.pop()
    return lines
