"""The inside of the joins."""
