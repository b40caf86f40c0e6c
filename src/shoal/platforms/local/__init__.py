"""One machine: nodes are agent processes, children of whoever runs the platform."""

from shoal.platforms.local.scaler import LocalLaunch, LocalScaler, LocalSettings, die_with

__all__ = ["LocalLaunch", "LocalScaler", "LocalSettings", "die_with"]
