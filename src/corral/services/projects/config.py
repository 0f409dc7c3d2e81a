"""The project file `.corral/config.toml`, which `corral init` writes and reads.

The file takes effect only when a user runs `corral init`. A cloned repository therefore cannot
change settings or commands by containing such a file.
"""

import os
from typing import Any

import msgspec

from corral.adapters import managed_blocks
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.settings import ops as settings
from corral.kernel.errors import Invalid
from corral.kernel.unset import UNSET

FILE = ".corral/config.toml"
TEMPLATE = """\
# Corral's configuration of this project. Run `corral init` again after you change it.

# The command that `corral run PROMPT` starts here, and the prompt when none is given.
# command = "claude"
# prompt = "Claim the next open task and do it."

# Settings of this project. List all settings with `corral setting list`.
# [settings]
# tasks.auto_start = false
# tasks.max_started = 4
# runs.mcp_tools = true
"""


class ProjectConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of the file."""

    command: str | None = None
    prompt: str | None = None
    settings: dict[str, Any] = {}


def apply_config(tx: Tx, folder: str, config: ProjectConfig) -> Project:
    """Register a folder as a project and apply its configuration, all or nothing."""
    project = projects.register(
        tx, folder, command=config.command or UNSET, prompt=config.prompt or UNSET
    )
    for name, value in _flatten(config.settings).items():
        settings.set_value(tx, name, value, scope=f"project:{project.id}")
    return project


def read_config(folder: str) -> ProjectConfig:
    """Read the file of a folder; without a file, all fields are empty. Raises Invalid."""
    import tomllib

    file = os.path.join(folder, FILE)
    text = managed_blocks.read_text(file)
    try:
        return msgspec.convert(tomllib.loads(text), ProjectConfig)
    except msgspec.ValidationError as error:
        names = ", ".join(ProjectConfig.__struct_fields__)
        raise Invalid(
            f"Invalid configuration in {file}: {error}. Its fields are {names}.", file=file
        ) from None
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise Invalid(f"{file} is not valid TOML: {error}.", file=file) from None


def write_template(folder: str) -> None:
    """Write a file in which everything is commented out, unless a file exists."""
    file = os.path.join(folder, FILE)
    if not os.path.lexists(file):
        managed_blocks.write_text(file, TEMPLATE)


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted names: `tasks.max_started` can be written either way."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            values |= _flatten(value, f"{prefix}{name}.")
        else:
            values[prefix + name] = value
    return values
