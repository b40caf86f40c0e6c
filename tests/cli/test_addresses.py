"""Ports that are named now and used later, and the interfaces that lead out of the machine."""

import socket
from pathlib import Path

from shoal.cli.addresses import LOWEST_PORT, first_ephemeral, free_ports, outward


def test_ports_for_later_are_such_as_the_system_gives_to_nobody_by_itself() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(LOWEST_PORT <= port < first_ephemeral() for port in ports)


def test_a_port_is_not_named_when_somebody_listens_on_it_at_any_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("", 0)) as everywhere:
        taken = {here.getsockname()[1], everywhere.getsockname()[1]}
        assert not taken & set(free_ports(2, candidates=taken))


def test_any_port_will_do_where_the_system_keeps_none_back() -> None:
    assert len(set(free_ports(3, candidates=()))) == 3


def test_interfaces_that_are_up_and_lead_out_are_found(tmp_path: Path) -> None:
    for name, flags in {"lo": "0x9", "eth0": "0x1003", "wlan0": "0x1002", "br0": "0x1003"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "flags").write_text(f"{flags}\n")
    (tmp_path / "bonding_masters").touch()
    assert outward(tmp_path) == ("br0", "eth0")
    assert outward(tmp_path / "nowhere") == tuple(sorted(n for _, n in socket.if_nameindex() if n[:2] != "lo"))
