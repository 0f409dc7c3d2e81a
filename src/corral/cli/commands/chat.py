import click

from corral.cli.app import DURATION, App, Verb, pass_app


@click.command("chat", cls=Verb)
@click.option("--agent", metavar="NAME", help="With whom; the only agent there is, if left out.")
@click.option("--once", metavar="TEXT", help="Say this, wait for the answer, and end.")
@click.option("--timeout", type=DURATION, metavar="10m", help="How long to wait for an answer.")
@pass_app
def command(app: App, agent: str | None, once: str | None, timeout: int | None) -> int:
    """Talk to an agent here; what is answered after you left is shown the next time.

    Each agent and directory has its own talk, which goes on where it stopped. /help says what can
    be said to Corral itself; an empty line looks for news; Ctrl-D ends.
    """
    from corral.cli.chat_client import Talk

    talk = Talk(app, agent, timeout)
    return talk.once(once) if once is not None else talk.go_on()
