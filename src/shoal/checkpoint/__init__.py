"""Memory-first checkpoints: a copy into shared memory now, the disk later, somebody else's memory if wished.

A training process lays its state out as one **image** (`image`: a header, then raw tensors) in a **slot**: a shared
memory file that its agent made and owns (`slots` decides which, `memory` makes and maps them). That copy is all that
training waits for. The agent then writes the image to a **folder** (`folder`: a directory or a URL) under a
**manifest** (`manifests`: written last, with checksums), and may send it to another agent (`replica`).

Who survives what: a slot survives its processes, not its agent; a manifest survives everything but the folder. An
image counts only when its agent was told that it is complete, a file only when a manifest names it and its
checksums hold. Nothing here knows torch, and nothing is ever unpickled (`tree`).
"""
