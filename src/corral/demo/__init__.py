"""The demo of `make demo`, and the scripted agent that it shares with the tests."""
