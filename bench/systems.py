"""The systems that benchmarks compare: ours on every path, and the peers."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile

import conductor


def program(path):
    """Returns the path of a program that Bazel put beside this one."""
    # __file__ cannot be used, because the links of the runfiles are resolved in it.
    runfiles = os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0])))
    if not os.path.exists(os.path.join(runfiles, path)):
        raise SystemExit(f"{path} is not there; start this by ./dev bench")
    return os.path.join(runfiles, path)


@dataclasses.dataclass(frozen=True)
class Host:
    """Where a process runs: this machine, or a network namespace on it."""

    address: str = "127.0.0.1"
    interface: str = "lo"
    namespace: str = ""

    def command(self, command):
        if not self.namespace:
            return command
        return ["ip", "netns", "exec", self.namespace] + command


LOOPBACK = Host()


@dataclasses.dataclass
class Work:
    """The work of a step: N contributions of S bytes, and the hosts of the processes."""

    workers: int
    bytes: int
    hosts: list = None  # one for each worker; None: all on this machine
    server_hosts: list = None
    congestion: str = ""  # empty: the kernel's default

    def host(self, rank):
        return self.hosts[rank] if self.hosts else LOOPBACK

    def environment(self):
        if not self.congestion:
            return {}
        return {"LD_PRELOAD": program("bench/peers/libcongestion.so"),
                "TCP_CONGESTION": self.congestion}


# The paths between worker and server that ours can use, with the flags for each.
PATHS = {
    "tcp": {"worker": ["--shared_memory=false"],
            "server": ["--shared_memory=false", "--unix_socket=false"]},
    # TCP with TLS 1.3, and certificates on both sides.
    "tls": {"worker": ["--shared_memory=false"],
            "server": ["--shared_memory=false", "--unix_socket=false"]},
    # On one host, without shared memory.
    "unix": {"worker": [], "server": ["--shared_memory=false"]},
    # Contributions are in memory from AllocateGradients, and results are used in place.
    "shared-in-place": {"worker": ["--allocate", "--in_place"], "server": []},
    # Contributions are in memory from AllocateGradients, and results are copied to the caller.
    "shared": {"worker": ["--allocate"], "server": []},
    # The same from a server with TLS on its port, and certificates on both sides.
    "shared-tls": {"worker": ["--allocate"], "server": []},
    # Contributions and results are in ordinary memory.
    "shared-ordinary": {"worker": [], "server": []},
}


def make_certificate(folder, names):
    """Makes an authority, and a certificate for `names`. Returns the flags that use them."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, cwd=folder, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *key, "-subj", "/CN=bench", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *key, "-subj", "/CN=peer", "-keyout", "peer.key", "-out", "peer.csr")
    with open(f"{folder}/names", "w") as file:
        file.write(f"subjectAltName={names}\n")
    openssl("x509", "-req", "-in", "peer.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-extfile", "names", "-out", "peer.pem")
    return [f"--tls_ca={folder}/ca.pem", f"--tls_certificate={folder}/peer.pem",
            f"--tls_key={folder}/peer.key"]


PROGRAMS_OF_OURS = ("server/ps-server", "bench/ours_worker")


class Ours(conductor.System):
    """ps-server, and workers that link the client library.

    `variant` is a path with settings, for example "tcp+connections=2+servers=2". The settings are:
    FLAG=VALUE for the worker, server.FLAG=VALUE for ps-server, env.NAME=VALUE for both, servers=K,
    and processes=P (default: one for each worker). Servers keep their state in memory, as they do
    by default; with server.state=none they keep no state. `programs` is a folder with the programs
    of another build.
    """

    def __init__(self, variant, work, scratch, programs=None):
        self.state = tempfile.mkdtemp(prefix="syncgrads-bench-", dir="/dev/shm")
        super().__init__(variant, scratch, variant, work, programs)

    def stop(self):
        super().stop()
        shutil.rmtree(self.state)

    def start(self, variant, work, programs):
        server, worker = (os.path.join(programs, path) if programs else program(path)
                          for path in PROGRAMS_OF_OURS)
        path, *settings = variant.split("+")
        if path not in PATHS:
            raise SystemExit(f"there is no path {path}; there are {', '.join(PATHS)}")
        worker_flags = list(PATHS[path]["worker"])
        server_flags = list(PATHS[path]["server"])
        if path.endswith("tls"):
            files = make_certificate(self.state, "IP:127.0.0.1,URI:syncgrads:server,"
                                                 "URI:syncgrads:worker")
            worker_flags += files
            server_flags += files + [files[0].replace("--tls_ca", "--tls_client_ca")]
        environment = work.environment()
        servers = len(work.server_hosts) if work.server_hosts else 1
        processes = work.workers
        for setting in settings:
            name, value = setting.split("=", 1)
            if name == "servers":
                servers = int(value)
            elif name == "processes":
                processes = int(value)
            elif name.startswith("env."):
                environment[name[4:]] = value
            elif name.startswith("server."):
                server_flags.append(f"--{name[7:]}={value}")
            else:
                worker_flags.append(f"--{name}={value}")

        coordinator = ""
        for index in range(servers):
            host = work.server_hosts[index] if work.server_hosts else LOOPBACK
            # The server chooses a free port.
            command = [server, f"--bind={host.address}", "--port=0",
                       f"--index={index}", f"--state={self.state}/{index}"] + server_flags
            command += [f"--coordinator={coordinator}"] if index else [f"--servers={servers}"]
            if host is not LOOPBACK and not path.endswith("tls"):
                command.append("--insecure")
            says = self.launch_server(host.command(command), "listening on ", environment)
            if index == 0:
                coordinator = says
        per_process = work.workers // processes
        for rank in range(0, work.workers, per_process):
            self.launch(work.host(rank).command([
                worker, f"--conductor={self.socket_path}",
                f"--coordinator={coordinator}", f"--rank={rank}",
                f"--ranks={min(per_process, work.workers - rank)}",
                f"--world_size={work.workers}", f"--bytes={work.bytes}"] + worker_flags),
                environment)
        self.accept(work.workers)


class OpenMpi(conductor.System):
    """OpenMPI's MPI_Allreduce; `transport` is "shm" or "tcp"."""

    def __init__(self, transport, work, scratch):
        super().__init__(f"openmpi-{transport}", scratch, transport, work)

    def start(self, transport, work):
        command = ["mpirun", "-np", str(work.workers), "--oversubscribe", "--bind-to", "none",
                   "--mca", "btl", "self," + {"shm": "vader", "tcp": "tcp"}[transport]]
        if os.getuid() == 0:
            command.append("--allow-run-as-root")
        environment = work.environment()
        for name in environment:
            command += ["-x", name]
        if work.hosts:
            command += self._on_hosts(work)
        elif transport == "tcp":
            command += ["--mca", "btl_tcp_if_include", "lo"]
        command += [program("bench/peers/mpi_worker"), self.socket_path, str(work.bytes)]
        self.launch(work.host(0).command(command), environment)
        self.accept(work.workers)

    def _on_hosts(self, work):
        # Instead of ssh, mpirun uses this script. It enters the namespace and sets a host name of
        # its own, because two ranks with the same host name would not use the network.
        agent = os.path.join(self.directory, "agent")
        with open(agent, "w") as script:
            script.write("#!/bin/sh\n"
                         "host=$1\n"
                         "shift\n"
                         "exec ip netns exec \"$host\" unshare --uts sh -c "
                         "'hostname \"$0\"; exec sh -c \"$*\"' \"$host\" \"$@\"\n")
        os.chmod(agent, 0o755)
        names = ",".join(f"{host.namespace}:1" for host in work.hosts)
        return ["--host", names, "--mca", "plm_rsh_agent", agent, "--mca",
                "btl_tcp_if_include", work.hosts[0].interface, "--mca", "oob_tcp_if_include",
                work.hosts[0].interface, "--mca", "plm_rsh_no_tree_spawn", "1"]


class Gloo(conductor.System):
    """gloo's ring over TCP."""

    def __init__(self, work, scratch):
        super().__init__("gloo-ring", scratch, work)

    def start(self, work):
        meeting = os.path.join(self.directory, "meeting")
        os.makedirs(meeting)
        for rank in range(work.workers):
            host = work.host(rank)
            self.launch(host.command([program("bench/peers/gloo_worker"), self.socket_path,
                                      str(work.bytes), str(rank), str(work.workers), meeting,
                                      host.address]), work.environment())
        self.accept(work.workers)


class GrpcStream(conductor.System):
    """The round trip of S bytes on a bare gRPC stream, with one worker and without a sum."""

    def __init__(self, work, scratch):
        super().__init__("grpc-stream", scratch, work)

    def start(self, work):
        server = work.server_hosts[0] if work.server_hosts else LOOPBACK
        echo = program("bench/peers/grpc_echo")
        port = self.launch_server(server.command([echo, "serve", f"{server.address}:0"]),
                                  "listening on ", work.environment())
        self.launch(work.host(0).command([echo, f"{server.address}:{port}", self.socket_path,
                                          str(work.bytes)]), work.environment())
        self.accept(1)


class TcpFlow(conductor.System):
    """S bytes on one bare TCP connection: "send" in one direction, or "echo" in both."""

    def __init__(self, mode, work, scratch):
        super().__init__(f"tcp-{mode}", scratch, mode, work)

    def start(self, mode, work):
        server = work.server_hosts[0] if work.server_hosts else LOOPBACK
        flow = program("bench/peers/tcp_flow")
        port = self.launch_server(server.command([flow, "serve", server.address, "0", mode]),
                                  "listening on ", work.environment())
        self.launch(work.host(0).command([flow, server.address, port, mode, self.socket_path,
                                          str(work.bytes)]), work.environment())
        self.accept(1)


def peer(name, work, scratch):
    """Starts the peer of this name."""
    if name == "gloo-ring":
        return Gloo(work, scratch)
    if name == "grpc-stream":
        return GrpcStream(work, scratch)
    kind, _, transport = name.partition("-")
    if kind == "openmpi" and transport in ("shm", "tcp"):
        return OpenMpi(transport, work, scratch)
    if kind == "tcp" and transport in ("send", "echo"):
        return TcpFlow(transport, work, scratch)
    raise SystemExit(f"there is no peer {name}")


def parse_bytes(text):
    """Converts a size to bytes: "97.5MiB" becomes 102236160."""
    match = re.fullmatch(r"([0-9.]+)(KiB|MiB|GiB|)", text)
    if not match:
        raise SystemExit(f"{text} is not a size; say 4KiB, 97.5MiB")
    unit = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[match[2]]
    return int(float(match[1]) * unit) // 4 * 4


def show_bytes(count):
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and (count * 16) % size == 0:
            return f"{count / size:g}{unit}"
    return f"{count}"
