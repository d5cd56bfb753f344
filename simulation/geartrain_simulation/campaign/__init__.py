"""Many worlds: runs by seed, what was found, and the smallest world that shows it."""
