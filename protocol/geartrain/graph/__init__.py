"""The graph: a flow as data, what an operator is, and what follows for the streams between steps."""
