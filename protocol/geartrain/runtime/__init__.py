"""The runtime: a fragment's steps as fused chains over batches, its keyed state and its splits. No I/O.

Used three times: in the agent, inside Spark for Python steps, and in `gear run` and tests.
"""
