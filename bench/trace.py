"""Measures how much `psctl trace` slows training down.

Two real workers train on two servers. Blocks of time with and without a recording follow each
other. With --picture, it draws a timeline instead.
"""

import argparse
import os
import statistics

import cluster
import results
import systems
import timeline

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
# Large layers, whose names end in numbers.
PICTURED_JOB = """
name: "timeline" seed: 7 workers: 2 steps: 100000000 batch_size: 64 threads: 1
data { generated { rows: 4000 seed: 1 } } optimizer { sgd {} }
model {
  layers { dense { outputs: 1024 activation: TANH } }
  layers { dense { outputs: 1024 activation: TANH } }
  layers { dense { outputs: 1024 activation: TANH } }
  layers { dense { outputs: 1024 activation: TANH } }
  layers { dense { outputs: 1024 activation: TANH } }
  layers { dense { outputs: 1 } }
}
loss { sigmoid_cross_entropy {} }
"""
# The name of a case and its chunk_bytes; 0: the coordinator chooses it.
CASES = [("chunks as chosen", 0), ("many small chunks", 16384)]


def start_recording(job, path, seconds):
    """Returns psctl, which records."""
    psctl = cluster.start([systems.program("client/psctl/psctl"), "trace",
                           f"--server={job.address}", f"--seconds={seconds}", f"--output={path}"])
    line = psctl.stdout.readline()
    if not line.startswith("recording"):
        raise RuntimeError(line + psctl.stdout.read())
    return psctl


def end_of(psctl):
    """Returns what psctl prints at the end of a recording."""
    summary = psctl.communicate(timeout=cluster.PATIENCE)[0].strip()
    if psctl.returncode != 0:
        raise RuntimeError(summary)
    return summary.split(": ", 1)[1]


def traced_speed(job, seconds):
    """Returns the steps per second during a recording, and what psctl prints at its end."""
    # Reading the steps takes a part of a second beside `seconds`.
    psctl = start_recording(job, os.path.join(job.directory.name, "trace.json"), seconds + 2)
    speed = job.speed(seconds)
    return speed, end_of(psctl)


def measure(job_file, options):
    """Returns, for each pair of blocks, the steps per second during a recording, what psctl has
    printed, and the steps per second without."""
    with cluster.Cluster(job_file, WORKERS) as job:
        job.await_step(100)
        pairs = cluster.in_pairs(options.rounds, lambda: traced_speed(job, options.seconds),
                                 lambda: job.speed(options.seconds))
    return [(traced, summary, without) for (traced, summary), without in pairs]


def draw(path):
    """Records a job whose pushes take as long as its layers, and draws two of its steps."""
    with cluster.Cluster(PICTURED_JOB, WORKERS) as job:
        job.await_step(20)
        trace = os.path.join(job.directory.name, "trace.json")
        print(end_of(start_recording(job, trace, 2)))
        picture = timeline.picture_of(timeline.Trace(trace))
    results.draw(path, "timeline", "B, F: backward and forward pass of a layer; the other bars are "
                 "its chunks; hatched: waits for results", x_label="ms", **picture)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3, help="of each block")
    parser.add_argument("--rounds", type=int, default=7, help="number of pairs of blocks")
    parser.add_argument("--picture", help="draw a timeline to this file instead of measuring")
    options = parser.parse_args()

    results.print_machine()
    if options.picture:
        draw(options.picture)
        return
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
