"""The platform as the command line sees it: where it is, one request, and what it answers."""
