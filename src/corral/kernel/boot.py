"""The id of the current boot of this machine."""


def read_boot_id(proc: str = "/proc") -> str | None:
    """Return the kernel's boot id, or None on systems without one (macOS)."""
    try:
        with open(f"{proc}/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None
