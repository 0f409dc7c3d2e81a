"""The `corral` command."""

import sys

# Type checkers know this name; importing it from typing would double the time of `--version`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def _run_hook() -> "NoReturn":
    """Run a hook with as little start-up as possible: hooks run at every tool use of an agent."""
    import gc
    import os

    gc.disable()  # the process ends before a collection would pay off
    from corral.kernel.lazy_msgspec import load_msgspec

    load_msgspec()
    from corral import hooks

    code = hooks.run(sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # skip interpreter shutdown: the store is closed already


def main() -> None:
    """Run the `corral` command."""
    # Hooks and scripts query the version often; it needs only this package's `__init__`.
    if sys.argv[1:] == ["--version"]:
        from corral import __version__

        print(f"corral {__version__}")
        return
    # An option may have its value in the same argument (`--store=URL`): the command parses them.
    if sys.argv[1:2] == ["hook"] and not any(arg.startswith("-") for arg in sys.argv[2:]):
        _run_hook()
    if sys.argv[1:2] in (["run"], ["resume"]) and not {"--help", "-h"} & {*sys.argv}:
        from contextlib import suppress

        from corral.adapters import supervisor_process

        # The supervisor loads while the arguments are parsed. If it cannot start yet (no process or
        # descriptor left), the command tries again later and reports the error.
        with suppress(OSError):
            supervisor_process.prestarted = supervisor_process.StartingSupervisor()
    if sys.argv[1:] == ["mcp"]:
        # Agents start it with each of their runs, and some have a short timeout.
        from corral.kernel.lazy_msgspec import load_msgspec

        load_msgspec()
        from corral.mcp.stdio import run as serve

        sys.exit(serve())
    from corral.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
