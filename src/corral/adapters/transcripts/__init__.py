"""The records that agent CLIs keep by themselves, read without touching them."""
