"""The certificates of a fleet: its authority, and what that issues to broker, devices and the cloud's parts.

They stand beside the record's path: the broker ties a connection to a certificate, and topics to its name.
Guarantees: a private key is never overwritten, and only its owner can read it. What was revoked stays
revoked.
"""

from geartrain_cloud.certs.fleet import DEVICE, KINDS, SERVER, Fleet, Issued, Signed
from geartrain_cloud.certs.names import CLOUD, CLOUD_ROLES

__all__ = ["CLOUD", "CLOUD_ROLES", "DEVICE", "KINDS", "SERVER", "Fleet", "Issued", "Signed"]
