"""Files of a Kuroshio grid.

    import fsspec
    with fsspec.open("kuroshio://gateway.example.org:8443/data/a.csv", ticket="alice.ticket") as f: ...

    from kuroshio import Client
    Client("https://localhost:8443", ticket="alice.ticket").where("/data/a.csv")

Everything goes through the grid's gateway (`kuroshio gateway`) by HTTP, so this package is plain Python and
needs no program of the grid on the host.
"""

from kuroshio.client import Client, Entry
from kuroshio.filesystem import KuroshioFileSystem

__all__ = ["Client", "Entry", "KuroshioFileSystem"]
