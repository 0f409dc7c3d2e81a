"""The documentation matches the code: error codes, named tests and files, links, commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from corral.cli.main import root
from corral.daemon.loops import create_loops
from corral.db.lookup import list_command
from corral.kernel.errors import CorralError, StoreUnavailable, list_error_classes
from tests.support.state_rows import state_tables

TOP = Path(__file__).parent.parent.parent
DOCS = TOP / "docs"
PAGES = [TOP / "README.md", *sorted(DOCS.rglob("*.md"))]
HAND_WRITTEN = [
    page for page in PAGES if "Written by `make docs`" not in page.read_text("utf-8")[:100]
]


def relative_names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(TOP)) for page in pages]


def read_troubleshooting() -> str:
    return (DOCS / "troubleshooting.md").read_text(encoding="utf-8")


def extract_section(text: str, heading: str) -> str:
    """Return the text below a heading of the third level, up to the next heading."""
    return text.partition(f"\n### {heading}\n")[2].partition("\n#")[0]


def read_source_files() -> Iterator[str]:
    for file in (TOP / "src").rglob("*.py"):
        yield file.read_text(encoding="utf-8")


@pytest.mark.parametrize("error", [*list_error_classes()])
def test_every_error_code_is_documented_with_its_exit_status(error: type[CorralError]) -> None:
    numbers = f"Exit status {error.exit_status}, HTTP {error.http_status}."
    assert extract_section(read_troubleshooting(), error.code).startswith(f"\n{numbers}")


def test_every_code_of_an_interface_is_documented() -> None:
    """Codes of the command line and the server that are not exceptions of the library."""
    pattern = re.compile(r'(?:_print_error\(|ApiError\(\s*(\d+),|"code":)\s*"([a-z_]+)"')
    used = {match.groups() for text in read_source_files() for match in pattern.finditer(text)}
    assert {"usage", "internal", "too_many", "unauthenticated"} <= {code for _, code in used}
    library_codes = {error.code for error in list_error_classes()}
    for status, code in used - {(None, "redacted")}:  # a warning, not an error
        text = extract_section(read_troubleshooting(), code)
        assert text, code
        if code not in library_codes and status is not None:
            assert f"HTTP {status}." in text


def test_every_reason_of_an_unavailable_store_is_documented() -> None:
    _, _, reasons = (StoreUnavailable.__doc__ or "").partition("Reasons:")
    declared = set(re.findall(r"\w+", reasons))
    used: set[str] = set()
    for text in read_source_files():
        used |= set(re.findall(r'\breason="([a-z_]+)"', text))
    documented = re.findall(
        r"^\| `(\w+)` \|", extract_section(read_troubleshooting(), "store_unavailable"), re.M
    )
    assert set(documented) == declared
    assert declared <= used


def test_every_loop_of_the_daemon_is_documented() -> None:
    text = (DOCS / "reference/daemon.md").read_text(encoding="utf-8")
    section = text.partition("\n## Loops\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (one|each) node \|$", section, re.M)
    assert sorted(rows) == sorted(
        (loop.name, "one" if loop.needs_leader else "each") for loop in create_loops()
    )


@pytest.mark.parametrize("page", ["explanation/security.md", "explanation/guarantees.md"])
def test_test_named_by_a_page_exists(page: str) -> None:
    claimed = set(re.findall(r"`(test_\w+)`", (DOCS / page).read_text(encoding="utf-8")))
    existing = set()
    for file in (TOP / "tests").rglob("test_*.py"):
        existing |= set(re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8")))
    assert claimed, "the page names its tests"
    assert claimed - existing == set()


def test_every_row_of_the_threat_model_names_its_evidence() -> None:
    text = (DOCS / "explanation/security.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| attack \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M)
    rows = [row.strip("|").split("|") for table in tables for row in table.splitlines()]
    assert len(rows) > 25
    assert [row[0] for row in rows if "test_" not in row[-1]] == []


@pytest.mark.parametrize("page", PAGES, ids=relative_names(PAGES))
def test_file_named_by_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(
        r"`((?:tests|src/corral|bench|tools|docs)/[\w/.-]+\.\w+)(?:::\w+)?`", text
    ):
        assert (TOP / path).exists(), f"{page.name} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=relative_names(PAGES))
def test_link_between_pages_resolves(page: Path) -> None:
    text = remove_code_blocks(page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", text):
        if target and ":" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=relative_names(HAND_WRITTEN))
def test_command_named_by_a_page_exists_with_its_options(page: Path) -> None:
    for line in list_commands(page.read_text(encoding="utf-8")):
        words = [word for word in split_words(line) if word not in ("…", "...")]
        command, rest = resolve_command(words[1:])
        options = {"-h", "--help"}
        for param in command.params:
            options |= {*param.opts, *param.secondary_opts}
        for word in rest:
            if word == "--":
                break
            if re.match(r"--?[a-z]", word):
                option = word.partition("=")[0]
                assert option in options, f"{line}: {command.name} has no {option}"


def remove_code_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def list_commands(text: str) -> Iterator[str]:
    """Yield the command lines of a page: those in shell blocks, and those in backticks."""
    for language, block in re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.M | re.S):
        if language in ("", "sh", "console"):
            lines = block.replace("\\\n", " ").splitlines()
            for line in lines:
                line = re.sub(r"\s#\s.*", "", line.removeprefix("$ ").strip())
                yield from (part for part in split_commands(line) if part.startswith("corral "))
    for quoted in re.findall(r"`(corral [^`]+)`", remove_code_blocks(text)):
        yield from (part for part in split_commands(quoted) if part.startswith("corral "))


def split_commands(line: str) -> list[str]:
    """Split a line into its single commands."""
    return [part.strip() for part in re.split(r" && |; | \| | · |\s;\s", line)]


def split_words(line: str) -> list[str]:
    """Split a command into words; brackets of a synopsis are ignored."""
    line = line.replace("\\|", "|")
    try:
        return shlex.split(line.replace("[", " ").replace("]", " "))
    except ValueError:
        return line.split()


def resolve_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that the words name, and the remaining words."""
    command: click.Command = root
    context = click.Context(root)
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        if rest[0].startswith("--"):
            del rest[: 2 if rest[0] == "--store" else 1]
            continue
        if not re.fullmatch(r"[a-z][a-z-]*(\|[a-z-]+)*", rest[0]):
            break
        verbs = [command.get_command(context, name) for name in rest[0].split("|")]
        assert None not in verbs, f"corral {' '.join(words)}: unknown command {rest[0]}"
        command = verbs[0] or command
        del rest[0]
    return command, rest


def test_not_found_error_names_an_existing_list_command() -> None:
    kinds = [table.transitions.kind for table in state_tables().values()]
    assert kinds
    for kind in kinds:
        noun, verb = list_command(kind).split()[1:]
        command = root.get_command(click.Context(root), noun)
        assert command is not None, kind
        if verb != "-a":
            assert isinstance(command, click.Group)
            assert command.get_command(click.Context(command), verb) is not None, kind
