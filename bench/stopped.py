"""Measures how a stopped worker affects the others. There are four real workers on two servers, and
one of the workers gets SIGSTOP. In sync mode, training pauses until its lease has ended. With a
quorum of three, training continues without a pause."""

import argparse
import signal
import time

import cluster
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    parser.add_argument("--lease", type=float, default=10, help="of a worker, in seconds")
    options = parser.parse_args()

    comparisons = results.Comparisons("stopped")
    rows = []
    for mode, consistency, goal in CASES:
        with cluster.Cluster(JOB + consistency, WORKERS, f"--lease={options.lease}s") as job:
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
