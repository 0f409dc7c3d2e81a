"""Which kinds of channels there are: those of Corral, and those that other packages bring.

A package brings one by an entry point of the group `corral.channels`, whose name is the kind and
whose object is a class that keeps `contract.Adapter`. Nothing is imported until it is used.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from corral.adapters.channels.contract import Adapter, Traits
from corral.kernel.errors import Invalid

KINDS = ("terminal", "web", "webhook", "matrix", "telegram", "slack")
GROUP = "corral.channels"


def names() -> list[str]:
    """All kinds that can be added here."""
    return [*KINDS, *sorted(_foreign())]


def find(kind: str) -> type[Adapter]:
    """The class of a kind."""
    if kind in KINDS:
        found: type[Adapter] = import_module(f"corral.adapters.channels.{kind}").ADAPTER
        return found
    entry = _foreign().get(kind)
    if entry is None:
        raise Invalid(
            f"There is no kind of channel {kind!r}; take one of {', '.join(names())}.", kind=kind
        )
    try:
        loaded: type[Adapter] = entry.load()
    except Exception as error:  # whatever is wrong with somebody else's package
        raise Invalid(
            f"The kind of channel {kind!r} is brought by {entry.value}, which cannot be loaded "
            f"({type(error).__name__}: {error}); repair or remove that package.",
            kind=kind,
            reason="plugin_not_loadable",
        ) from None
    return loaded


def traits_of(kind: str) -> Traits:
    """What a kind can do; of one that is not installed here, nothing is known."""
    try:
        return find(kind).traits
    except Invalid:
        return Traits()


def check(kind: str, config: Mapping[str, Any], secrets: set[str]) -> None:
    """Invalid unless this is all that a channel of the kind needs, and nothing that it does not
    know."""
    found = find(kind)
    _check_names(kind, "configuration", found.config, {*config})
    _check_names(kind, "secret", found.secrets, secrets)


def _check_names(kind: str, what: str, known: Mapping[str, bool], given: set[str]) -> None:
    allowed = {*known, "owner_place"} if what == "configuration" else {*known}
    missing = [name for name, needed in known.items() if needed and name not in given]
    if missing:
        how = "--secret NAME=SECRET" if what == "secret" else "--set NAME=VALUE"
        raise Invalid(
            f"A channel of kind {kind} needs the {what} {', '.join(missing)}; give it with {how}.",
            missing=missing,
            reason="missing_option",
        )
    if strange := sorted(given - allowed):
        takes = ", ".join(sorted(allowed)) or "none"
        raise Invalid(
            f"A channel of kind {kind} has no {what} {', '.join(strange)}; it takes {takes}.",
            unknown=strange,
        )


def _foreign() -> Mapping[str, Any]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in KINDS}
