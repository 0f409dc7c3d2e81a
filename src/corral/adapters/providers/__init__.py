"""Providers: one module per agent CLI, all behind the `Provider` protocol.

A provider translates between Corral and one agent CLI:

- `LaunchRequest` -> `LaunchCommand`: the arguments, environment and first input of the process.
- A line of structured output -> `ProviderFact`s: turns, usage, limits, denials, results.
- A rendered terminal screen -> `ScreenReading`: is the CLI working, ready, or in a dialog.

A provider is stateless and has no side effects. It does not access the store, and the only process
it starts is `PROGRAM --version` or `--help`. The supervisor starts the CLI, feeds the parser and
records the facts.

Modules:

- `provider`: the protocol, the request and command structs, and the base class `CliProvider`.
- `registry`: lookup by name or by program.
- `facts`: the vocabulary that every parser emits.
- `json_lines`: base class and helpers for parsers of untrusted JSON lines.
- `limits`: recognizes usage limits and their reset times in error messages.
- `screens`, `choices`: read dialogs from a terminal screen and compute the keys that answer them.
- `acp`, `acp_parser`: client and log parser for the Agent Client Protocol.
- `mcp_config`, `versions`: configuration of Corral's MCP server, version probes.
- `claude`, `codex`, `copilot`, `gemini`, `opencode`, `qwen`: the supported CLIs.
- `plain`: any other command. `scripted`: the bundled agent for the demo and tests.

How to add an agent CLI:

1. Create `providers/NAME.py` with a subclass of `CliProvider`. Set `name`, `program` and
   `quit_command`, and implement `build_command` and `create_parser`. `qwen.py` is a short example.
   End the module with `PROVIDER = ...`.
2. Write a parser. Subclass `JsonLinesParser` and implement `read`. Return only what the stream
   states; leave other fields None. Use the getters of `json_lines`, so that no input can raise.
3. Add the name and the program to `PROGRAMS` in `registry.py`.
4. If the CLI has a terminal interface, add a `ScreenLayout` to `SCREENS` in `screens.py`. Take the
   patterns from captured screens. Without a layout, a terminal run works but its dialogs are not
   recognized.
5. If the CLI implements the Agent Client Protocol, set `acp_args` (and `acp_program`).
6. If the CLI writes transcripts, set `transcript_files` and add a reader in `adapters/transcripts`.
7. If the CLI cannot disable single tools, call `refuse_denials` in `build_command`: a run must not
   start with a tool that the user denied.
8. Add recorded output to the tests of streams, and cases for its command lines.
"""
