"""Two real servers and real workers that train a job, for benchmarks."""

import os
import re
import subprocess
import tempfile
import time

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


class Cluster:
    def __init__(self, job, workers, *server_flags):
        self.directory = tempfile.TemporaryDirectory()
        path = os.path.join(self.directory.name, "bench.job")
        with open(path, "w") as file:
            file.write(job)
        state = os.path.join(self.directory.name, "state")
        first, self.address = start_server(state + "0", "--servers=2", *server_flags)
        second, _ = start_server(state + "1", "--index=1", f"--coordinator={self.address}",
                                 *server_flags)
        # The output is discarded, because it would fill a pipe.
        self.workers = [
            subprocess.Popen([systems.program("worker/ps-worker"), f"--job={path}",
                              f"--server={self.address}", f"--rank={rank}",
                              f"--world_size={workers}"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for rank in range(workers)]
        self.servers = [first, second]

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
        first, begin = self.step(), time.monotonic()
        time.sleep(seconds)
        return (self.step() - first) / (time.monotonic() - begin)
