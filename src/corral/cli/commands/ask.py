import sys

import click

from corral.cli.app import DURATION, App, Verb, pass_app, read_body


@click.command("ask", cls=Verb)
@click.argument("text")
@click.option("--option", "options", multiple=True, metavar="ANSWER", help="One to choose.")
@click.option("--free", is_flag=True, help="Another answer than the options is fine, too.")
@click.option("--of", "answerers", multiple=True, metavar="WHO", help="user:NAME or agent:NAME.")
@click.option("--deadline", type=DURATION, metavar="1h", help="When an answer comes too late.")
@click.option("--fallback", metavar="ANSWER", help="What counts when nobody answers in time.")
@click.option("--effect", metavar="TEXT", help="All that is done on the answer; or @FILE.")
@click.option("--needed", type=int, default=1, help="How many must give the same answer.")
@click.option("--project", metavar="ID|DIR", help="The project that it belongs to.")
@click.option("--key", help="The same key is the same question.")
@click.option("--no-wait", is_flag=True, help="The answer comes as a letter.")
@click.option("--timeout", type=DURATION, metavar="10m", help="How long to wait at the most.")
@pass_app
def command(
    app: App,
    text: str,
    options: tuple[str, ...],
    free: bool,
    answerers: tuple[str, ...],
    deadline: int | None,
    fallback: str | None,
    effect: str | None,
    needed: int,
    project: str | None,
    key: str | None,
    no_wait: bool,
    timeout: int | None,
) -> int:
    """Ask TEXT (or @FILE), wait, and print the answer; exit code 1 when there is none.

    Whoever is not there to hear the answer finds it in its mailbox.
    """
    from corral import config

    asked = app.store.questions.ask(
        read_body(text, False),
        options=list(options),
        free=free,
        asker=config.mailbox(),
        answerers=list(answerers),
        deadline_ms=deadline,
        fallback=fallback,
        effect=read_body(effect, False) if effect else None,
        needed=needed,
        project=app.project_id(project),
        run=config.run_id(),
        key=key,
    )
    if no_wait:
        app.say(f"{asked.id} is asked; the answer comes to {asked.asker}.", asked)
        return 0
    if not app.json:
        click.echo(f"{asked.id} waits for an answer: corral question answer {asked.id} …", err=True)
    ended = app.store.questions.wait(asked.id, timeout_ms=timeout)
    if ended.answer is None and not app.json:
        click.echo(f"{ended.id} is {ended.state}; there is no answer.", err=True)
    else:
        app.say(ended.answer or "", ended)
    sys.stdout.flush()  # heard only when it is out: else the letter must tell it
    app.store.questions.hear(ended.id)
    return 0 if ended.answer is not None else 1
