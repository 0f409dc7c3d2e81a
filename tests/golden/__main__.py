"""`python -m tests.golden`: rewrite the golden files (`make golden`)."""

from tests import golden

if __name__ == "__main__":
    golden.write()
