"""The bundles of a platform: what authors have signed, what the platform adds, and what devices are served.

Beside the record's path. Guarantees: nothing that no trusted author has signed is served. The platform holds
the keys of the roles snapshot and timestamp, and of no other. Who only needs the places of its files loads no
library for keys.
"""
