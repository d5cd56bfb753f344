"""The commands of `gear` that need the data centre's packages: they run, show and check what runs here.

`gear` itself is in `geartrain_client`. It finds these by the entry-point group `geartrain.commands`, whose
names are those of the commands; cloud/pyproject.toml lists them.
"""
