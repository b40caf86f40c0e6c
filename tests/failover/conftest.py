"""What tests of real jobs need besides."""

from tests.stores.conftest import etcd

__all__ = ["etcd"]
