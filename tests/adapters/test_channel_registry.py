"""Channel kinds of plugins: entry points, overrides, and plugins that fail to load."""

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

class ExampleAdapter(BaseAdapter):
    kind = "example"
    traits = ChannelTraits(max_text=140)
    config = {"folder": True}
    secrets = {"ring": False}

    def check_health(self):
        if self._config["folder"] == "empty":
            raise RuntimeError("the folder is empty")

    def send(self, message: OutgoingMessage):
        return SentMessage([message.key])
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with two channel kinds, one of which cannot be loaded."""
    folder = tmp_path / "site"
    about = folder / "corral_plugin-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: corral-plugin\nVersion: 1.0\n")
    adapter = "corral_plugin:ExampleAdapter"
    kinds = f"example = {adapter}\nbroken = corral_broken:BrokenAdapter\nweb = {adapter}\n"
    (about / "entry_points.txt").write_text(f"[{registry.ENTRY_POINT_GROUP}]\n{kinds}")
    (folder / "corral_plugin.py").write_text(ADAPTER)
    (folder / "corral_broken.py").write_text("raise RuntimeError('import failed')\n")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("corral_plugin", "corral_broken"):
        sys.modules.pop(name, None)


def test_plugin_adds_a_kind_but_cannot_replace_a_builtin(package: Path) -> None:
    assert {"example", "broken"} <= {*registry.list_kinds()}
    assert registry.get_traits("example") == ChannelTraits(max_text=140)
    assert registry.get_adapter_class("web").__module__ == "corral.adapters.channels.web"


def test_plugin_channel_can_be_added_tested_and_used(package: Path, store: Corral) -> None:
    with pytest.raises(Invalid, check=because("missing_option", missing=["folder"])):
        store.channels.add("plugin", "example")
    store.channels.add("plugin", "example", config={"folder": "north"})
    assert store.channels.test("plugin").ok
    place = store.places.register("plugin", "place")
    (message,) = store.messages.send_as_system(place.id, "hello")
    adapter = store.channels.open("plugin")
    assert [
        letter.state for letter in store.internal.chat.deliver("plugin", adapter, owner="t")
    ] == ["done"]
    assert store.messages.get(message.id).state == "sent"
    store.channels.add("unhealthy", "example", config={"folder": "empty"})
    health = store.channels.test("unhealthy")
    assert (health.ok, health.error) == (False, "RuntimeError: the folder is empty")


def test_plugin_that_fails_to_load_is_reported(package: Path, store: Corral) -> None:
    with pytest.raises(Invalid, check=because("plugin_not_loadable", kind="broken")):
        store.channels.add("place", "broken")
    assert registry.get_traits("broken") == ChannelTraits()
