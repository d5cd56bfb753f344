"""The oracle: a naive reference interpreter, and random flows and data to compare with it."""
