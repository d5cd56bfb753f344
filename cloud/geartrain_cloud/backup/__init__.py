"""Backups of a platform's state folder: taken while it runs, whole or not at all, and brought back."""
