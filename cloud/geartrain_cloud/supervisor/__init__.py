"""The supervisor: a flow on one machine as separate processes, started, watched, restarted and ended."""
