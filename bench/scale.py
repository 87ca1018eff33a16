"""Measures the time of a step, and the memory that a server needs, for growing numbers of members,
servers, tensors, chunks and steps. The points of each sweep take turns within one run."""

import argparse
import fnmatch
import functools
import sys
import tempfile

import conductor
import results
import systems

MIB = 1 << 20


class Sweep:
    """Points along one dimension. `points` are (x, Work, settings of the variant). `goal` is the
    longest time of the last point, relative to the first."""

    def __init__(self, name, label, points, goal=None):
        self.name, self.label, self.points, self.goal = name, label, points, goal


def sweeps(quick):
    members = (1, 2, 4, 8, 16) if quick else (1, 2, 4, 8, 16, 32, 64)
    small, large = systems.parse_bytes("64KiB"), systems.parse_bytes("4MiB" if quick else "16MiB")
    tensors = (1, 100, 10000) if quick else (1, 10, 100, 1000, 10000)
    ten_mb = 10000 * 1024
    yield Sweep("members", "N, S = 64 KiB", [
        (n, systems.Work(n, small), f"+processes={min(n, 4)}") for n in members])
    yield Sweep("servers", f"servers, N = 2, S = {systems.show_bytes(large)}", [
        (k, systems.Work(2, large), f"+servers={k}") for k in (1, 2, 4, 8)])
    yield Sweep("tensors", "tensors, 10 MB in all, N = 2", [
        (t, systems.Work(2, ten_mb), f"+tensors={t}") for t in tensors], goal=1.3)
    yield Sweep("chunks", f"chunk, KiB; N = 2, S = {systems.show_bytes(large)}", [
        (c, systems.Work(2, large), f"+chunk_bytes={c << 10}")
        for c in (64, 256, 1024, 2048, 4096)])


def memory_bound(work, servers=1):
    """Returns the largest memory that a server may need, by the rule in docs/performance.md."""
    return 1.15 * work.bytes / servers * (work.workers + 2) + 64 * MIB + 4 * MIB * work.workers


def run_sweep(sweep, options, comparisons):
    running = conductor.compare(
        [functools.partial(systems.Ours, options.ours + settings, work)
         for _, work, settings in sweep.points], options.seconds, 0.1)
    rows = []
    first = running[0].samples
    for (x, work, _), system in zip(sweep.points, running):
        samples = system.samples
        largest = max(system.server_bytes)
        servers = len(system.server_bytes)
        bound = memory_bound(work, servers)
        rows.append([sweep.name, str(x), f"{samples.median_ms():.3g}",
                     f"{samples.percentile_ms(10):.3g}–{samples.percentile_ms(90):.3g}",
                     f"{samples.cpu_ms():.3g}", str(len(samples.step_s)),
                     f"{largest / MIB:.0f}", f"{bound / MIB:.0f}"])
        is_last = system is running[-1]
        comparisons.add(f"{sweep.name}={x}", options.ours, f"{sweep.name}={sweep.points[0][0]}",
                        samples.median_ms(), first.median_ms(), "ms",
                        samples.median_ms() / first.median_ms(),
                        sweep.goal if is_last else None, ours_cpu_ms=samples.cpu_ms())
        comparisons.add(f"{sweep.name}={x} server memory", options.ours, "bound", largest / MIB,
                        bound / MIB, "MiB", largest / bound, 1.0)
    results.print_table([sweep.name, sweep.label, "median ms", "p10–p90", "CPU ms", "steps",
                         "server MiB", "bound"], rows)
    print(flush=True)
    x = [x for x, _, _ in sweep.points]
    return {"title": sweep.name, "x_label": sweep.label, "series": [
        {"name": "median, ms", "x": x, "y": [s.samples.median_ms() for s in running],
         "low": [s.samples.percentile_ms(10) for s in running],
         "high": [s.samples.percentile_ms(90) for s in running]},
        {"name": "CPU, ms", "x": x, "y": [s.samples.cpu_ms() for s in running]},
        {"name": "server memory, MiB", "x": x,
         "y": [max(s.server_bytes) / MIB for s in running]}]}


def run_steps(options, comparisons):
    """Measures the memory of the processes after each tenth of the steps."""
    total = 1000 if options.quick else 10000
    work = systems.Work(2, systems.parse_bytes("64KiB"))
    rows, after = [], {"server": [], "worker": []}
    with tempfile.TemporaryDirectory(prefix="sg-") as scratch:
        system = systems.Ours(options.ours, work, scratch)
        try:
            workers = [pid for pid in system.pids() if pid not in system.server_pids]
            for tenth in range(1, 11):
                system.block(total // 10 - 1)  # a block has one more step, which is not counted
                for name, pids in (("server", system.server_pids), ("worker", workers)):
                    after[name].append(max(map(conductor.resident_bytes, pids)) / MIB)
                rows.append([str(tenth * total // 10)]
                            + [f"{after[name][-1]:.2f}" for name in ("server", "worker")])
        finally:
            system.stop()
    results.print_table(["after steps", "server MiB", "worker MiB"], rows)
    print(flush=True)
    for name, seen in after.items():
        comparisons.add(f"steps={total} {name} memory", options.ours, f"steps={total // 10}",
                        seen[-1], seen[0], "MiB", seen[-1] / seen[0], 1.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="*", help="members, servers, tensors, chunks, steps")
    parser.add_argument("--quick", action="store_true", help="fewer points, for a short time")
    parser.add_argument("--ours", default="tcp", help="a path with settings (systems.Ours)")
    options = parser.parse_args()
    options.seconds = 5 if options.quick else 40

    results.print_machine()
    print()
    comparisons = results.Comparisons("scale")
    panels = []
    try:
        for sweep in sweeps(options.quick):
            if fnmatch.fnmatch(sweep.name, options.case):
                panels.append(run_sweep(sweep, options, comparisons))
        if fnmatch.fnmatch("steps", options.case):
            run_steps(options, comparisons)
    except conductor.Failure as failure:
        sys.exit(f"scale: {failure}")
    finally:
        comparisons.close()
    if panels:
        results.plot("scale", "one step as things grow", "", "ms, MiB", panels)


if __name__ == "__main__":
    main()
