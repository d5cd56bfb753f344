"""How a user's task is called: its context, its timers, its state."""
