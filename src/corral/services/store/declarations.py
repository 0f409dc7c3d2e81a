"""The declarations in the `sql.py` and `…_sql.py` modules of the domain, found by their type.

Statements, tables with states and retentions are discovered, not listed, so that the docs and the
tests of all tables and statements include every new concept.
"""

import importlib
import pkgutil
from functools import cache
from typing import TypeVar

import corral.domain

T = TypeVar("T")


def find_declarations(kind: type[T]) -> dict[str, T]:
    """Return every declaration of a type by its name, such as `mail.CLAIM_UNORDERED`."""
    return {name: value for name, value in _load_constants().items() if isinstance(value, kind)}


@cache  # modules do not change while a program runs
def _load_constants() -> dict[str, object]:
    constants: dict[str, object] = {}
    packages = [
        f"corral.domain.{module.name}" for module in pkgutil.iter_modules(corral.domain.__path__)
    ]
    for package in (*packages, "corral.domain.insights"):
        path = importlib.import_module(package).__path__
        modules = [
            module.name for module in pkgutil.iter_modules(path) if module.name.endswith("sql")
        ]
        for module in sorted(modules, key=lambda name: (name != "sql", name)):
            for name, value in vars(importlib.import_module(f"{package}.{module}")).items():
                constants[f"{package.rpartition('.')[2]}.{name}"] = value
    return constants
