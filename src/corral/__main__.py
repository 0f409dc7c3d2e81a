"""The `corral` command."""

import sys

# Type checkers know this name; importing it from typing would double the time of `--version`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def _run_hook() -> "NoReturn":
    """Straight to the work, since this runs at every use of a tool: a third of its time would go
    into what a process of a few milliseconds has no use for."""
    import gc
    import os

    gc.disable()  # nothing lives long enough to be collected
    from corral.kernel.lazy_msgspec import load_msgspec

    load_msgspec()
    from corral import hooks

    code = hooks.run(sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the store is closed, and there is nothing to take down


def main() -> None:
    # Hooks and scripts ask for the version often; it needs nothing but this package's first lines.
    if sys.argv[1:] == ["--version"]:
        from corral import __version__

        print(f"corral {__version__}")
        return
    if sys.argv[1:2] == ["hook"] and not {"--help", "-h", "--store", "--json"} & {*sys.argv}:
        _run_hook()
    if sys.argv[1:2] == ["run"] and "--help" not in sys.argv:
        from contextlib import suppress

        from corral.adapters import supervisor_process

        with suppress(OSError):  # no process, no descriptor: whoever needs it tries, and says so
            supervisor_process.early = (
                supervisor_process.StartingKeeper()
            )  # it loads while the words are understood
    if sys.argv[1:] == ["mcp"]:
        # Agents start it with each of their runs, and some do not wait for a slow one.
        from corral.kernel.lazy_msgspec import load_msgspec

        load_msgspec()
        from corral.mcp.stdio import run as serve

        sys.exit(serve())
    from corral.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
