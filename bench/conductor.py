"""Lets several systems take turns at the same steps.

A system is a set of worker processes that execute the commands of a conductor (conducted.h), and
possibly servers. All systems are started first. Then each runs a block of steps in turn, round
after round, so that other load on the machine affects all systems alike. A system sleeps while it
is not its turn.
"""

import dataclasses
import os
import select
import socket
import statistics
import subprocess
import tempfile
import time

TIMEOUT_S = 180


class Failure(Exception):
    """A process ended or answered too late, or a result was wrong."""


def cpu_seconds(pid):
    """Returns the user and system time of all threads of a process, in seconds. The resolution is
    one nanosecond."""
    return time.clock_gettime((~pid << 3) | 2)


def resident_bytes(pid, peak=False):
    field = "VmHWM:" if peak else "VmRSS:"
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0  # the process has ended


class _Worker:
    def __init__(self, connection):
        self._connection = connection
        self._heard = b""
        hello = self.hear().split()
        if len(hello) != 3 or hello[0] != "ready":
            raise Failure(f"a worker said {hello}")
        self.rank, self.pid = int(hello[1]), int(hello[2])

    def say(self, line):
        self._connection.sendall(line.encode() + b"\n")

    def hear(self):
        self._connection.settimeout(TIMEOUT_S)
        while b"\n" not in self._heard:
            try:
                received = self._connection.recv(1 << 16)
            except socket.timeout:
                raise Failure(f"no answer within {TIMEOUT_S} s") from None
            if not received:
                raise Failure("a worker has hung up")
            self._heard += received
        line, self._heard = self._heard.split(b"\n", 1)
        return line.decode()

    def close(self):
        self._connection.close()


@dataclasses.dataclass
class Samples:
    """The measurements of one system so far."""

    step_s: list = dataclasses.field(default_factory=list)
    # For each block: the CPU seconds of one step, summed over all processes.
    cpu_s: list = dataclasses.field(default_factory=list)

    def median_ms(self):
        return 1e3 * statistics.median(self.step_s)

    def percentile_ms(self, percent):
        ordered = sorted(self.step_s)
        return 1e3 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    def cpu_ms(self):
        return 1e3 * statistics.median(self.cpu_s)


class System:
    """Processes that make steps together. Subclasses (systems.py) start them in `start` and accept
    the workers."""

    def __init__(self, name, scratch, *arguments):
        self.name = name
        # The system's name is not used, because the path of a socket has at most 107 characters.
        self.directory = os.path.join(scratch, str(len(os.listdir(scratch))))
        os.makedirs(self.directory)
        self.socket_path = os.path.join(self.directory, "s")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.socket_path)
        self._listener.listen(1024)
        self._workers = []
        self._processes = []
        self.server_pids = []
        # The peak memory of each server in bytes; set when the system is stopped.
        self.server_bytes = []
        self.samples = Samples()
        try:
            self.start(*arguments)
        except BaseException:
            self.stop()
            raise

    def launch(self, command, environment=None):
        """Starts a process. Its output is written to a file, which messages of failures quote."""
        log = open(os.path.join(self.directory, f"{len(self._processes)}.log"), "wb")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env={**os.environ, **(environment or {})},
                                   cwd=self.directory)
        process.log_path = log.name
        log.close()
        self._processes.append(process)
        return process

    def launch_server(self, command, says, environment=None):
        """Starts a server. Returns the text that follows `says` in its output."""
        process = self.launch(command, environment)
        self.server_pids.append(process.pid)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with open(process.log_path) as log:
                for line in log:
                    if says in line and line.endswith("\n"):
                        return line.split(says, 1)[1].strip()
            if process.poll() is not None:
                break
            time.sleep(0.02)
        raise Failure(f"{self.name}: a server does not listen\n{self.logs()}")

    def logs(self):
        tails = []
        for process in self._processes:
            with open(process.log_path, errors="replace") as log:
                tail = log.read()[-2000:]
            if tail.strip():
                tails.append(f"-- {os.path.basename(process.args[0])} "
                             f"(exit code {process.poll()}):\n{tail}")
        return "\n".join(tails)

    def accept(self, workers):
        """Waits until this number of workers is ready."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(self._workers) < workers:
            if select.select([self._listener], [], [], 0.2)[0]:
                self._workers.append(_Worker(self._listener.accept()[0]))
            elif time.monotonic() > deadline or any(p.poll() for p in self._processes):
                raise Failure(f"{self.name}: {len(self._workers)} of {workers} workers are "
                              f"ready\n{self.logs()}")
        self._workers.sort(key=lambda worker: worker.rank)

    def pids(self):
        return sorted({worker.pid for worker in self._workers} | set(self.server_pids))

    def _ask(self, command):
        for worker in self._workers:
            worker.say(command)
        try:
            answers = [worker.hear() for worker in self._workers]
        except Failure as failure:
            raise Failure(f"{self.name}: {failure}\n{self.logs()}") from None
        for answer in answers:
            if answer.startswith("wrong"):
                raise Failure(f"{self.name}: {answer}")
        return answers

    def block(self, steps):
        """Runs steps and adds their durations to the samples.

        A step lasts from the moment when the last worker has the previous result to the moment when
        the last worker has its own result. The first step, which wakes all processes, is not
        counted.
        """
        self._ask("fill")
        before = sum(cpu_seconds(pid) for pid in self.pids())
        answers = self._ask(f"run {steps + 1}")
        spent = sum(cpu_seconds(pid) for pid in self.pids()) - before
        self._ask("check")
        ends = [0] * (steps + 1)
        for answer in answers:
            moments = answer.split()[1:]
            for i, end in enumerate(moments[1::2]):
                ends[i] = max(ends[i], int(end))
        self.samples.step_s += [(b - a) / 1e9 for a, b in zip(ends, ends[1:])]
        self.samples.cpu_s.append(spent / (steps + 1))

    def stop(self):
        self.server_bytes = [resident_bytes(pid, peak=True) for pid in self.server_pids]
        for worker in self._workers:
            worker.close()
        self._listener.close()
        deadline = time.monotonic() + 5
        for process in reversed(self._processes):
            if process.pid in self.server_pids:
                process.terminate()
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def take_turns(systems, seconds, block_seconds, least_rounds=3):
    """Runs blocks of all systems in turn for about `seconds`."""
    for system in systems:
        system.block(1)  # the very first step opens connections and touches pages
        system.samples = Samples()
        system.block(2)
    deadline = time.monotonic() + seconds
    rounds = 0
    while rounds < least_rounds or time.monotonic() < deadline:
        # Another system is first in each round, because the order affects the results.
        first = rounds % len(systems)
        for system in systems[first:] + systems[:first]:
            steps = int(block_seconds / max(1e-6, statistics.median(system.samples.step_s)))
            if rounds == 0:
                system.samples = Samples()
            system.block(max(2, min(2000, steps)))
        rounds += 1


def compare(starters, seconds, block_seconds):
    """Starts systems, lets them take turns, stops them, and returns them. Each of `starters` is a
    function that starts a system in a given directory."""
    systems = []
    with tempfile.TemporaryDirectory(prefix="sg-") as scratch:
        try:
            for start in starters:
                systems.append(start(scratch))
            take_turns(systems, seconds, block_seconds)
        finally:
            for system in systems:
                system.stop()
    return systems
