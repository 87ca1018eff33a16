"""Measures how much `psctl trace` slows training down.

Two real workers train on two servers. Blocks of time with and without a recording follow each
other. The CPU time of a step is that of the servers and the workers, without psctl. With --picture, it draws a timeline instead.
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


def traced_rates(job, seconds):
    """Returns the rates during a recording, and what psctl prints at its end."""
    # Reading the steps takes a part of a second beside `seconds`.
    psctl = start_recording(job, os.path.join(job.directory.name, "trace.json"), seconds + 2)
    rates = job.rates(seconds)
    return rates, end_of(psctl)


def measure(job_file, options):
    """Returns, for each pair of blocks, the rates during a recording, what psctl has printed, and the
    rates without."""
    with cluster.Cluster(job_file, WORKERS) as job:
        job.await_step(100)
        pairs = cluster.in_pairs(options.rounds, lambda: traced_rates(job, options.seconds),
                                 lambda: job.rates(options.seconds))
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
        for (traced, traced_cpu), summary, (without, cpu) in pairs:
            rows.append([case, summary, f"{without:.0f}", f"{traced:.0f}",
                         f"{traced / without:.3f}", f"{cpu:.3f}", f"{traced_cpu:.3f}",
                         f"{traced_cpu / cpu:.3f}"])
        for number, what, goal in ((0, "steps/s", 0.97), (1, "CPU ms of a step", 1.03)):
            recorded = [rates[number] for rates, _, _ in pairs]
            others = [rates[number] for _, _, rates in pairs]
            comparisons.add(f"{case}: {what}", "recorded", "not recorded",
                            statistics.median(recorded), statistics.median(others), what,
                            statistics.median(one / other for one, other in zip(recorded, others)),
                            goal=goal, at_least=goal < 1)
    results.print_table(["case", "recording", "steps/s without", "with", "ratio", "CPU ms without",
                         "with", "ratio"], rows)
    comparisons.close()


if __name__ == "__main__":
    main()
