"""The simulated machine: time, network, disk and randomness from one seed."""
