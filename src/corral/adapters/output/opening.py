"""Opening a file that an agent could have replaced: a pipe would hold up whoever reads, and a link
would lead to a file that is none of the run's."""

import os
import stat
from pathlib import Path

from corral.kernel.open_files import require_unused


def open_regular(path: Path) -> int:
    """A descriptor of a plain file, to be read; whatever else stands there is not found."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        require_unused(path, follow=False)
        descriptor = os.open(path, flags)
    except OSError as error:
        raise FileNotFoundError(error.errno, os.strerror(error.errno or 0), str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path} is no plain file")
    return descriptor
