"""Checks that every request passes before a handler sees it, for the API and the pages alike.

`http/app.py` stacks these, outermost first:

1. `request_metrics`: counts requests and measures their duration.
2. `security_headers`: adds headers to every response, also to errors.
3. `error_responses`: turns exceptions of everything below into responses.
4. `origin`: the Host header, and the Origin of a write.
5. `authentication`: the token of the request, the run of the calling process, their permissions,
   and requests per second (`rate_limits`).
6. `concurrency`: requests in progress, in total and by agent.
7. `body_limits`: size, JSON values, memory and duration of request bodies.

A handler finds in its request's state: `who` (the identity of the token), `store` (a store that
acts as the caller), `slot` (its place among concurrent requests) and `check_body`.
"""
