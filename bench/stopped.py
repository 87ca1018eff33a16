"""Measures how a stopped worker affects the others. There are four real workers on two servers, and
one of the workers gets SIGSTOP. In sync mode, training pauses until its lease has ended. With a
quorum of three, training continues without a pause."""

import argparse
import os
import re
import signal
import subprocess
import tempfile
import time

import results

WORKERS = 4
JOB = """
name: "stopped" seed: 7 workers: 4 steps: 100000000 batch_size: 64 threads: 1 elastic {} chunk_bytes: 512
data { generated { rows: 4000 seed: 1 } } optimizer { sgd {} } optimizer_placement: SERVERS
model { layers { dense { outputs: 200 activation: TANH } } layers { dense { outputs: 1 } } }
loss { sigmoid_cross_entropy {} }
"""
# The mode, its part of the job file, and the lowest speed after the stop, relative to the speed
# before.
CASES = [("sync", "", None), ("quorum(3)", "consistency { quorum { least: 3 } }", 0.9)]
PATIENCE = 60


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def start_server(program, state, *flags):
    """Returns the server's process and its address."""
    server = start([program, "--port=0", "--bind=127.0.0.1", f"--state={state}",
                    "--heartbeat_interval=500ms", *flags])
    for line in server.stdout:
        if found := re.search(r" listening on \S+:(\d+)", line):
            return server, f"127.0.0.1:{found.group(1)}"
    raise RuntimeError(f"{program} does not listen")


class Cluster:
    def __init__(self, programs, consistency, lease):
        self.psctl = programs["psctl"]
        self.directory = tempfile.TemporaryDirectory()
        job = os.path.join(self.directory.name, "stopped.job")
        with open(job, "w") as file:
            file.write(JOB + consistency)
        state = os.path.join(self.directory.name, "state")
        first, self.address = start_server(programs["ps-server"], state + "0", "--servers=2",
                                           f"--lease={lease}s")
        second, _ = start_server(programs["ps-server"], state + "1", "--index=1",
                                 f"--coordinator={self.address}", f"--lease={lease}s")
        # The output is discarded, because it would fill a pipe.
        self.workers = [
            subprocess.Popen([programs["ps-worker"], f"--job={job}", f"--server={self.address}",
                              f"--rank={rank}", f"--world_size={WORKERS}"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for rank in range(WORKERS)]
        self.servers = [first, second]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.workers + self.servers:
            process.kill()
            process.wait()
        self.directory.cleanup()

    def step(self):
        status = subprocess.run([self.psctl, "status", f"--server={self.address}"], check=True,
                                capture_output=True, text=True, timeout=PATIENCE).stdout
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    parser.add_argument("--lease", type=float, default=10, help="of a worker, in seconds")
    options = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    programs = {os.path.basename(path): os.path.join(root, path)
                for path in ("server/ps-server", "worker/ps-worker", "client/psctl/psctl")}

    comparisons = results.Comparisons("stopped")
    rows = []
    for mode, consistency, goal in CASES:
        with Cluster(programs, consistency, options.lease) as cluster:
            cluster.await_step(100)
            before = cluster.speed(options.seconds)
            cluster.workers[-1].send_signal(signal.SIGSTOP)
            stopped_at = cluster.step()
            begin = time.monotonic()
            # The stopped worker may have contributed to the step in progress.
            cluster.await_step(stopped_at + 3)
            stood_still = time.monotonic() - begin
            after = cluster.speed(options.seconds)
        rows.append([mode, f"{WORKERS} workers, one stopped", f"{before:.0f}",
                     f"{stood_still:.2f}", f"{after:.0f}"])
        if goal is not None:
            comparisons.add("steps/s with one stopped / before", mode, "itself", after, before,
                            "steps/s", after / before, goal=goal, at_least=True)
            comparisons.add("s until it goes on", mode, "a step", stood_still, 1 / before, "s",
                            stood_still, goal=1)
    results.print_machine()
    results.print_table(["mode", "case", "steps/s before", "s until it goes on",
                         "steps/s then"], rows)
    comparisons.close()


if __name__ == "__main__":
    main()
