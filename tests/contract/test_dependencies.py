"""What Corral depends on is used, named, and no older than what it was tried with.

Which versions have known holes is told by services on the network, which no test asks; a bound from
below keeps out those that were known when it was written.
"""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

from tests.support.grouped_cases import each_case

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What is imported under another name than it is installed by.
NAMES = {
    "google-re2": "re2",
    "pyyaml": "yaml",
    "psycopg[binary]": "psycopg",
    "langgraph-checkpoint": "langgraph",
    "openai-agents": "agents",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
}
# Data without a module of ours that asks for it: the standard library looks for it by itself.
NOT_IMPORTED = {"tzdata"}
# What always comes with another one, whose own words these are: starlette's threads, jinja2's text,
# the configuration of langgraph.
COMES_ALONG = {"anyio", "markupsafe", "langchain_core"}
EXTRAS = (
    "postgres",
    "keyring",
    "matrix",
    "slack",
    "telegram",
    "otel",
    "langgraph",
    "openai-agents",
)


def wanted() -> list[str]:
    extras = PROJECT["optional-dependencies"]
    return [*PROJECT["dependencies"], *(each for name in EXTRAS for each in extras[name])]


def module_of(requirement: str) -> str:
    name = re.split(r"[><=;~ ]", requirement)[0]
    return NAMES.get(name, name.replace("-", "_"))


@cache
def imported() -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - {*sys.stdlib_module_names, "corral"}


@each_case("requirement", wanted())
def test_dependency_has_a_lower_bound_and_is_used(requirement: str) -> None:
    assert re.search(r">=\d", requirement), f"{requirement}: say from which version on"
    assert module_of(requirement) in imported() | NOT_IMPORTED, f"{requirement} is not used"


def test_every_import_is_a_declared_dependency() -> None:
    named = {module_of(requirement) for requirement in wanted()}
    assert imported() - named - COMES_ALONG == set()


def test_corral_subprocess_ignores_modules_in_the_current_folder() -> None:
    """A project may have a `queue.py`, and an agent may write one: `-P` keeps it out."""
    called = re.compile(r"(sys\.executable|self\.program).{0,3},? \"?-m\W")
    wrong = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / "src").rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if called.search(line)
    ]
    assert not wrong
