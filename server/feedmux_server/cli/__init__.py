"""The commands of `feedmux` that use the server's code, or make its files. `feedmux.cli` finds and runs them.

`doctor --endpoint`, `keys`, `tenants usage` and `token` work where only the client's packages are installed: their
modules import at the top only what needs no other packages.
"""
