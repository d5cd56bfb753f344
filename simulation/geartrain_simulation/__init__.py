"""A deterministic world in virtual time around the real parts, with checkers of what must always hold."""
