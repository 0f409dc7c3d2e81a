"""Registry of providers, by name and by program."""

from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING

from corral.kernel.errors import NotFound

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Provider

# Provider name -> program that selects the provider. The module is imported on first use.
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


def list_providers() -> list[str]:
    """Return the names of all providers."""
    return list(PROGRAMS)


def get_provider(name: str) -> "Provider":
    """Return the provider with this name. Raises NotFound."""
    if name not in PROGRAMS:
        raise NotFound(
            f"Unknown provider {name!r}. Available providers: {', '.join(PROGRAMS)}.",
            provider=name,
            reason="unknown_provider",
        )
    module = import_module(f"corral.adapters.providers.{name}")
    provider: Provider = module.PROVIDER
    return provider


def find_by_program(argv0: str) -> "Provider":
    """Return the provider of a program; `plain` for a program without one."""
    program = PurePath(argv0).name.lower()
    return get_provider(next((name for name, file in PROGRAMS.items() if file == program), "plain"))
