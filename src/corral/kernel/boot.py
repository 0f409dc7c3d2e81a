"""The id of this boot of the machine."""


def read_boot_id(proc: str = "/proc") -> str | None:
    """Return the kernel's id of this boot; None where it has none (macOS)."""
    try:
        with open(f"{proc}/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None
