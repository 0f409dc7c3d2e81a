"""Which providers there are, by name and by the program that a command line names."""

from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING

from corral.kernel.errors import NotFound

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Provider

# name -> the program that is it; the module of that name is imported when it is asked for.
PROGRAMS = {
    "claude": "claude",
    "codex": "codex",
    "copilot": "copilot",
    "gemini": "gemini",
    "opencode": "opencode",
    "qwen": "qwen",
    "scripted": None,
    "plain": None,
}


def names() -> list[str]:
    return list(PROGRAMS)


def find(name: str) -> "Provider":
    if name not in PROGRAMS:
        raise NotFound(
            f"There is no provider {name!r}; take one of {', '.join(PROGRAMS)}.",
            provider=name,
            reason="unknown_provider",
        )
    module = import_module(f"corral.adapters.providers.{name}")
    provider: Provider = module.PROVIDER
    return provider


def for_program(argv0: str) -> "Provider":
    """The provider whose program a command line names; any other command is a plain one."""
    program = PurePath(argv0).name.lower()
    return find(next((name for name, file in PROGRAMS.items() if file == program), "plain"))
