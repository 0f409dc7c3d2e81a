"""`python -m corral.keeper ORDER ANSWER STDIN`: three descriptors, see `adapters/keepers.py`."""

import gc
import sys

if __name__ == "__main__":
    # Somebody waits for the run to begin. What is loaded stays: there is nothing to collect.
    gc.disable()
    # msgspec takes a few names out of typing_extensions where that is installed, and the same ones
    # out of typing where it is not; loading that takes longer than all of msgspec.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    import msgspec  # noqa: F401

    del sys.modules["typing_extensions"]
    from corral.keeper.main import main

    sys.exit(main())
