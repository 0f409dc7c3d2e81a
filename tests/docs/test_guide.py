"""Every page of the guide is true: its commands are run, in its order, in an empty home."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.keeping import end_all, with_variable
from tests.support.pages import NewFile, Shell, fits, read
from tests.support.postgres import PostgresServer

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide"
PAGES = sorted(page.name for page in GUIDE.glob("*.md"))
WRITTEN_AS = "postgresql://corral@localhost/corral"
"""The store of the page on PostgreSQL: the test's own stands for it."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (home / ".gitconfig").write_text("[user]\nname = You\nemail = you@example.org\n")
    mark = f"CORRAL_HOME={home}/corral"
    opened = Shell(
        work,
        {
            "HOME": str(home),
            "CORRAL_HOME": f"{home}/corral",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "USER": "you",
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
        },
    )
    yield opened
    opened.close()
    end_all(lambda: with_variable(mark))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_and_prints_what_it_says(
    name: str, shell: Shell, request: pytest.FixtureRequest
) -> None:
    # A free port, so that pages can be tried at the same time.
    instead = {"corral up": "corral up --port 0"}
    if WRITTEN_AS in (GUIDE / name).read_text(encoding="utf-8"):
        server: PostgresServer = request.getfixturevalue("postgres_server")
        instead[WRITTEN_AS] = server.new_database()
    steps = list(read(GUIDE / name))
    assert steps, "a page of the guide has something to do"
    untrue = []
    for step in steps:
        if isinstance(step, NewFile):
            shell.write(step)
            continue
        command = step.command
        for written, real in instead.items():
            command = command.replace(written, real)
        code, said = shell.run(command)
        if code != step.code or (step.shown and not fits(step.shown, said)):
            untrue += [f"line {step.line}: {step.command}  [{code}]", *said]
    assert not untrue, "\n".join([f"docs/guide/{name} shows what is not so:", *untrue])


def test_the_pages_of_the_guide_are_all_in_the_site() -> None:
    site = (GUIDE.parent.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in PAGES if f"guide/{name}" not in site] == []
