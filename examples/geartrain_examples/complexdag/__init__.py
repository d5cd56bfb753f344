"""A graph with many paths: two sources, five steps, five sinks, fifteen edges."""
