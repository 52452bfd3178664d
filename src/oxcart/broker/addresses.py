"""Decides which addresses a webhook may be sent to: public ones, and those that the operator allows.

A callback URL comes from the producer of a job; it must not make a worker connect to its neighbours. A
name is resolved once, all its addresses are checked, and the connection goes to one of the checked ones.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

from oxcart.model.errors import OxcartError, ValidationError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

#: Networks that are not public, from IANA's registries of special addresses. They are listed here because the
#: standard library's notion of global differs between versions of Python.
_SPECIAL_4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",
            "100.64.0.0/10",  # behind a provider's NAT
            "127.0.0.0/8",
            "169.254.0.0/16",  # link-local, and the metadata of clouds
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
#: No address of version 6 outside it is public: ::1, fc00::/7, fe80::/10, fec0::/10, ff00::/8 and others.
_UNICAST_6 = ipaddress.IPv6Network("2000::/3")
#: Networks inside it that are not public, or tunnel to addresses of version 4, which no receiver needs.
_SPECIAL_6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocols: Teredo, benchmarks, ORCHID
            "2001:db8::/32",
            "2002::/16",  # 6to4
            "3fff::/20",
        ),
    )
)
#: NAT64: the last 32 bits are an address of version 4.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
#: ISATAP: the bits before an address of version 4 in the last 64 bits.
_ISATAP = (0x00005EFE, 0x02005EFE)
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")
_LOCAL_ENDS = (".localhost", ".local", ".internal", ".localdomain")


class AddressBlocked(OxcartError):
    """A webhook would go to an address that is not public and not allowed.

    Attributes:
        host: The host in question.
        address: Its address, if it was resolved.
    """

    def __init__(self, host: str, address: str) -> None:
        super().__init__(host, address)
        self.host = host
        self.address = address

    def __str__(self) -> str:
        what = self.host if self.host == self.address else f"{self.host} ({self.address})"
        return f"webhooks are not sent to {what}: it is no public address, and it is not allowed"


def read_networks(allow: Sequence[str]) -> tuple[Network, ...]:
    """Reads the networks that an operator allows.

    Raises:
        ValidationError: One of them is none.
    """
    found = []
    for each in allow:
        try:
            found.append(ipaddress.ip_network(each))
        except (ValueError, TypeError):
            raise ValidationError("allow", "networks such as 10.0.0.0/8", each) from None
    return tuple(found)


def check_address(host: str, text: str, allow: Sequence[Network] = ()) -> None:
    """Refuses an address that is not public, unless it is allowed.

    Raises:
        AddressBlocked: It is refused.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        raise AddressBlocked(host, text) from None
    for each in _inside(address):
        if any(each.version == network.version and each in network for network in allow):
            continue
        if not _is_public(each):
            raise AddressBlocked(host, text)


def check_submitted(url: str, allow: Sequence[Network] = ()) -> None:
    """Checks a URL without resolving its host: a literal private address is refused.

    Raises:
        ValidationError: It is.
    """
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    literal = _literal(host)
    if literal is not None:
        try:
            check_address(host, literal, allow)
        except AddressBlocked as error:
            raise ValidationError("callback_url", "at a public address", host) from error
    elif (host in _LOCAL_NAMES or host.endswith(_LOCAL_ENDS)) and not allow:
        raise ValidationError("callback_url", "at a public address", host)


async def resolve(host: str, port: int) -> Sequence[str]:
    """Returns the addresses of a host, by the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def choose_address(host: str, port: int, allow: Sequence[Network], ask: Resolve = resolve) -> str:
    """Returns an address of a host to connect to; checks all of them, so that none can be smuggled in.

    Raises:
        AddressBlocked: One of them is refused.
        OSError: The host cannot be found.
    """
    literal = _literal(host)
    addresses = [literal] if literal is not None else list(await ask(host, port))
    if not addresses:
        raise OSError(f"{host} has no address")
    for address in addresses:
        check_address(host, address, allow)
    return addresses[0]


def _literal(host: str) -> str | None:
    """Returns the address that a host is in any literal form: 127.0.0.1, 2130706433, 0x7f.1, ::1."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if host and all(part[:2].lower() == "0x" or part.isdigit() for part in host.split(".")):
        try:
            return socket.inet_ntoa(socket.inet_aton(host))
        except OSError:
            return None
    return None


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not any(address in network for network in _SPECIAL_4)
    special = address not in _UNICAST_6 or any(address in network for network in _SPECIAL_6)
    return address.is_global and not special


def _inside(address: Address) -> list[Address]:
    """Returns an address, or the addresses of version 4 that it leads to."""
    if isinstance(address, ipaddress.IPv6Address):
        last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if address.ipv4_mapped is not None or address in _NAT64:
            return [last]
        if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
            return [address, last]
    return [address]
