"""Measures how much `psctl trace` slows training down. Two real workers train on two servers. Blocks
of time with and without a recording follow each other."""

import argparse
import os
import statistics

import cluster
import results
import systems

WORKERS = 2
JOB = """
name: "trace" seed: 7 workers: 2 steps: 100000000 batch_size: 64 threads: 1 chunk_bytes: %d
data { generated { rows: 4000 seed: 1 } } optimizer { sgd {} }
model {
  layers { dense { outputs: 200 activation: TANH } }
  layers { dense { outputs: 200 activation: TANH } }
  layers { dense { outputs: 1 } }
}
loss { sigmoid_cross_entropy {} }
"""
# The name of a case and its chunk_bytes; 0: the coordinator chooses it.
CASES = [("chunks as chosen", 0), ("many small chunks", 16384)]


def traced_speed(job, seconds):
    """Returns the steps per second during a recording, and what psctl prints at its end."""
    # Reading the steps takes a part of a second beside `seconds`.
    psctl = cluster.start([systems.program("client/psctl/psctl"), "trace", f"--server={job.address}",
                           f"--seconds={seconds + 2}",
                           f"--output={os.path.join(job.directory.name, 'trace.json')}"])
    line = psctl.stdout.readline()
    if not line.startswith("recording"):
        raise RuntimeError(line + psctl.stdout.read())
    speed = job.speed(seconds)
    summary = psctl.communicate(timeout=cluster.PATIENCE)[0].strip()
    if psctl.returncode != 0:
        raise RuntimeError(summary)
    return speed, summary.split(": ", 1)[1]


def measure(job_file, options):
    """Returns, for each pair of blocks, the steps per second during a recording, what psctl has
    printed, and the steps per second without."""
    pairs = []
    with cluster.Cluster(job_file, WORKERS) as job:
        job.await_step(100)
        for turn in range(options.rounds):
            # Each of the two is first in every other pair.
            if turn % 2 == 0:
                without = job.speed(options.seconds)
            traced, summary = traced_speed(job, options.seconds)
            if turn % 2 == 1:
                without = job.speed(options.seconds)
            pairs.append((traced, summary, without))
    return pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3, help="of each block")
    parser.add_argument("--rounds", type=int, default=7, help="number of pairs of blocks")
    options = parser.parse_args()

    results.print_machine()
    comparisons = results.Comparisons("trace")
    rows = []
    for case, chunk_bytes in CASES:
        pairs = measure(JOB % chunk_bytes, options)
        for traced, summary, without in pairs:
            rows.append([case, summary, f"{without:.0f}", f"{traced:.0f}",
                         f"{traced / without:.3f}"])
        comparisons.add(f"{case}: steps/s", "recorded", "not recorded",
                        statistics.median(traced for traced, _, _ in pairs),
                        statistics.median(without for _, _, without in pairs), "steps/s",
                        statistics.median(traced / without for traced, _, without in pairs),
                        goal=0.97, at_least=True)
    results.print_table(["case", "recording", "steps/s without", "steps/s with", "ratio"], rows)
    comparisons.close()


if __name__ == "__main__":
    main()
