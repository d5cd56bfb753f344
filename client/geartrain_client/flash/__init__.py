"""`gear flash`: the agent onto devices, as an installer, inside an image made by others, or as a container.

Before a device's first record. Guarantees: what a device installs was resolved and hash-checked where `gear`
runs, so that the device asks no network. The same input gives the same bytes. Outputs are 0600, since they
may hold a one-time token, which is the only secret that they ever hold beside a network's key.
"""
