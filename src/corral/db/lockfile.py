"""A private file that is there only to be locked."""

import os
import weakref


class LockFile:
    """An open lock file. A kernel lock on it belongs to whoever has the file open, and a fork opens
    it for the child too; so that a child does not keep what its dead parent held, it closes its
    copy at once."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _open.add(self)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_open: "weakref.WeakSet[LockFile]" = weakref.WeakSet()


def _close_in_child() -> None:
    for file in list(_open):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)
