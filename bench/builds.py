"""Two builds of ours compared: does a change make steps slower?

    git worktree add /tmp/old REVISION && (cd /tmp/old && ./dev bench latency --quick)
    ./dev bench builds --old=/tmp/old

Both builds take turns at the same steps within one run, on every path and over links of a given
rate. A case is measured several times; the median of the ratios counts, because the placement of
processes and memory differs from start to start.
"""

import argparse
import fnmatch
import functools
import os
import statistics

import conductor
import network
import results
import systems

LOCAL = [(path, workers, size) for workers in (2, 4)
         for size in ("4KiB", "256KiB", "16MiB", "97.5MiB") for path in systems.PATHS]
# The same on four worker hosts and four server hosts.
LINKS = [(rate, 4, "16MiB") for rate in ("200mbit", "1gbit")]


def checkout(path):
    """Returns the folder with the programs of another checkout in which ./dev bench has run."""
    programs = os.path.join(os.path.abspath(path), "bazel-bin")
    for program in systems.PROGRAMS_OF_OURS:
        if not os.path.exists(os.path.join(programs, program)):
            raise argparse.ArgumentTypeError(
                f"{programs}/{program} is not there; run ./dev bench latency --quick in {path}")
    return os.path.realpath(programs)


def measure(case, variant, work, options, comparisons):
    """Returns the new build's median step, relative to the old build's, of each repetition."""
    ratios = []
    for _ in range(options.repeat):
        old, new = conductor.compare(
            [functools.partial(systems.Ours, variant, work, programs=options.old),
             functools.partial(systems.Ours, variant, work)], options.seconds, options.block)
        a, b = old.samples.median_ms(), new.samples.median_ms()
        ratios.append((b / a, a, b, old.samples.cpu_ms(), new.samples.cpu_ms()))
    ratio, a, b, old_cpu, new_cpu = sorted(ratios)[len(ratios) // 2]
    comparisons.add(case, "new", "old", b, a, "ms", ratio, options.goal,
                    ratios=[round(r[0], 4) for r in ratios],
                    ours_cpu_ms=round(new_cpu, 4), peer_cpu_ms=round(old_cpu, 4))
    return [case, variant, f"{a:.3g}", f"{b:.3g}", f"{ratio:.3f}",
            f"{min(ratios)[0]:.3f}–{max(ratios)[0]:.3f}", f"{new_cpu / old_cpu:.3f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=checkout, required=True,
                        help="another checkout, in which ./dev bench has run")
    parser.add_argument("--case", default="*", help="only cases like this, as 'tcp n=2 *'")
    parser.add_argument("--repeat", type=int, default=3, help="how often a case is started")
    parser.add_argument("--seconds", type=float, default=5, help="of steps for each start")
    parser.add_argument("--block", type=float, default=0.2, help="seconds of a turn")
    parser.add_argument("--goal", type=float, default=1.05,
                        help="the longest time of the new build, relative to the old build's")
    options = parser.parse_args()

    results.print_machine()
    print(flush=True)
    comparisons = results.Comparisons("builds")
    rows = []
    try:
        for path, workers, size in LOCAL:
            case = f"{path} n={workers} {size}"
            if fnmatch.fnmatch(case, options.case):
                work = systems.Work(workers, systems.parse_bytes(size))
                rows.append(measure(case, path, work, options, comparisons))
        for rate, n, size in LINKS:
            case = f"{rate} n={n} {size}"
            if fnmatch.fnmatch(case, options.case):
                with network.Network(2 * n, rate) as cluster:
                    work = systems.Work(n, systems.parse_bytes(size), cluster.hosts[:n],
                                        cluster.hosts[n:])
                    rows.append(measure(case, "tcp", work, options, comparisons))
    finally:
        if rows:
            results.print_table(["case", "path", "old ms", "new ms", "new/old", "of all", "CPU"],
                                rows)
            print(f"\nmedian of all cases: {statistics.median(float(row[4]) for row in rows):.3f}")
        comparisons.close()


if __name__ == "__main__":
    main()
