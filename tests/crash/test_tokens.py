"""Crashes of token operations: acknowledged creations and revocations survive."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.kernel.errors import Refused
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit, do_nothing
from tests.support.errors import because


def test_acknowledged_token_changes_survive_a_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def create_and_revoke(store: Corral, world: World) -> None:
        world.record(store.tokens.create("phone").value)
        store.tokens.revoke("phone")
        world.record("revoked")

    def check(store: Corral, world: World) -> None:
        if not world.records:
            assert [token.name for token in store.tokens.list().items] in ([], ["phone"])
            return
        value, *revoked = world.records
        if revoked or not store.tokens.list().items:
            with pytest.raises(Refused, check=because("revoked")):
                store.internal.tokens.check(value)
        else:
            assert store.internal.tokens.check(value).name == "phone"

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(run=create_and_revoke, recover=do_nothing, check=check)
    )
