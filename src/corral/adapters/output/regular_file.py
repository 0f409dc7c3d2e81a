"""Open files that an agent may have replaced.

Opening a FIFO would block, and a symlink could point to a file outside of the run.
"""

import errno
import os
import stat
from pathlib import Path

from corral.kernel.open_files import require_unused

# The path does not exist, or leads to a symlink, a socket or a device.
_NO_REGULAR_FILE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENXIO,
    errno.ENODEV,
)


def open_regular_file(path: Path) -> int:
    """Open a regular file for reading and return its descriptor.

    Raises FileNotFoundError for symlinks and everything else that is not a regular file. Every
    other OSError means that it is unknown whether there is one.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        require_unused(path, follow=False)
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno not in _NO_REGULAR_FILE:
            raise
        raise FileNotFoundError(error.errno, os.strerror(error.errno or 0), str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path} is not a regular file")
    return descriptor
