"""Dependencies are used, declared and have a lower bound.

No test queries vulnerability databases on the network; lower bounds exclude the vulnerable versions
known at the time.
"""

import ast
import re
import sys
import tomllib
from functools import cache

from tests.support.grouped_cases import each_case
from tests.support.source_tree import ROOT, SOURCE_FILES, list_nodes

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules whose name differs from their distribution's.
NAMES = {
    "google-re2": "re2",
    "pyyaml": "yaml",
    "psycopg[binary]": "psycopg",
    "langgraph-checkpoint": "langgraph",
    "openai-agents": "agents",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
}
# Data packages that no module of ours imports: the standard library finds them.
NOT_IMPORTED = {"tzdata"}
# Modules that always come with a declared dependency: starlette's threads, jinja2's text, the
# configuration of langgraph.
TRANSITIVE = {"anyio", "markupsafe", "langchain_core"}
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


def list_requirements() -> list[str]:
    extras = PROJECT["optional-dependencies"]
    return [*PROJECT["dependencies"], *(extra for name in EXTRAS for extra in extras[name])]


def module_of(requirement: str) -> str:
    name = re.split(r"[><=;~ ]", requirement)[0]
    return NAMES.get(name, name.replace("-", "_"))


@cache
def list_imports() -> set[str]:
    result: set[str] = set()
    for file in SOURCE_FILES:
        for node in list_nodes(file):
            if isinstance(node, ast.Import):
                result |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                result.add(node.module.partition(".")[0])
    return result - {*sys.stdlib_module_names, "corral"}


@each_case("requirement", list_requirements())
def test_dependency_has_a_lower_bound_and_is_used(requirement: str) -> None:
    assert re.search(r">=\d", requirement), f"{requirement} needs a lower bound"
    assert module_of(requirement) in list_imports() | NOT_IMPORTED, f"{requirement} is not used"


def test_every_import_is_a_declared_dependency() -> None:
    declared = {module_of(requirement) for requirement in list_requirements()}
    assert list_imports() - declared - TRANSITIVE == set()


def test_corral_subprocess_ignores_modules_in_the_current_folder() -> None:
    """A project may contain a `queue.py`, or an agent may write one: `-P` excludes it."""
    pattern = re.compile(r"(sys\.executable|self\.program).{0,3},? \"?-m\W")
    matches = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in SOURCE_FILES
        for line in path.read_text(encoding="utf-8").splitlines()
        if pattern.search(line)
    ]
    assert not matches
