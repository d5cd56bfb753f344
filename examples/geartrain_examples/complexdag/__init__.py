"""A graph that is no chain: two sources, five steps, five sinks, fifteen edges."""
