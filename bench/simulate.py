"""Simulates a step of many workers and servers, chunk by chunk.

This is a discrete-event simulation of the push-pull path, for clusters that are not available for a
measurement: N workers, K servers, full-duplex links, and processor cores. Each chunk passes these
stages:

  worker's uplink > server's downlink > a server core (receive) > when the chunk of the last
  worker has arrived: a core (reduce) > for each worker: a core (send) > server's uplink >
  worker's downlink > a worker core (receive, copy to the caller)

Every stage serves its requests in the order of arrival. The cost of a byte and of a message on a
core is measured by the other benchmarks (docs/scale.md describes how). Congestion control, losses
and stragglers are not modelled. Each result is printed together with the lower bound that follows
from the busiest resource alone.
"""

import argparse
import heapq

import network
import results
import systems

# CPU seconds, except LATENCY; see docs/scale.md.
MESSAGE = 30e-6      # to send or to receive one message
TRANSPORT = 0.28e-9  # to send or to receive one byte over TCP
REDUCE = 0.074e-9    # to read one byte of a contribution, or write one of a result
COPY = 0.13e-9       # to copy one byte of the result to the caller
LATENCY = 20e-6  # latency of the network in one direction, in seconds


class Line:
    """A resource that serves one request after the other."""

    def __init__(self):
        self.free_at = 0.0
        self.busy = 0.0

    def serve(self, now, seconds):
        self.free_at = max(now, self.free_at) + seconds
        self.busy += seconds
        return self.free_at


class Cores:
    """A resource that serves as many requests at the same time as it has cores."""

    def __init__(self, count):
        self.free_at = [0.0] * count
        self.busy = 0.0

    def serve(self, now, seconds):
        done = max(now, self.free_at[0]) + seconds
        heapq.heapreplace(self.free_at, done)
        self.busy += seconds
        return done


class Cluster:
    def __init__(self, workers, servers, size, chunk, rate, cores, worker_cores):
        self.workers, self.servers, self.size, self.chunk = workers, servers, size, chunk
        self.byte = 8 / rate
        self.cores, self.worker_cores = cores, worker_cores
        self.chunks = max(1, round(size / chunk))

    def step(self):
        """Simulates one step. Returns its duration in seconds, and the utilisation of each kind of
        resource (0 to 1)."""
        n, k, c = self.workers, self.servers, self.size / self.chunks
        wire = c * self.byte
        handle = MESSAGE + c * TRANSPORT
        worker_up = [Line() for _ in range(n)]
        worker_down = [Line() for _ in range(n)]
        worker_core = [Cores(self.worker_cores) for _ in range(n)]
        server_down = [Line() for _ in range(k)]
        server_up = [Line() for _ in range(k)]
        server_core = [Cores(self.cores) for _ in range(k)]
        seated = [0] * self.chunks
        events = []  # (time, order, stage, worker, chunk)
        order = 0
        end = 0.0

        def at(time, stage, worker, chunk):
            nonlocal order
            order += 1
            heapq.heappush(events, (time, order, stage, worker, chunk))

        # A worker has a stream to each server, and these share its uplink. In every K chunks, each
        # worker begins with another server than its neighbour.
        def turn(worker, position):
            first = position - position % k
            width = min(k, self.chunks - first)
            return first + (position + worker) % width

        for worker in range(n):
            at(worker_core[worker].serve(0, handle), 0, worker, 0)
        while events:
            now, _, stage, worker, chunk = heapq.heappop(events)
            server = chunk % k
            if stage == 0:  # in this stage, `chunk` counts the chunks that the worker has sent
                sent = worker_up[worker].serve(now, wire)
                at(sent + LATENCY, 1, worker, turn(worker, chunk))
                if chunk + 1 < self.chunks:
                    at(worker_core[worker].serve(now, handle), 0, worker, chunk + 1)
            elif stage == 1:
                at(server_down[server].serve(now, wire), 2, worker, chunk)
            elif stage == 2:
                at(server_core[server].serve(now, handle), 3, worker, chunk)
            elif stage == 3:
                seated[chunk] += 1
                if seated[chunk] == n:
                    at(server_core[server].serve(now, c * (n + 1) * REDUCE), 4, 0, chunk)
            elif stage == 4:
                for receiver in range(n):
                    at(server_core[server].serve(now, handle), 5, receiver, chunk)
            elif stage == 5:
                at(server_up[server].serve(now, wire) + LATENCY, 6, worker, chunk)
            elif stage == 6:
                at(worker_down[worker].serve(now, wire), 7, worker, chunk)
            else:
                end = max(end, worker_core[worker].serve(now, handle + c * COPY))
        busy = {
            "workers' links": max(line.busy for line in worker_up + worker_down) / end,
            "servers' links": max(line.busy for line in server_up + server_down) / end,
            "servers' cores": max(cores.busy for cores in server_core) / end / self.cores,
            "workers' cores": max(cores.busy for cores in worker_core) / end / self.worker_cores,
        }
        return end, busy

    def bounds(self):
        """Returns the lower bounds: the seconds for which each kind of resource is busy at least.
        """
        n, k = self.workers, self.servers
        # Chunks are assigned to servers in turn, so a server may have one more than others.
        share = -(-self.chunks // k) * self.size / self.chunks
        messages = 2 * n * -(-self.chunks // k)
        return {
            "workers' links": self.size * self.byte,
            "servers' links": n * share * self.byte,
            "servers' cores": (2 * n * share * TRANSPORT + messages * MESSAGE
                               + (n + 1) * share * REDUCE) / self.cores,
            "workers' cores": (self.size * (2 * TRANSPORT + COPY)
                               + 2 * self.chunks * MESSAGE) / self.worker_cores,
        }


def parse_numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="25gbit,100gbit,400gbit", help="rates of all links")
    parser.add_argument("--quick", action="store_true", help="100 workers, 10 servers at most")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--servers", type=parse_numbers, default=[10, 25, 50, 100, 200, 400])
    parser.add_argument("--size", default="97.5MiB")
    parser.add_argument("--chunk", default="512KiB")
    parser.add_argument("--cores", type=int, default=32, help="of a server")
    parser.add_argument("--worker_cores", type=int, default=4, help="of a worker, for transport")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.servers = 100, [1, 2, 5, 10]
    size, chunk = systems.parse_bytes(options.size), systems.parse_bytes(options.chunk)

    print(f"{options.workers} workers, S = {options.size} in chunks of {options.chunk}, "
          f"{options.cores} cores a server, {options.worker_cores} a worker\n")
    comparisons = results.Comparisons("simulate")
    rows, panels = [], []
    for rate in options.case.split(","):
        series = {"name": "simulated", "x": [], "y": []}
        bound_series = {"name": "bound of the busiest resource", "x": [], "y": []}
        for servers in options.servers:
            cluster = Cluster(options.workers, servers, size, chunk,
                              network.bits_per_second(rate), options.cores, options.worker_cores)
            seconds, busy = cluster.step()
            bounds = cluster.bounds()
            bottleneck = max(bounds, key=bounds.get)
            bound = bounds[bottleneck]
            rows.append([rate, str(servers), f"{seconds * 1e3:.1f}", f"{bound * 1e3:.1f}",
                         bottleneck] + [f"{100 * busy[name]:.0f} %" for name in bounds])
            comparisons.add(f"{rate} servers={servers}", "simulated", bottleneck, seconds * 1e3,
                            bound * 1e3, "ms", seconds / bound)
            for line, value in ((series, seconds), (bound_series, bound)):
                line["x"].append(servers)
                line["y"].append(value * 1e3)
        panels.append({"title": rate, "x_label": "servers", "series": [series, bound_series]})
    results.print_table(["links", "servers", "step ms", "bound ms", "bottleneck"]
                        + list(Cluster(1, 1, 1, 1, 1, 1, 1).bounds()), rows)
    comparisons.close()
    results.plot("simulate", f"a step of {options.workers} workers", "servers", "ms", panels)


if __name__ == "__main__":
    main()
