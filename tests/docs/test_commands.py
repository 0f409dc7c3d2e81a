"""Run every command block of the documentation, in page order, in an empty home for each page.

Placeholders are replaced: `run_01…` by the run id that was printed last (`02`: the one before), the
port 7717 by that of the daemon. claude, codex and gemini are the programs in `agents/`. `PAGES` has
the set-up commands and replacements of each page. `NOT_RUN` and `TESTED_ELSEWHERE` list the
commands that are not run, with the reason.
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
from tests.docs.test_claims import DOCS, HAND_WRITTEN, TOP, relative_names, resolve_command
from tests.support.chat_server_stub import ApiRequest, platform
from tests.support.cli_runner import Cli
from tests.support.doc_pages import NewFile, Shell, Step, matches_output, read

AGENTS = Path(__file__).parent / "agents"
TRANSCRIPT = TOP / "tests/fixtures/transcripts/claude.jsonl"
ID = re.compile(r"\b([a-z]{3})_(?:[0-9a-z]{26}|[1-9]\d*)\b")
ID_PLACEHOLDER = re.compile(r"\b([a-z]{3})_0(\d)…")

LANGUAGES = {"sh", "console", "python", "yaml", "toml", "text"}
"""Languages of blocks. `sh`, `console` and `python` blocks are run; a file has a `title`."""

NOT_RUN = {
    r"^pip (un)?install ": "needs a package index; test_wheel.py installs the wheel",
    r"^make (demo|up|test)\b": "takes minutes or does not exit; a test checks the targets",
    r"^claude mcp add ": "a command of Claude Code; tests/mcp has the server",
    r"from agents import Agent": "needs a model; tests/integrations uses a stub",
    r"builder\.compile\(checkpointer": "needs a graph; tests/integrations has one",
}


SETUP_COMMANDS = (
    "project register .",
    "agent create ada --provider scripted",
    "run --name slow -- true",
)
"""Commands to run before the commands in sentences."""

TESTED_ELSEWHERE = {
    "corral up --install": "needs a service manager; tests/adapters/test_service_units.py",
    "corral mail ack let_7 --fence 2": "an example; tutorials/first-team.md acknowledges one",
    'corral progress report "half of it" --percent 50 --task login': "tests/cli/test_tasks.py",
    "corral alert deliver --watch": "does not exit; tests/domain/test_alert_sender.py",
    "corral up --foreground": "does not exit; tests/daemon/test_up.py",
    "corral mcp": "runs until its input ends; tests/mcp/test_protocol.py",
}
"""Complete commands in sentences that this module does not run."""


UNKNOWN_PRICES = "corral setting set budgets.unknown_prices allow"
"""The fake codex reports no model, so a budget would stop its run: the price is unknown."""


class Page(NamedTuple):
    before: tuple[str, ...] = ()
    """Commands to run before the page."""
    replacements: tuple[tuple[str, str], ...] = ()
    """Replacements in the commands of the page: pattern and text."""


REPOSITORY = (
    "git init -q -b main && mkdir src",
    r"printf 'test release:\n\ttrue\n' > Makefile && echo work.txt > src/list",
    "git add -A && git commit -qm Begin",
)


def run_in_background(command: str, list_command: str, pattern: str) -> str:
    """Return a script that starts a blocking command and waits until a list shows a pattern."""
    wait = f"until corral {list_command} | grep {pattern}; do sleep 0.3; done"
    return f"{{ {command}; }} >/dev/null & {wait}"


WAIT_FOR_SCHEDULED_RUN = (
    "until corral ps -a --state completed | grep 'stand-up notes'; do sleep 0.5; done"
)
CREATE_ADA = "corral agent create ada --provider claude --role builder"

PAGES = {
    "README.md": Page(before=(*REPOSITORY, UNKNOWN_PRICES)),
    "how-to/use-a-sandbox.md": Page(
        before=REPOSITORY,
        replacements=(
            (r"chat\.sandbox auto", "chat.sandbox none"),
        ),  # some machines have no sandbox
    ),
    "how-to/schedule-agents.md": Page(
        replacements=(
            (r"--in 10m$", "--in 5s"),
            # The scheduled agent must start.
            (r"^corral up$", f"corral up && {WAIT_FOR_SCHEDULED_RUN}"),
        ),
    ),
    "how-to/edit-files.md": Page(before=REPOSITORY),
    "how-to/connect-a-chat.md": Page(
        before=("export MATRIX_TOKEN=a-long-word",),
        replacements=(
            (r"^corral chat --agent ada", "echo hello | corral chat --agent ada"),
            (r"^corral up", "corral down && corral up"),  # one daemon serves the whole page
        ),
    ),
    "how-to/answer-from-a-chat.md": Page(
        replacements=(
            # The second command answers while the first one waits.
            (
                r"^(corral chat .*deploy please.*)",
                run_in_background(r"\1", "question list", "Deploy"),
            ),
        ),
    ),
    "tutorials/first-run.md": Page(
        replacements=(
            # The run ends only after it was listed, also on a slow machine.
            (r"sleep 1; done'$", "while [ ! -e listed ]; do sleep 0.1; done; done'"),
            (r"^corral wait slow$", "touch listed && corral wait slow"),
        ),
    ),
    "reference/http.md": Page(
        before=("corral run -- true", "corral up"),
        replacements=(
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
            CREATE_ADA,
            'corral decision record "Rename it" --propose',
            "printf '#!/bin/sh\n' > drop && chmod +x drop",
        ),
        replacements=(
            # Later commands answer while these wait.
            (
                r"^(corral ask .*--fallback no).*",
                run_in_background(r"\1", "question list", "Merge"),
            ),
            (r"^(corral decision .* && .*)", run_in_background(r"\1", "decision list", "Drop")),
            (r"react build 7", "react build 1"),
        ),
    ),
    "how-to/run-a-team.md": Page(before=(*REPOSITORY, "echo It grows. > notes.md")),
}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell.with_empty_home(tmp_path, AGENTS)
    (tmp_path / "home/.curlrc").write_text("silent\n")  # no progress meter in the output
    yield shell
    shell.close()


class PageRunner:
    """Runs the commands of a page with placeholders replaced."""

    def __init__(self, shell: Shell, page: Page, local_servers: dict[str, str]) -> None:
        self._shell = shell
        self._page = page
        self._servers = local_servers
        self._port = "7717"
        self._seen: dict[str, list[str]] = {}
        self.unused = {pattern for pattern, _ in page.replacements}

    def run(self, command: str) -> tuple[int, list[str]]:
        code, result = self._shell.run(self._substitute(command))
        for line in result:
            self._port = "".join(re.findall(r"http://127\.0\.0\.1:(\d+)", line)[:1]) or self._port
            for item in ID.finditer(line):
                ids = self._seen.setdefault(item[1], [])
                if item[0] in ids:
                    ids.remove(item[0])
                ids.append(item[0])
        return code, result

    def _substitute(self, command: str) -> str:
        for pattern, text in self._page.replacements:
            command, times = re.subn(pattern, text, command, flags=re.M)
            if times:
                self.unused.discard(pattern)
        for name, text in self._servers.items():
            command = command.replace(name, text)
        command = re.sub(r"\bcorral up\b", "corral up --port 0", command)
        command = command.replace("127.0.0.1:7717", f"127.0.0.1:{self._port}")
        return ID_PLACEHOLDER.sub(
            lambda short: self._find_id(short[1], int(short[2])) or short[0], command
        )

    def _find_id(self, kind: str, back: int) -> str | None:
        ids = self._seen.get(kind, [])
        return ids[-back] if back <= len(ids) else None


def answer_without_messages(request: ApiRequest) -> tuple[int, object]:
    """Answer like a Matrix server without messages."""
    return 200, {"user_id": "@corral:here", "next_batch": "s1", "rooms": {}}


@pytest.fixture
def local_servers(request: pytest.FixtureRequest) -> Iterator[Callable[[str], dict[str, str]]]:
    """Replace the PostgreSQL and chat servers that a page names by local ones."""
    with ExitStack() as opened:

        def start_servers(text: str) -> dict[str, str]:
            values = {}
            for database in set(re.findall(r"postgresql://corral@[\w.]+/corral", text)):
                values[database] = request.getfixturevalue("postgres_server").new_database()
            for server in set(re.findall(r"https://(?:\w+\.)?example\.org", text)):
                values[server] = opened.enter_context(platform(answer_without_messages)).url
            return values

        yield start_servers


def list_steps(page: Path) -> Iterator[Step | NewFile]:
    """Yield the commands of a page that can be run, and its files."""
    for step in read(page):
        if isinstance(step, NewFile) or not any(re.search(item, step.command) for item in NOT_RUN):
            yield step


def list_commands(pages: list[Path]) -> list[str]:
    return [step.command for page in pages for step in read(page) if isinstance(step, Step)]


RUN_PAGES = [
    page for page in HAND_WRITTEN if any(isinstance(step, Step) for step in list_steps(page))
]


@pytest.mark.parametrize("page", RUN_PAGES, ids=relative_names(RUN_PAGES))
def test_page_works_and_prints_what_it_shows(
    page: Path, shell: Shell, local_servers: Callable[[str], dict[str, str]]
) -> None:
    (name,) = relative_names([page])
    page_setup = PAGES.get(name.removeprefix("docs/"), Page())
    reader = PageRunner(shell, page_setup, local_servers(page.read_text(encoding="utf-8")))
    failures = []
    for step in (*(Step(0, command, []) for command in page_setup.before), *list_steps(page)):
        if isinstance(step, NewFile):
            shell.write(step)
            continue
        code, result = reader.run(step.command)
        if code != step.code or (step.shown and not matches_output(step.shown, result)):
            failures += [f"line {step.line}: {step.command}  [{code}]", *result]
    assert not failures, "\n".join([f"{name} shows wrong output:", *failures])
    assert not reader.unused, f"{name} no longer contains a substituted text"


def test_agents_in_first_pages_return_to_the_shell() -> None:
    """In a terminal an agent is interactive, and would receive the next command of the page."""
    pages = [TOP / "README.md", *(DOCS / "tutorials").glob("*.md")]
    interactive = []
    for command in list_commands(pages):
        if command.startswith(("corral run ", "corral resume ")) and " -- " not in command:
            options = shlex.split(command, comments=True)
            if not {"-d", "--no-pty"} & set(options):
                interactive.append(command)
    assert interactive == []


def list_inline_commands() -> set[str]:
    """Return the complete commands in sentences: without placeholders, and with all arguments."""
    result = set()
    for page in HAND_WRITTEN:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for quoted in re.findall(r"`(corral [^`]+)`", text):
            line = " ".join(quoted.split())
            if not re.search(r"[A-Z]{2}|\b[A-Z]\b|…|[\[|]", line) and has_valid_arguments(
                shlex.split(line)[1:]
            ):
                result.add(line)
    return result


def has_valid_arguments(arguments: list[str]) -> bool:
    """Return whether the arguments of a command are valid."""
    command, rest = resolve_command(arguments)
    # With the root as parent: click caches the help options of a command's first context.
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
    for command in SETUP_COMMANDS:
        assert cli(*shlex.split(command)).code == 0, command
    failures = []
    for line in sorted(list_inline_commands() - TESTED_ELSEWHERE.keys()):
        if not any(command.startswith(line) for command in list_commands(RUN_PAGES)):
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
            result = cli(*shlex.split(line)[1:])
            if result.code != 0:
                failures.append(f"{line}  [{result.code}]\n{result.err}")
    assert not failures, "\n".join(["Commands of a page fail:", *failures])


def test_suggestions_of_an_empty_store_work(capsys: pytest.CaptureFixture[str]) -> None:
    text = Cli(capsys)().out
    suggested = re.findall(r"^  corral (.+?)  +\S", text, re.M)
    assert len(suggested) == text.count("\n  "), "each suggestion is on one line"
    assert suggested
    assert [line for line in suggested if not has_valid_arguments(shlex.split(line))] == []


def test_manual_page_has_every_command_and_renders() -> None:
    manual = (DOCS / "corral.1").read_text(encoding="utf-8")
    text = manual.replace("\\-", "-")
    for name, (_, help) in COMMANDS.items():
        assert not help or re.search(rf"\b{name}\b", text), name
    if shutil.which("man"):
        process = subprocess.run(
            ["man", "--warnings", "-l", str(DOCS / "corral.1")], capture_output=True, check=True
        )
        assert process.stderr == b""


def test_every_command_that_is_not_run_is_on_a_page() -> None:
    assert TESTED_ELSEWHERE.keys() - list_inline_commands() == set()
    lines = list_commands(HAND_WRITTEN)
    assert [item for item in NOT_RUN if not any(re.search(item, line) for line in lines)] == []
    assert [name for name in PAGES if name not in "\n".join(relative_names(RUN_PAGES))] == []


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=relative_names(HAND_WRITTEN))
def test_every_block_of_a_page_is_labelled(page: Path) -> None:
    """Every block has a language and none is indented, so no command is overlooked."""
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^ *```(.*)$", text, re.M)
    assert {item.partition(" ")[0] for item in fences[::2]} <= LANGUAGES
    assert set(fences[1::2]) <= {""}
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    assert re.findall(r"(?<=\n\n) {4,}\S.*", prose) == []


def test_make_targets_named_by_a_page_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in HAND_WRITTEN:
        text = page.read_text(encoding="utf-8")
        named_targets = set(re.findall(r"(?:^|`)make ([a-z-]+)(?:`|\s+#|$)", text, re.M))
        assert named_targets <= targets, page.name


def test_every_page_is_in_the_site() -> None:
    site = (TOP / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert [name for name in pages if f" {name}\n" not in site] == []
