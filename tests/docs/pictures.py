"""Create the pictures of the README: `python -m tests.docs.pictures`.

Runs the commands of the tutorials in an empty home, renders the terminal output as an image, and
takes screenshots of the dashboard in a browser.
"""

import os
import re
import tempfile
from pathlib import Path

from playwright.sync_api import Page
from rich.console import Console
from rich.text import Text

from tests.support.browser import headless_browser
from tests.support.doc_pages import NewFile, Shell, read

DOCS = Path(__file__).parent.parent.parent / "docs"
PICTURES = DOCS / "pictures"
TERMINAL = """\
corral run -d --name slow -- sh -c 'for i in 1 2 3; do echo step $i; sleep 1; done'
corral ps
corral wait slow
corral logs slow
corral run --agent scripted "say I had a look; write notes.txt done; spend 1200 300"
corral stats --by provider
corral"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell.with_empty_home(Path(folder))
        work = Path(folder, "work")
        try:
            shell.run("mkdir notes && cd notes")
            picture_terminal(shell)
            for page in ("first-team", "first-race"):
                shell.run(f"cd {work} && mkdir {page} && cd {page}")
                run_page(shell, DOCS / "tutorials" / f"{page}.md")
            shell.run("corral run -d --name nightly -- sleep 60")
            _, result = shell.run("corral up --port 0")
            picture_dashboard(re.search(r"http://\S+", result[0])[0])  # type: ignore[index]
        finally:
            shell.close()


def run_page(shell: Shell, page: Path) -> None:
    for step in read(page):
        if isinstance(step, NewFile):
            shell.write(step)
        elif "race clean" not in step.command:
            shell.run(step.command)


def picture_terminal(shell: Shell) -> None:
    console = Console(record=True, width=126, file=open(os.devnull, "w"))  # noqa: SIM115
    for command in TERMINAL.splitlines():
        _, result = shell.run(command)
        console.print(Text("$ ", "bold green") + Text(command, "bold"))
        for line in result:
            console.print(Text(line), soft_wrap=False, overflow="ellipsis", no_wrap=True)
    # The picture needs no font from another host.
    svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="corral"), flags=re.S)
    (PICTURES / "terminal.svg").write_text(svg, encoding="utf-8")


def picture_dashboard(link: str) -> None:
    with headless_browser() as browser:
        assert browser is not None, "the pictures need a browser"
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(link)
        take_screenshot(page, "overview")
        page.goto(f"{link.partition('/?')[0]}/races")
        page.locator("main a[href^='/races/rac_']").first.click()
        page.get_by_role("link", name="Round 1").first.click()
        take_screenshot(page, "race")


def take_screenshot(page: Page, name: str) -> None:
    page.wait_for_selector("#feed[data-state=live]", state="attached")
    page.wait_for_timeout(500)
    page.screenshot(path=PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
