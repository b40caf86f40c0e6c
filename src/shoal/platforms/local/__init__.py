"""One machine: nodes are agent processes, children of whoever runs the master."""

from shoal.platforms.local.scaler import LocalLaunch, LocalScaler, LocalSettings

__all__ = ["LocalLaunch", "LocalScaler", "LocalSettings"]
