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
name: "trace" seed: 7 workers: 2 steps: 100000000 batch_size: 64 threads: 1 chunk_bytes: 16384
data { generated { rows: 4000 seed: 1 } } optimizer { sgd {} }
model {
  layers { dense { outputs: 200 activation: TANH } }
  layers { dense { outputs: 200 activation: TANH } }
  layers { dense { outputs: 1 } }
}
loss { sigmoid_cross_entropy {} }
"""


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3, help="of each block")
    parser.add_argument("--rounds", type=int, default=7, help="number of pairs of blocks")
    options = parser.parse_args()

    comparisons = results.Comparisons("trace")
    rows = []
    pairs = []
    with cluster.Cluster(JOB, WORKERS) as job:
        job.await_step(100)
        for turn in range(options.rounds):
            # Each of the two is first in every other pair.
            if turn % 2 == 0:
                without = job.speed(options.seconds)
            traced, summary = traced_speed(job, options.seconds)
            if turn % 2 == 1:
                without = job.speed(options.seconds)
            pairs.append((traced, without))
            rows.append([str(turn + 1), summary, f"{without:.0f}", f"{traced:.0f}",
                         f"{traced / without:.3f}"])
    ratio = statistics.median(traced / without for traced, without in pairs)
    comparisons.add("steps/s with a recording / without", "psctl trace", "itself",
                    statistics.median(traced for traced, _ in pairs),
                    statistics.median(without for _, without in pairs), "steps/s", ratio,
                    goal=0.97, at_least=True)
    results.print_machine()
    results.print_table(["pair", "recording", "steps/s without", "steps/s with", "ratio"], rows)
    comparisons.close()


if __name__ == "__main__":
    main()
