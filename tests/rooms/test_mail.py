from corral.library import Corral


def test_a_key_that_was_seen_gives_back_the_first_letter(store: Corral) -> None:
    first = store.mail.put("agent:ada", "hello", key="k")
    again = store.mail.put("agent:ada", "changed", key="k")
    assert (again.id, again.body) == (first.id, "hello")
    assert len(store.events.after().items) == 1
