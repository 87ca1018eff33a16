"""Two real servers and real workers that train a job, for benchmarks."""

import os
import pathlib
import re
import subprocess
import tempfile
import time

import conductor
import systems

PATIENCE = 60


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def start_server(state, *flags):
    """Returns the server's process and its address."""
    server = start([systems.program("server/ps-server"), "--port=0", "--bind=127.0.0.1",
                    f"--state={state}", "--heartbeat_interval=500ms", *flags])
    for line in server.stdout:
        if found := re.search(r" listening on \S+:(\d+)", line):
            return server, f"127.0.0.1:{found.group(1)}"
    raise RuntimeError("ps-server does not listen")


class Steps:
    """A job of two workers that makes small steps, with a pause between them."""

    def __init__(self, address, *flags):
        self.process = subprocess.Popen(
            [systems.program("bench/register_worker"), "--role=train", f"--coordinator={address}",
             *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def mark(self):
        """Returns the number of steps since the last mark, their median, and the longest, in ms.
        Returns None if the job has ended."""
        try:
            self.process.stdin.write("mark\n")
            self.process.stdin.flush()
            count, median, longest = self.process.stdout.readline().split()
            return int(count), float(median), float(longest)
        except (BrokenPipeError, ValueError):
            return None  # the job has ended


class Cluster:
    def __init__(self, job, workers, *server_flags, worker_flags=()):
        self.directory = tempfile.TemporaryDirectory()
        path = os.path.join(self.directory.name, "bench.job")
        with open(path, "w") as file:
            file.write(job)
        state = os.path.join(self.directory.name, "state")
        first, self.address = start_server(state + "0", "--servers=2", *server_flags)
        second, _ = start_server(state + "1", "--index=1", f"--coordinator={self.address}",
                                 *server_flags)
        self.servers = [first, second]
        self.workers = [self._start_worker(path, rank, workers, worker_flags)
                        for rank in range(workers)]

    def _start_worker(self, job, rank, workers, flags):
        # The output goes to a file, because it would fill a pipe.
        with open(self._output_of(rank), "w") as output:
            return subprocess.Popen([systems.program("worker/ps-worker"), f"--job={job}",
                                     f"--server={self.address}", f"--rank={rank}",
                                     f"--world_size={workers}", *flags],
                                    stdout=output, stderr=subprocess.STDOUT)

    def _output_of(self, rank):
        return os.path.join(self.directory.name, f"worker-{rank}.log")

    def metrics(self):
        """Returns the addresses of the metrics of all processes, which need --metrics. Call it
        once."""
        serves = re.compile(r" serves metrics on (http://\S+)/metrics")
        found = []
        for server in self.servers:
            found.append(next(match[1] for line in server.stdout if (match := serves.search(line))))
        for rank in range(len(self.workers)):
            # The worker prints the line before it joins the job.
            with open(self._output_of(rank)) as output:
                found.append(serves.search(output.read())[1])
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.workers + self.servers:
            process.kill()
            process.wait()
        self.directory.cleanup()

    def step(self):
        # The exit code is not 0 as long as a server has not connected.
        status = subprocess.run([systems.program("client/psctl/psctl"), "status",
                                 f"--server={self.address}"], check=False, capture_output=True,
                                text=True, timeout=PATIENCE).stdout
        found = re.search(r'"model": step (\d+) is open', status)
        return int(found.group(1)) if found else 0

    def await_step(self, step):
        deadline = time.monotonic() + PATIENCE
        while self.step() < step:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no step {step} within {PATIENCE} s")

    def speed(self, seconds):
        """Returns the number of steps per second."""
        return self.rates(seconds)[0]

    def rates(self, seconds):
        """Returns the number of steps per second, and the CPU time that a step takes in all servers
        and workers, in ms."""
        first, begin, cpu = self.step(), time.monotonic(), self._cpu_seconds()
        time.sleep(seconds)
        last, end = self.step(), time.monotonic()
        return ((last - first) / (end - begin),
                1e3 * (self._cpu_seconds() - cpu) / max(1, last - first))

    def http_seconds(self):
        """Returns the CPU time that the servers and the workers have spent on pages, metrics and
        events over HTTP."""
        ticks = 0
        for one in self.workers + self.servers:
            for task in pathlib.Path(f"/proc/{one.pid}/task").iterdir():
                if (task / "comm").read_text() == "http\n":
                    user, system = (task / "stat").read_text().rsplit(")", 1)[1].split()[11:13]
                    ticks += int(user) + int(system)
        return ticks / os.sysconf("SC_CLK_TCK")

    def _cpu_seconds(self):
        return sum(conductor.cpu_seconds(one.pid) for one in self.workers + self.servers)


def in_pairs(count, first, second):
    """Calls both functions `count` times, and returns their results in pairs. Each of the two is
    called before the other in every other pair."""
    pairs = []
    for turn in range(count):
        if turn % 2 == 0:
            one, other = first(), second()
        else:
            other, one = second(), first()
        pairs.append((one, other))
    return pairs
