"""What a user declares or implements: sources, sinks, tasks and their options."""
