from pathlib import Path
from typing import Literal

from corral import config
from corral.library.operation import Room, read, write
from corral.rooms.settings import ops
from corral.rooms.settings.model import Secret


class Settings(Room):
    """Values that people chose instead of the defaults."""

    noun = "setting"

    set = write(ops.set_value, repeatable=True)
    unset = write(ops.unset_value, repeatable=True)
    get = read(ops.get_setting, mode="one")
    list = read(ops.list_settings)


class Secrets(Room):
    """Where to find secrets; never the secrets themselves."""

    noun = "secret"

    set = write(ops.set_secret, repeatable=True)
    get = read(ops.get_secret, mode="one")
    list = read(ops.list_secrets, mode="one")
    delete = write(ops.delete_secret)

    def resolve(self, name: str) -> str:
        """The value of a secret, read now from where it is. It is for a process that starts, and
        for nobody's eyes: do not print, log or store it."""
        from corral.adapters import secrets

        return secrets.resolve(self.get(name).reference)

    def value_of(self, reference: str) -> str:
        """The value behind `env:`, `file:`, `cmd:` or `keyring:`, or behind a secret's name."""
        from corral.adapters import secrets

        return secrets.resolve(reference) if ":" in reference else self.resolve(reference)

    def keep(self, name: str, value: str, *, where: Literal["file", "keyring"]) -> Secret:
        """Keep a value for the user, in a private file or the key ring, and refer to it there."""
        from corral.adapters import secrets

        ops.check_secret_name(name)
        if where == "keyring":
            return self.set(name, secrets.keep_in_keyring(name, value))
        return self.set(name, secrets.keep_in_file(secrets_folder(), name, value))


def secrets_folder() -> Path:
    return config.home() / "secrets"
