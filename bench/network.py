"""A cluster on one machine. Hosts are network namespaces. They are connected by links of a given
rate to a bridge in another namespace. Nothing outside of these namespaces is changed."""

import os
import signal
import subprocess
import sys

import systems


class Network:
    """`hosts` hosts, each on a full-duplex link of `rate` (for example "200mbit"). Use it in a with
    statement; the namespaces are removed at its end."""

    def __init__(self, hosts, rate):
        self._prefix = f"sg{os.getpid()}"
        self._switch = f"{self._prefix}-switch"
        self._rate = rate
        self._namespaces = []
        self.hosts = [systems.Host(f"10.77.0.{i + 1}", "eth0", f"{self._prefix}-{i}")
                      for i in range(hosts)]

    def __enter__(self):
        if os.getuid() != 0:
            raise SystemExit("network namespaces are made by root only")
        # Without these handlers, a signal would leave the namespaces behind.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        try:
            self._add_namespace(self._switch)
            _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "bridge", "up")
            for i, host in enumerate(self.hosts):
                self._add_host(f"port{i}", host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for namespace in reversed(self._namespaces):
            subprocess.run(["ip", "netns", "del", namespace], check=False)
        self._namespaces = []

    def _add_namespace(self, name):
        _ip("netns", "add", name)
        self._namespaces.append(name)

    def _add_host(self, port, host):
        self._add_namespace(host.namespace)
        _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name",
            host.interface, "netns", host.namespace)
        _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        _ip("-n", host.namespace, "link", "set", "lo", "up")
        _ip("-n", host.namespace, "link", "set", host.interface, "up")
        _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface)
        # Each end limits what it sends, so both directions have the full rate.
        for namespace, device in ((self._switch, port), (host.namespace, host.interface)):
            _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate",
                 self._rate, "burst", "64kb", "latency", "50ms")


def _ip(*arguments):
    _run("ip", *arguments)


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")


def bits_per_second(rate):
    for unit, factor in (("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)):
        if rate.endswith(unit):
            return float(rate[:-len(unit)]) * factor
    raise SystemExit(f"{rate} is not a rate; say 200mbit")
