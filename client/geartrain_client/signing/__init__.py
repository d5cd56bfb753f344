"""What an author signs with, and what is signed: the keys, and the metadata by TUF's roles root and targets.

Where a person runs `gear`, and nowhere else: a platform never holds these keys.
"""
