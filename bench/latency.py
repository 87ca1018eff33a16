"""Measures the latency of a small step of two workers: ours compared with a bare round trip.

The lower bound is the round trip of S bytes of one worker on a bare gRPC stream of raw buffers,
without sums, in the same run.
"""

import argparse
import fnmatch
import functools
import sys

import conductor
import results
import systems

SIZES = ("4KiB", "16KiB", "64KiB", "256KiB", "1MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="*", help="only sizes like this, as 4KiB or *KiB")
    parser.add_argument("--quick", action="store_true", help="for a short time")
    parser.add_argument("--ours", default="shared,shared-ordinary,tcp", type=lambda text: text.split(","),
                        help="paths with settings, as tcp,tcp+connections=2 (systems.Ours)")
    parser.add_argument("--peers", default="grpc-stream,tcp-echo",
                        type=lambda text: text.split(","))
    options = parser.parse_args()
    seconds, block = (1.5, 0.1) if options.quick else (10, 0.25)

    results.print_machine()
    print()
    comparisons = results.Comparisons("latency")
    rows, panel = [], {}
    try:
        for size in fnmatch.filter(SIZES, options.case):
            work = systems.Work(2, systems.parse_bytes(size))
            running = conductor.compare(
                [functools.partial(systems.Ours, variant, work) for variant in options.ours] +
                [functools.partial(systems.peer, name, work) for name in options.peers],
                seconds, block)
            ours, peers = running[:len(options.ours)], running[len(options.ours):]
            for system in running:
                samples = system.samples
                rows.append([size, system.name, f"{samples.median_ms():.3f}",
                             f"{samples.percentile_ms(99):.3f}", f"{samples.cpu_ms():.3f}",
                             str(len(samples.step_s))] +
                            [f"{samples.median_ms() / peer.samples.median_ms():.2f}"
                             for peer in peers])
                series = panel.setdefault(system.name, {"name": system.name, "x": [], "y": [],
                                                        "low": [], "high": []})
                series["x"].append(systems.parse_bytes(size) / 1024)
                series["y"].append(samples.median_ms())
                series["low"].append(samples.percentile_ms(1))
                series["high"].append(samples.percentile_ms(99))
            for system in ours:
                a = system.samples
                for peer in peers:
                    b = peer.samples
                    is_goal = size == "4KiB" and peer.name == "grpc-stream"
                    comparisons.add(f"{size} p50", system.name, peer.name, a.median_ms(),
                                    b.median_ms(), "ms", a.median_ms() / b.median_ms(),
                                    1.5 if is_goal else None,
                                    ours_cpu_ms=a.cpu_ms(), peer_cpu_ms=b.cpu_ms())
                    comparisons.add(f"{size} p99", system.name, peer.name, a.percentile_ms(99),
                                    b.percentile_ms(99), "ms",
                                    a.percentile_ms(99) / b.percentile_ms(99))
                if size == "4KiB":
                    comparisons.add("4KiB p99", system.name, "1 ms", a.percentile_ms(99), 1.0,
                                    "ms", a.percentile_ms(99), 1.0)
    except conductor.Failure as failure:
        sys.exit(f"latency: {failure}")
    finally:
        results.print_table(["S", "system", "p50 ms", "p99 ms", "CPU ms", "steps"]
                            + [f"× {name}" for name in options.peers], rows)
        comparisons.close()
    results.plot("latency", "one step of two workers, and one round trip; p1 to p99", "S, KiB",
                 "ms", [{"title": "N = 2", "series": list(panel.values())}])


if __name__ == "__main__":
    main()
