"""The `corral` command."""

import sys


def _load_msgspec() -> None:
    # What msgspec would take from typing_extensions is in typing too; others may need more of it.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    import msgspec  # noqa: F401

    del sys.modules["typing_extensions"]


def main() -> None:
    # Hooks and scripts ask for the version often; it needs nothing but this package's first lines.
    if sys.argv[1:] == ["--version"]:
        from corral import __version__

        print(f"corral {__version__}")
        return
    if sys.argv[1:2] == ["run"] and "--help" not in sys.argv:
        from corral.adapters import keepers

        keepers.early = keepers.StartingKeeper()  # it loads while the words are being understood
    if sys.argv[1:] == ["mcp"]:
        # Agents start it with each of their runs, and some do not wait for a slow one.
        _load_msgspec()
        from corral.interfaces.mcp.stdio import run as serve

        sys.exit(serve())
    from corral.interfaces.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
