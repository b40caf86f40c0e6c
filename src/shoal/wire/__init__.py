"""What processes say to each other, and how it travels.

`messages` is the closed set between an agent and its master; `local` the one between a training process and
its agent (a Unix socket, no third-party import but msgspec); `codec` turns both into bounded msgpack;
`server` and `client` carry the first over one aiohttp port. Importing `shoal.wire` imports none of them.
"""
