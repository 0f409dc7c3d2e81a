"""Registry of channel kinds: the built-in ones and those of other packages.

Another package registers a kind with an entry point in the group `corral.channels`: its name is the
kind, its object a class that implements `contract.ChannelAdapter`. Modules are imported on first
use. A package cannot replace a built-in kind.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from corral.adapters.channels.contract import ChannelAdapter, ChannelTraits
from corral.kernel.errors import Invalid

BUILTIN_KINDS = ("terminal", "web", "webhook", "matrix", "telegram", "slack")
ENTRY_POINT_GROUP = "corral.channels"


def list_kinds() -> list[str]:
    """Return all installed kinds."""
    return [*BUILTIN_KINDS, *sorted(_list_entry_points())]


def get_adapter_class(kind: str) -> type[ChannelAdapter]:
    """Return the adapter class of a kind. Raises Invalid."""
    if kind in BUILTIN_KINDS:
        adapter: type[ChannelAdapter] = import_module(f"corral.adapters.channels.{kind}").ADAPTER
        return adapter
    entry = _list_entry_points().get(kind)
    if entry is None:
        raise Invalid(
            f"Unknown channel kind {kind!r}. Available kinds: {', '.join(list_kinds())}.",
            kind=kind,
        )
    try:
        loaded: type[ChannelAdapter] = entry.load()
    except Exception as error:  # a third-party package may raise anything on import
        raise Invalid(
            f"Cannot load the channel kind {kind!r} from {entry.value} "
            f"({type(error).__name__}: {error}). Repair or remove that package.",
            kind=kind,
            reason="plugin_not_loadable",
        ) from None
    return loaded


def get_traits(kind: str) -> ChannelTraits:
    """Return the traits of a kind; the defaults if the kind is not installed."""
    try:
        return get_adapter_class(kind).traits
    except Invalid:
        return ChannelTraits()


def validate_settings(kind: str, config: Mapping[str, Any], secrets: set[str]) -> None:
    """Raise Invalid if a required setting is missing or a setting is unknown."""
    adapter = get_adapter_class(kind)
    _check_names(kind, "configuration", adapter.config, {*config})
    _check_names(kind, "secret", adapter.secrets, secrets)


def _check_names(kind: str, noun: str, known: Mapping[str, bool], given: set[str]) -> None:
    allowed = {*known, "owner_place"} if noun == "configuration" else {*known}
    missing = [name for name, needed in known.items() if needed and name not in given]
    if missing:
        option = "--secret NAME=SECRET" if noun == "secret" else "--config NAME=VALUE"
        raise Invalid(
            f"A channel of kind {kind} needs the {noun} {', '.join(missing)}: use {option}.",
            missing=missing,
            reason="missing_option",
        )
    if unknown := sorted(given - allowed):
        valid = ", ".join(sorted(allowed)) or "none"
        raise Invalid(
            f"Unknown {noun} for a channel of kind {kind}: {', '.join(unknown)}. Valid: {valid}.",
            unknown=unknown,
        )


def _list_entry_points() -> Mapping[str, Any]:
    from importlib.metadata import entry_points

    return {
        entry.name: entry
        for entry in entry_points(group=ENTRY_POINT_GROUP)
        if entry.name not in BUILTIN_KINDS
    }
