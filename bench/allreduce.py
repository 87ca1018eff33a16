"""All-reduce of N workers with S bytes each: ours compared with its peers.

All systems run on this machine: ours on each of its paths, OpenMPI over shared memory and over TCP,
and gloo's ring over TCP. They take turns within one run. Every result is checked.
"""

import argparse
import fnmatch
import functools
import sys

import conductor
import results
import systems

CASES = [(n, size) for n in (2, 4) for size in ("4KiB", "1MiB", "16MiB", "97.5MiB", "256MiB")]
# Names in the picture.
LABELS = {"shared-in-place": "syncgrads, shared memory, results in place",
          "shared": "syncgrads, shared memory",
          "shared-ordinary": "syncgrads, shared memory, ordinary buffers",
          "tcp": "syncgrads, TCP", "openmpi-shm": "OpenMPI, shared memory",
          "openmpi-tcp": "OpenMPI, TCP", "gloo-ring": "gloo, ring over TCP"}
QUICK = [(n, size) for n in (2, 4) for size in ("4KiB", "1MiB", "16MiB")]


def goal(path, peer, workers, size, congestion):
    """Returns the goal: the longest time that ours may take, relative to the peer's time."""
    if path == "tcp" and peer == "gloo-ring" and size == "97.5MiB":
        if congestion == "cubic":
            return {2: 1.35, 4: 1.0}.get(workers)
        return {2: 1.1, 4: 0.9}.get(workers)
    if path not in ("tcp", "unix") and peer == "openmpi-tcp" and size == "1MiB" and workers == 4:
        return 1.0
    if peer == "openmpi-shm" and size in ("97.5MiB", "256MiB"):
        return {"shared-in-place": {2: 0.3, 4: 0.2}, "shared": {2: 0.4, 4: 0.3},
                "shared-ordinary": {2: 0.55, 4: 0.45}}.get(path, {}).get(workers)
    return None


def measure(case, workers, size, options, comparisons):
    work = systems.Work(workers, systems.parse_bytes(size), congestion=options.congestion)
    starters = [functools.partial(systems.Ours, variant, work) for variant in options.ours]
    starters += [functools.partial(systems.peer, name, work) for name in options.peers]
    running = conductor.compare(starters, options.seconds, options.block)
    ours, peers = running[:len(options.ours)], running[len(options.ours):]
    rows = []
    for system in running:
        samples = system.samples
        rows.append([case, system.name, f"{samples.median_ms():.3g}",
                     f"{samples.percentile_ms(10):.3g}–{samples.percentile_ms(90):.3g}",
                     f"{samples.cpu_ms():.3g}", str(len(samples.step_s))]
                    + [f"{system.samples.median_ms() / peer.samples.median_ms():.2f}"
                       for peer in peers])
    for system in ours:
        for peer in peers:
            a, b = system.samples, peer.samples
            comparisons.add(case, system.name, peer.name, a.median_ms(), b.median_ms(), "ms",
                            a.median_ms() / b.median_ms(),
                            goal(system.name.split("+")[0], peer.name, workers, size,
                                 options.congestion),
                            ours_cpu_ms=round(a.cpu_ms(), 4), peer_cpu_ms=round(b.cpu_ms(), 4),
                            ours_p10_p90=[a.percentile_ms(10), a.percentile_ms(90)],
                            peer_p10_p90=[b.percentile_ms(10), b.percentile_ms(90)])
    results.print_table(["case", "system", "median ms", "p10–p90", "CPU ms", "steps"]
                        + [f"× {peer.name}" for peer in peers], rows)
    print(flush=True)
    return {system.name: system.samples for system in running}


def draw_picture(path, measured, ours):
    """Draws one panel for each case: the median time of a step, and its 10th to 90th percentile."""
    def bar(name, samples):
        return {"name": LABELS.get(name, name), "ours": name in ours, "value": samples.median_ms(),
                "low": samples.percentile_ms(10), "high": samples.percentile_ms(90)}

    panels = [{"title": f"{n} workers, {size.replace('MiB', ' MiB')}",
               "bars": [bar(name, samples) for name, samples in systems_of.items()]}
              for (n, size), systems_of in measured.items()]
    results.draw(path, "bars", "One step on one machine: all workers contribute, all have the mean",
                 x_label="ms; less is better", panels=panels)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="*", help="only cases like this, as n4-97.5MiB or n2-*")
    parser.add_argument("--quick", action="store_true", help="small cases, for a short time")
    parser.add_argument("--ours", default="shared-in-place,shared,shared-ordinary,tcp",
                        type=lambda text: text.split(","),
                        help="paths with settings, as tcp,tcp+connections=2 (systems.Ours)")
    parser.add_argument("--peers", default="openmpi-shm,openmpi-tcp,gloo-ring",
                        type=lambda text: text.split(",") if text else [])
    parser.add_argument("--congestion", default="",
                        help="TCP congestion control for all; empty: the kernel's default")
    parser.add_argument("--seconds", type=float, help="how long a case takes")
    parser.add_argument("--block", type=float, help="how long one turn takes, in seconds")
    parser.add_argument("--picture", help="also draw bars for each case, to this file")
    options = parser.parse_args()
    options.seconds = options.seconds or (3 if options.quick else 30)
    options.block = options.block or (0.1 if options.quick else 0.4)

    cases = QUICK if options.quick and options.case == "*" else CASES
    chosen = [(f"n{n}-{size}", n, size) for n, size in cases]
    chosen = [case for case in chosen if fnmatch.fnmatch(case[0], options.case)]
    if not chosen and options.case.startswith("n") and "-" in options.case:
        n, size = options.case[1:].split("-", 1)  # any other size is accepted
        chosen = [(options.case, int(n), size)]
    results.print_machine()
    if options.congestion:
        print(f"every TCP socket under {options.congestion}")
    print()
    comparisons = results.Comparisons("allreduce" + ("-" + options.congestion
                                                     if options.congestion else ""))
    panels, measured = {}, {}
    try:
        for case, n, size in chosen:
            measured[n, size] = measure(case, n, size, options, comparisons)
            for name, samples in measured[n, size].items():
                series = panels.setdefault(n, {}).setdefault(
                    name, {"name": name, "x": [], "y": [], "low": [], "high": []})
                series["x"].append(systems.parse_bytes(size) / (1 << 20))
                series["y"].append(samples.median_ms())
                series["low"].append(samples.percentile_ms(10))
                series["high"].append(samples.percentile_ms(90))
    except conductor.Failure as failure:
        sys.exit(f"allreduce: {failure}")
    finally:
        comparisons.close()
    results.plot("allreduce" + ("-" + options.congestion if options.congestion else ""),
                 "one step: everyone contributes S, everyone has the mean", "S, MiB", "ms",
                 [{"title": f"N = {n}", "series": list(series.values())}
                  for n, series in panels.items()])
    if options.picture:
        draw_picture(options.picture, measured, options.ours)


if __name__ == "__main__":
    main()
