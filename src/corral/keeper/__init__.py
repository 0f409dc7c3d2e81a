"""The small process that keeps one run: it starts the agent, watches it and says how it ended."""

import sys

# msgspec takes a few names out of typing_extensions where that is installed, and else the same ones
# out of typing; loading it takes longer than all of msgspec, and a keeper for each run is small.
if "typing_extensions" not in sys.modules:
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    import msgspec  # noqa: F401

    del sys.modules["typing_extensions"]
