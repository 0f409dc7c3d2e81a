"""Chat: people and agents talk over connected chat platforms.

    model               the records: channels, places, people, wirings, messages, conversations
    sql                 the statements, one section for each concept
    patterns            linear-time patterns of wirings
    payloads            the bodies of letters to sessions, and when they are trusted
    queries             lists of messages and conversations, for people and programs

    channels/           who talks where
        ops             connect and disconnect a channel
        places          the chats on a channel
        people          people, and their accounts on channels
        wirings         which agents listen in which places
        destinations    which places an agent may send to

    inbound/            from the platform to agents: start reading at `receive`
        receive         store each event of a platform once, then moderate and route it
        message         a message that is being routed or moderated
        message_rows    store messages and change their states
        routable        the fast path: route a batch of messages that need no moderation
        moderation      all other messages: answers, commands, and strangers to approve
        router          which wirings wake their agents, and why (pure functions)
        routing_cache   the data that routing needs, cached for a batch
        held            release or reject messages that waited for an owner's decision
        commands        commands to Corral itself: /clear, /stop …

    conversations/      sessions that are woken by letters
        ops             find and open conversations
        letter_batch    which letters share the next chat turn
        chat_turns      begin and end a chat turn, and record the outcome of its letters
        replies         answers and notices of a chat turn
        prompts         the prompt of a chat turn
        long_running    runs that take their next letters themselves
        scheduled_prompts   prompts that a schedule sends to an agent
        agent_mail      letters between agents, with a hop limit

    outbound/           from agents to the platform
        queue           send messages: each is a row and a letter of its place
        targets         the place and thread that a message goes to
        delivery        send the letters, and record the results
        reconciliation  unconfirmed and stale messages
        attachments     files that agents send
        cards           questions that are shown in a chat and answered there

Requests of agents to the host are in `host_requests`; agents in sandboxes in `sandbox_bridge`.
"""
