"""Windows and what they hold: when they open, what they add up, when they fire."""
