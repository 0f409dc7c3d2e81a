"""Run every command block of the documentation, in page order, in an empty home for each page.

`run_01…` stands for the run id that was printed last (`02` for the one before), 7717 for the port
of the daemon, and claude, codex and gemini for the programs in `agents/`. `PAGES` has the set-up
commands and replacements of each page. `NOT_RUN` and `ELSEWHERE` list the commands that are not
run, with the reason.
"""

import io
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from corral.cli.main import COMMANDS, root
from tests.docs.test_claims import DOCS, TOP, WRITTEN, named, resolved
from tests.support.chat_server_stub import ApiRequest, platform
from tests.support.cli_runner import Cli
from tests.support.doc_pages import NewFile, Shell, Step, matches_output, read

AGENTS = Path(__file__).parent / "agents"
TRANSCRIPT = TOP / "tests/fixtures/transcripts/claude.jsonl"
ID = re.compile(r"\b([a-z]{3})_(?:[0-9a-z]{26}|[1-9]\d*)\b")
SHORT = re.compile(r"\b([a-z]{3})_0(\d)…")

LANGUAGES = {"sh", "console", "python", "yaml", "toml", "text"}
"""Languages of blocks. `sh`, `console` and `python` blocks are run; a file has a `title`."""

NOT_RUN = {
    r"^pip (un)?install ": "needs a package index; test_wheel.py installs the wheel",
    r"^make (demo|up|test)\b": "takes minutes or does not exit; a test checks the targets",
    r"^claude mcp add ": "a command of Claude Code; tests/mcp has the server",
    r"from agents import Agent": "needs a model; tests/integrations uses a stub",
    r"builder\.compile\(checkpointer": "needs a graph; tests/integrations has one",
}


GIVEN = (
    "project register .",
    "agent create ada --provider scripted",
    "run --name slow -- true",
)
"""Commands to run before the commands in sentences."""

ELSEWHERE = {
    "corral up --install": "needs a service manager; tests/adapters/test_service_units.py",
    "corral mail ack let_7 --fence 2": "an example; tutorials/first-team.md acknowledges one",
    'corral progress report "half of it" --percent 50 --task login': "in a run; test_cli_tasks.py",
    "corral alert deliver --watch": "does not exit; tests/domain/test_alert_sender.py",
    "corral up --foreground": "does not exit; tests/daemon/test_up.py",
    "corral mcp": "it serves until its input ends; tests/mcp/test_protocol.py",
}
"""Complete commands in sentences that this module does not run."""


UNKNOWN_PRICES = "corral setting set budgets.unknown_prices allow"
"""The fake codex reports no model, so a budget would stop its run: the price is unknown."""


class Page(NamedTuple):
    before: tuple[str, ...] = ()
    """Commands to run before the page."""
    instead: tuple[tuple[str, str], ...] = ()
    """Replacements in the commands of the page: pattern and text."""


REPOSITORY = (
    "git init -q -b main && mkdir src",
    r"printf 'test release:\n\ttrue\n' > Makefile && echo work.txt > src/list",
    "git add -A && git commit -qm Begin",
)


def behind(command: str, listed: str, found: str) -> str:
    """Run a blocking command in the background, and wait until `listed` shows `found`."""
    return f"{{ {command}; }} >/dev/null & until corral {listed} | grep {found}; do sleep 0.3; done"


STARTED = "until corral ps -a --state completed | grep 'stand-up notes'; do sleep 0.5; done"
ADA = "corral agent create ada --provider claude --role builder"

PAGES = {
    "README.md": Page(before=(*REPOSITORY, UNKNOWN_PRICES)),
    "how-to/use-a-sandbox.md": Page(
        before=REPOSITORY,
        instead=((r"chat\.sandbox auto", "chat.sandbox none"),),  # not every machine has one
    ),
    "how-to/schedule-agents.md": Page(
        instead=(
            (r"--in 10m$", "--in 5s"),
            # The scheduled agent must start.
            (r"^corral up$", f"corral up && {STARTED}"),
        ),
    ),
    "how-to/edit-files.md": Page(before=REPOSITORY),
    "how-to/connect-a-chat.md": Page(
        before=("export MATRIX_TOKEN=a-long-word",),
        instead=(
            (r"^corral chat --agent ada", "echo hello | corral chat --agent ada"),
            (r"^corral up", "corral down && corral up"),  # one daemon serves the whole page
        ),
    ),
    "how-to/answer-from-a-chat.md": Page(
        instead=(
            # The second command answers while the first one waits.
            (r"^(corral chat .*deploy please.*)", behind(r"\1", "question list", "Deploy")),
        ),
    ),
    "tutorials/first-run.md": Page(
        instead=(
            # The run ends only after it was listed, also on a slow machine.
            (r"sleep 1; done'$", "while [ ! -e listed ]; do sleep 0.1; done; done'"),
            (r"^corral wait slow$", "touch listed && corral wait slow"),
        ),
    ),
    "reference/http.md": Page(
        before=("corral run -- true", "corral up"),
        instead=(
            (r'token="crl_…"', "token=None"),
            (r"follow\(\)", 'follow("0-0")'),
            (r"^        \.\.\.", "        break"),
        ),
    ),
    "how-to/lock-files.md": Page(
        before=(
            *REPOSITORY,
            "mkdir src/parser && echo 'new = True' > src/parser/grammar.py",
        ),
    ),
    "reference/mcp.md": Page(before=REPOSITORY),
    "how-to/race-attempts.md": Page(
        before=(
            *REPOSITORY,
            UNKNOWN_PRICES,
            "corral agent create reviewer --command 'python -m corral.demo.judge'",
        ),
    ),
    "how-to/maintain-a-store.md": Page(
        before=("mkdir ~/harbour", "cd ~/harbour && corral run -- true && cd ~- && corral up"),
    ),
    "how-to/import-history.md": Page(
        before=(f"mkdir -p ~/.claude/projects/x && cp {TRANSCRIPT} ~/.claude/projects/x/",),
    ),
    "how-to/run-agents.md": Page(
        before=(
            *REPOSITORY,
            "printf '#!/bin/sh\n' > long && chmod +x long && echo Look at the tests. > review.md",
        ),
    ),
    "how-to/questions-and-groups.md": Page(
        before=(
            "corral project register .",
            ADA,
            'corral decision record "Rename it" --confirm',
            "printf '#!/bin/sh\n' > drop && chmod +x drop",
        ),
        instead=(
            # Later commands answer while these wait.
            (r"^(corral ask .*--fallback no).*", behind(r"\1", "question list", "Merge")),
            (r"^(corral decision .* && .*)", behind(r"\1", "decision list", "Drop")),
            (r"react build 7", "react build 1"),
        ),
    ),
    "how-to/run-a-team.md": Page(before=(*REPOSITORY, "echo It grows. > notes.md")),
}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell.of_a_newcomer(tmp_path, AGENTS)
    (tmp_path / "home/.curlrc").write_text("silent\n")  # as it is at a terminal
    yield opened
    opened.close()


class Reader:
    """Runs the commands of a page with placeholders replaced."""

    def __init__(self, shell: Shell, page: Page, world: dict[str, str]) -> None:
        self._shell = shell
        self._page = page
        self._world = world
        self._port = "7717"
        self._seen: dict[str, list[str]] = {}
        self.unused = {pattern for pattern, _ in page.instead}

    def does(self, command: str) -> tuple[int, list[str]]:
        code, result = self._shell.run(self._real(command))
        for line in result:
            self._port = "".join(re.findall(r"http://127\.0\.0\.1:(\d+)", line)[:1]) or self._port
            for item in ID.finditer(line):
                ids = self._seen.setdefault(item[1], [])
                if item[0] in ids:
                    ids.remove(item[0])
                ids.append(item[0])
        return code, result

    def _real(self, command: str) -> str:
        for pattern, real in self._page.instead:
            command, times = re.subn(pattern, real, command, flags=re.M)
            if times:
                self.unused.discard(pattern)
        for written, real in self._world.items():
            command = command.replace(written, real)
        command = re.sub(r"\bcorral up\b", "corral up --port 0", command)
        command = command.replace("127.0.0.1:7717", f"127.0.0.1:{self._port}")
        return SHORT.sub(lambda short: self._nth(short[1], int(short[2])) or short[0], command)

    def _nth(self, kind: str, back: int) -> str | None:
        ids = self._seen.get(kind, [])
        return ids[-back] if back <= len(ids) else None


def quiet(asked: ApiRequest) -> tuple[int, object]:
    """Answer like a Matrix server without messages."""
    return 200, {"user_id": "@corral:here", "next_batch": "s1", "rooms": {}}


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[Callable[[str], dict[str, str]]]:
    """Replace the PostgreSQL and chat servers that a page names by local ones."""
    with ExitStack() as opened:

        def of(text: str) -> dict[str, str]:
            values = {}
            for database in set(re.findall(r"postgresql://corral@[\w.]+/corral", text)):
                values[database] = request.getfixturevalue("postgres_server").new_database()
            for server in set(re.findall(r"https://(?:\w+\.)?example\.org", text)):
                values[server] = opened.enter_context(platform(quiet)).url
            return values

        yield of


def steps(page: Path) -> Iterator[Step | NewFile]:
    """Yield the commands of a page that can be run, and its files."""
    for step in read(page):
        if isinstance(step, NewFile) or not any(re.search(item, step.command) for item in NOT_RUN):
            yield step


def commands(pages: list[Path]) -> list[str]:
    return [step.command for page in pages for step in read(page) if isinstance(step, Step)]


RUN = [page for page in WRITTEN if any(isinstance(step, Step) for step in steps(page))]


@pytest.mark.parametrize("page", RUN, ids=named(RUN))
def test_page_works_and_prints_what_it_shows(
    page: Path, shell: Shell, world: Callable[[str], dict[str, str]]
) -> None:
    (name,) = named([page])
    known = PAGES.get(name.removeprefix("docs/"), Page())
    reader = Reader(shell, known, world(page.read_text(encoding="utf-8")))
    untrue = []
    for step in (*(Step(0, command, []) for command in known.before), *steps(page)):
        if isinstance(step, NewFile):
            shell.write(step)
            continue
        code, result = reader.does(step.command)
        if code != step.code or (step.shown and not matches_output(step.shown, result)):
            untrue += [f"line {step.line}: {step.command}  [{code}]", *result]
    assert not untrue, "\n".join([f"{name} shows what is not so:", *untrue])
    assert not reader.unused, f"{name} no longer contains a substituted text"


def in_sentences() -> set[str]:
    """Return the complete commands in sentences: without placeholders, and with all arguments."""
    result = set()
    for page in WRITTEN:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for quoted in re.findall(r"`(corral [^`]+)`", text):
            line = " ".join(quoted.split())
            if not re.search(r"[A-Z]{2}|\b[A-Z]\b|…|[\[|]", line) and takes(shlex.split(line)[1:]):
                result.add(line)
    return result


def takes(words: list[str]) -> bool:
    """Whether the arguments of a command are valid."""
    command, rest = resolved(words)
    # As below the root: click remembers the help options of the first context of a command.
    parent = click.Context(root, **root.context_settings)
    try:
        command.make_context(command.name, rest, parent=parent)
    except click.exceptions.Exit:  # --help
        return True
    except click.UsageError:
        return False
    return True


def test_whole_command_in_a_sentence_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    for folder in (work, tmp_path / ".claude/projects", tmp_path / ".codex/sessions"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{AGENTS}:{os.environ['PATH']}")
    subprocess.run(["git", "init", "-q"], check=True)
    cli = Cli(capsys)
    for words in GIVEN:
        assert cli(*shlex.split(words)).code == 0, words
    untrue = []
    for line in sorted(in_sentences() - ELSEWHERE.keys()):
        if not any(command.startswith(line) for command in commands(RUN)):
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
            result = cli(*shlex.split(line)[1:])
            if result.code != 0:
                untrue.append(f"{line}  [{result.code}]\n{result.err}")
    assert not untrue, "\n".join(["A page says what does not work:", *untrue])


def test_suggestions_of_an_empty_store_work(capsys: pytest.CaptureFixture[str]) -> None:
    text = Cli(capsys)().out
    suggested = re.findall(r"^  corral (.+?)  +\S", text, re.M)
    assert len(suggested) == text.count("\n  "), "one line each"
    assert suggested
    assert [line for line in suggested if not takes(shlex.split(line))] == []


def test_manual_page_has_every_command_and_renders() -> None:
    manual = (DOCS / "corral.1").read_text(encoding="utf-8")
    plain = manual.replace("\\-", "-")
    for name, (_, help) in COMMANDS.items():
        assert not help or re.search(rf"\b{name}\b", plain), name
    if shutil.which("man"):
        shown = subprocess.run(
            ["man", "--warnings", "-l", str(DOCS / "corral.1")], capture_output=True, check=True
        )
        assert shown.stderr == b""


def test_every_command_that_is_not_run_is_on_a_page() -> None:
    assert ELSEWHERE.keys() - in_sentences() == set()
    written = commands(WRITTEN)
    assert [item for item in NOT_RUN if not any(re.search(item, line) for line in written)] == []
    assert [name for name in PAGES if name not in "\n".join(named(RUN))] == []


@pytest.mark.parametrize("page", WRITTEN, ids=named(WRITTEN))
def test_every_block_of_a_page_is_labelled(page: Path) -> None:
    """Every block has a language and none is indented, so no command is overlooked."""
    text = page.read_text(encoding="utf-8")
    opened = re.findall(r"^ *```(.*)$", text, re.M)
    assert {item.partition(" ")[0] for item in opened[::2]} <= LANGUAGES
    assert set(opened[1::2]) <= {""}
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    assert re.findall(r"(?<=\n\n) {4,}\S.*", plain) == []


def test_make_targets_named_by_a_page_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in WRITTEN:
        text = page.read_text(encoding="utf-8")
        named_there = set(re.findall(r"(?:^|`)make ([a-z-]+)(?:`|\s+#|$)", text, re.M))
        assert named_there <= targets, page.name


def test_every_page_is_in_the_site() -> None:
    site = (TOP / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert [name for name in pages if f" {name}\n" not in site] == []
