"""Kinds of channels that other packages bring, by an entry point; and packages that are broken."""

import sys
from pathlib import Path

import pytest

from corral.adapters.channels import registry
from corral.adapters.channels.contract import ChannelTraits
from corral.api import Corral
from corral.kernel.errors import Invalid
from tests.support.errors import because

ADAPTER = """
from corral.adapters.channels.contract import BaseAdapter, ChannelTraits
from corral.adapters.channels.contract import OutgoingMessage, SentMessage

class Pigeon(BaseAdapter):
    kind = "pigeon"
    traits = ChannelTraits(max_text=140)
    config = {"loft": True}
    secrets = {"ring": False}

    def check_health(self):
        if self._config["loft"] == "empty":
            raise RuntimeError("all birds are out")

    def send(self, message: OutgoingMessage):
        return SentMessage([message.key])
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that is installed, with two kinds, one of which cannot be loaded."""
    folder = tmp_path / "site"
    about = folder / "corral_birds-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: corral-birds\nVersion: 1.0\n")
    kinds = "pigeon = corral_birds:Pigeon\nraven = corral_ravens:Raven\nweb = corral_birds:Pigeon\n"
    (about / "entry_points.txt").write_text(f"[{registry.ENTRY_POINT_GROUP}]\n{kinds}")
    (folder / "corral_birds.py").write_text(ADAPTER)
    (folder / "corral_ravens.py").write_text("raise RuntimeError('never again')\n")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("corral_birds", "corral_ravens"):
        sys.modules.pop(name, None)


def test_plugin_adds_a_kind_but_cannot_replace_a_builtin(package: Path) -> None:
    assert {"pigeon", "raven"} <= {*registry.list_kinds()}
    assert registry.get_traits("pigeon") == ChannelTraits(max_text=140)
    assert registry.get_adapter_class("web").__module__ == "corral.adapters.channels.web"


def test_plugin_channel_can_be_added_tested_and_used(package: Path, store: Corral) -> None:
    with pytest.raises(Invalid, check=because("missing_option", missing=["loft"])):
        store.channels.add("birds", "pigeon")
    store.channels.add("birds", "pigeon", config={"loft": "north"})
    assert store.channels.test("birds").ok
    place = store.places.register("birds", "tower")
    (said,) = store.messages.send_as_system(place.id, "coo")
    adapter = store.channels.open("birds")
    assert [each.state for each in store.internal.chat.deliver("birds", adapter, owner="t")] == [
        "done"
    ]
    assert store.messages.get(said.id).state == "sent"
    store.channels.add("gone", "pigeon", config={"loft": "empty"})
    health = store.channels.test("gone")
    assert (health.ok, health.error) == (False, "RuntimeError: all birds are out")


def test_plugin_that_fails_to_load_is_reported(package: Path, store: Corral) -> None:
    with pytest.raises(Invalid, check=because("plugin_not_loadable", kind="raven")):
        store.channels.add("tower", "raven")
    assert registry.get_traits("raven") == ChannelTraits()
