"""Checks that every request passes before a handler sees it, for the API and the pages alike.

`access.AccessMiddleware` runs them in this order:

1. `origin`: the Host header, and the Origin of a write.
2. `authentication`: the token in a header, a cookie or a link; the run of the calling process.
3. `rate_limits`: requests per second, by token or by address.
4. `concurrency`: requests in progress, in total and by agent.
5. `body_limits`: size, JSON values, memory and duration of request bodies.

`security_headers` adds headers to every response.
"""
