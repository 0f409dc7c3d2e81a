"""The state of another process, as far as the system reports it."""

from pathlib import Path


def is_stopped(process: int) -> bool:
    """Whether a process is stopped by a signal (state T); False where that is unknown."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    # The name of the program, in parentheses, may contain spaces and parentheses itself.
    return status.rpartition(")")[2].split()[:1] == ["T"]
