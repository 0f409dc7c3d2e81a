import os
from pathlib import Path
from typing import Literal

from corral import config
from corral.api.operation import Room, read, write
from corral.db.database import Database
from corral.domain.settings import ops
from corral.domain.settings.model import Secret


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
        return self._resolved(self.get(name).reference)

    def value_of(self, reference: str) -> str:
        """The value behind `env:`, `file:`, `cmd:` or `keyring:`, or behind a secret's name."""
        return self._resolved(reference) if ":" in reference else self.resolve(reference)

    def _resolved(self, reference: str) -> str:
        """The value, which from now on is taken out of whatever this process keeps."""
        from corral.adapters import secrets

        value = secrets.resolve(reference)
        know(self._database, value)
        return value

    def keep(self, name: str, value: str, *, where: Literal["file", "keyring"]) -> Secret:
        """Keep a value for the user, in a private file or the key ring, and refer to it there."""
        from corral.adapters import secrets

        ops.check_secret_name(name)
        know(self._database, value)
        if where == "keyring":
            return self.set(name, secrets.keep_in_keyring(name, value))
        return self.set(name, secrets.keep_in_file(secrets_folder(), name, value))


def secrets_folder() -> Path:
    return config.home() / "secrets"


def know(database: Database, value: str) -> None:
    """A secret that this process has seen is taken out of what it keeps."""
    if database.redaction is not None:
        database.redaction.know(value)


def known_here() -> list[str]:
    """The secrets that a process knows before it asks for any: those that its run was given
    (`CORRAL_SECRETS` names their variables), and those that are kept in this home's files."""
    names = os.environ.get("CORRAL_SECRETS", "").split(",")
    given = [os.environ[name] for name in names if os.environ.get(name)]
    folder = secrets_folder()
    # `isdir`: a home that is not ours to look into holds nothing that we could know.
    if not os.path.isdir(folder):
        return given
    from corral.adapters import secrets

    return given + secrets.values_in(folder)
