"""Measures how a stopped worker affects the others. There are four real workers on two servers, and
one of the workers gets SIGSTOP. In sync mode, training pauses until its lease has ended. With a
quorum of three, training continues without a pause. The workers are ps-worker, and with --torch
PyTorch trainers (bench/peers/torch_quorum.py), whose steps are as short as they can be, and longer
by 20 ms of sleep."""

import argparse
import functools
import os
import signal
import subprocess
import time

import cluster
import results
import systems

WORKERS = 4
JOB = """
name: "stopped" seed: 7 workers: 4 steps: 100000000 batch_size: 64 threads: 1 elastic {} chunk_bytes: 512
data { generated { rows: 4000 seed: 1 } } optimizer { sgd {} } optimizer_placement: SERVERS
model { layers { dense { outputs: 200 activation: TANH } } layers { dense { outputs: 1 } } }
loss { sigmoid_cross_entropy {} }
"""


class TorchCluster(cluster.Cluster):
    """Two servers, and workers that train with PyTorch."""

    def __init__(self, python, *flags):
        self._python = python
        super().__init__("", WORKERS, worker_flags=flags)

    def _start_worker(self, job, rank, workers, flags):
        package = systems.program("client/python/syncgrads/__init__.py")
        with open(self._output_of(rank), "w") as output:
            return subprocess.Popen(
                [self._python, systems.program("bench/peers/torch_quorum.py"),
                 f"--server={self.address}", f"--rank={rank}", f"--world_size={workers}", *flags],
                stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(package)),
                     "SYNCGRADS_LIBRARY": systems.program("client/c/libsyncgrads.so")})


def native(consistency, options):
    return cluster.Cluster(JOB + consistency, WORKERS, f"--lease={options.lease}s")


def torch(sleep_ms, options):
    return TorchCluster(options.python, "--least=3", f"--sleep_ms={sleep_ms}")


# The mode, what starts the job, and the lowest speed after the stop, relative to the speed before.
CASES = [("sync", functools.partial(native, ""), None),
         ("quorum(3)", functools.partial(native, "consistency { quorum { least: 3 } }"), 0.9)]
TORCH_CASES = [("torch, quorum(3)", functools.partial(torch, 0), 0.9),
               ("torch, quorum(3), 20 ms", functools.partial(torch, 20), 0.9)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    parser.add_argument("--lease", type=float, default=10, help="of a worker, in seconds")
    parser.add_argument("--torch", action="store_true", help="PyTorch trainers")
    parser.add_argument("--python", default="/usr/bin/python3", help="one that has torch")
    options = parser.parse_args()

    comparisons = results.Comparisons("stopped")
    rows = []
    for mode, start, goal in TORCH_CASES if options.torch else CASES:
        with start(options) as job:
            job.await_step(100)
            before = job.speed(options.seconds)
            job.workers[-1].send_signal(signal.SIGSTOP)
            stopped_at = job.step()
            begin = time.monotonic()
            # The stopped worker may have contributed to the step in progress.
            job.await_step(stopped_at + 3)
            stood_still = time.monotonic() - begin
            after = job.speed(options.seconds)
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
