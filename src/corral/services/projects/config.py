"""A project's own file of defaults: `.corral/config.toml`, written and read by `corral init`.

The file tells, the store knows: what stands in it counts from the moment at which somebody calls
`corral init`, and not because a directory that came from elsewhere holds it.
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
from corral.kernel.unset import KEEP

FILE = ".corral/config.toml"
TEMPLATE = """\
# What Corral is told of this project. Change it, and call `corral init` once more.

# What `corral run PROMPT` starts here, and what it is told when no prompt is given.
# command = "claude"
# prompt = "Look at the open tasks, and take the next one."

# Settings of this project; `corral setting list` shows what there is.
# [settings]
# tasks.auto_start = false
# tasks.max_started = 4
# runs.tools = true
"""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file may say."""

    command: str | None = None
    prompt: str | None = None
    settings: dict[str, Any] = {}


def configure(tx: Tx, folder: str, config: Config) -> Project:
    """Make a folder a project, with all that its file tells, or nothing of it."""
    project = projects.register(
        tx, folder, command=config.command or KEEP, prompt=config.prompt or KEEP
    )
    for name, value in _flat(config.settings).items():
        settings.set_value(tx, name, value, scope=f"project:{project.id}")
    return project


def read(folder: str) -> Config:
    """What a folder's file tells; nothing where there is none."""
    import tomllib

    file = os.path.join(folder, FILE)
    text = managed_blocks.read(file)
    try:
        return msgspec.convert(tomllib.loads(text), Config)
    except msgspec.ValidationError as error:
        names = ", ".join(Config.__struct_fields__)
        raise Invalid(f"{file} cannot be: {error}. It has {names}.", file=file) from None
    except (ValueError, RecursionError) as error:  # also of what is too deep or too long
        raise Invalid(f"{file} is not TOML: {error}.", file=file) from None


def write(folder: str) -> None:
    """Put a file there that changes nothing, and says what could be; not where there is one."""
    file = os.path.join(folder, FILE)
    if not os.path.lexists(file):
        managed_blocks.write(file, TEMPLATE)


def _flat(given: dict[str, Any], above: str = "") -> dict[str, Any]:
    """`tasks.max_started` is written as one name, or as a table in a table."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{above}{name}.")
        else:
            found[above + name] = value
    return found
