"""The part that every other part imports: what a flow is, how it runs and what it says on the wire."""
