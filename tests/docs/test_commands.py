"""The commands in the blocks of the pages are run, in the page's order, in one home for each page.

Pages are for readers: `qst_01…` stands for the id that a command before it printed, `claude`
for whichever agent CLI there is. What stands for what, and what must be there first, is said here
for each page; so is what is not run, and why.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_claims import DOCS, parted
from tests.support.cli import Cli
from tests.support.keeping import end_all, with_variable

ID = re.compile(r"\b([a-z]{3})_[0-9a-z]{26}\b")
SHORT = re.compile(r"\b([a-z]{3})_0(\d)…")

UP = r"corral (up|down)\b"
"""The guide starts and ends daemons."""


class Page(NamedTuple):
    before: tuple[str, ...] = ()
    """What a reader has done, or would do first."""
    instead: tuple[tuple[str, str], ...] = ()
    """What stands for what in its commands."""
    left_out: tuple[str, ...] = ()
    """What is not run: it needs another machine, a server, or is run by the guide."""


PAGES = {
    "daemon.md": Page(
        instead=((r'"train it"', "-- true"), (r"\./long|make release", "true")),
        left_out=(UP, "--host build-2"),
    ),
    "locks.md": Page(
        before=("corral project register .",),
        instead=(("--timeout 10m", "--timeout 1s"), (r"corral commit", "corral commit src")),
    ),
    "runs.md": Page(
        before=("corral project register .",),
        instead=(
            # The bundled agent reads its prompt as a script; a person's terminal is not needed.
            (r'"(fix the failing test|…|review the last commit)"', '"say done"'),
            (r"--agent (claude|gemini)( --yes edit| --acp)?", "--agent scripted"),
            (r"--provider claude --model opus", "--provider scripted"),
            (r"@review\.md", "carefully"),
            (r"make test|\./long", "true"),
            (r'^corral run "', 'corral run --agent scripted "'),
            (r"^corral run (?!-d)", "corral run -d "),
        ),
    ),
    "running.md": Page(
        before=("corral project register .",),
        left_out=(UP, "corral db move"),
        instead=((r"~/harbour ", ". "),),
    ),
    "talking.md": Page(
        before=(
            "corral project register .",
            "corral agent create ada --command true --role builder",
            'corral decision record "Rename it" --confirm',
        ),
        instead=(
            (r"--deadline 2h --fallback no", "--no-wait"),
            (r" --deadline 1h --wait$", ""),
            (r"answer qst_01…", "answer qst_02…"),  # the one that anybody may answer
            (r"react build 7", "react build 1"),
            (r'"…"', '"make needs version 5"'),
        ),
    ),
}

ELSEWHERE = {
    "races.md": "guide/first-race.md runs a race by the same commands",
    "team.md": "guide/first-team.md runs a team by the same commands",
    "gateway.md": "guide/first-chat.md talks to an agent; the rest needs a chat server",
}


def commands(page: Path) -> Iterator[str]:
    """The command lines in the shell blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:sh|console)?\n(.*?)^```$", text, re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"\s+#\s.*", "", line.removeprefix("$ ").strip())
            parts = parted(line)
            if any(part.count('"') % 2 for part in parts):  # cut within what is quoted
                parts = [line]
            yield from (part for part in parts if part.startswith("corral "))


def test_every_page_with_commands_is_run_here_or_it_is_said_where() -> None:
    found = {page.name for page in DOCS.glob("*.md") if any(commands(page))}
    assert found == PAGES.keys() | ELSEWHERE.keys()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "work"
    (folder / "src" / "parser").mkdir(parents=True)
    (folder / "src" / "parser" / "grammar.py").write_text("new = True\n")
    for words in (["init", "-q"], ["config", "user.name", "You"], ["config", "user.email", "y@x"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    monkeypatch.chdir(folder)
    yield folder
    end_all(lambda: with_variable(f"CORRAL_HOME={tmp_path}/home"))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_commands_of_a_page_do_what_they_say(
    name: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, cli = PAGES[name], Cli(capsys)
    seen: dict[str, list[str]] = {}
    untrue = []
    for written in (*page.before, *commands(DOCS / name)):
        if any(re.search(pattern, written) for pattern in page.left_out):
            continue
        command = written
        for pattern, real in page.instead:
            command = re.sub(pattern, real, command)
        command = SHORT.sub(lambda short: seen[short[1]][-int(short[2])], command)
        said = cli(*shlex.split(command)[1:])
        if said.code != 0:
            untrue.append(f"{written}\n  as {command}\n  [{said.code}] {said.err}")
        for found in ID.finditer(said.out):
            ids = seen.setdefault(found[1], [])
            if found[0] not in ids:
                ids.append(found[0])
    assert not untrue, "\n".join([f"docs/{name} has what does not work:", *untrue])
