"""Bundles on a device: fetched, checked by TUF, unpacked, tried out, and gone back from."""
