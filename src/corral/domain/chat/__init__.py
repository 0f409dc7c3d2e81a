"""People and agents over chat channels: who hears what, and what goes where.

In the order of a message's way:

    ops          channels, the places on them, and the people who speak there
    wiring       which agents hear which places, and where they may send to
    receiving    an event of a platform is stored, once
    hearing      what has to be known to judge it, read together for a batch
    judging      what becomes of it: heard, held, turned away, an answer, a command
    routing      who hears it, and why; with patterns, a pure idea
    commands     what people tell Corral itself: /clear, /stop …
    admitting    what was held goes on, or is turned away
    talking      the sessions that hear: their letters become the turns of runs
    letters      what such a letter says, and when that is believed
    staying      runs that stay get what comes next without being started anew
    tasking      what the clock gives a session to do
    corresponding    letters of agents to agents, in exchanges
    sending      what goes out: a letter of its place, and what became of it
    attaching    files that agents send
    cards        questions that are shown on a channel, and answered there
    looking      lists of messages and talks, for people and programs
    taking       what another program's database brings in

What agents ask of the host is the room `requests`; agents in sandboxes are the room `boxes`.
"""
