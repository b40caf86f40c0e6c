"""Where masters keep their jobs' state: `StateStore`s. Chosen and injected by the command line.

`MemoryStore` outlives a master but not its process (tests, simulation); `FileStore` a directory on this machine;
`stores.etcd.EtcdStore` an etcd cluster, where several machines may try to be the master (imported when asked for).
"""

from shoal.stores.file import FileStore
from shoal.stores.memory import MemoryState, MemoryStore

__all__ = ["FileStore", "MemoryState", "MemoryStore"]
