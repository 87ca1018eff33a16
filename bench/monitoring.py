"""Measures how much monitoring slows training down, and how fast `psctl status` answers in a job that
uses all processors.

Two real workers train on two servers, so fast that they keep all processors of a small machine
busy. In every other block of time, all four processes are asked for /metrics once a second, `psctl
events -f` follows the events, and a reader does what a browser with the live page does: it follows
/events of server 0, and reads /curves.json and /log.json.
"""

import argparse
import os
import statistics
import subprocess
import threading
import time
import urllib.request

import cluster
import results
import systems

WORKERS = 2
JOB = """
name: "monitored" seed: 7 workers: 2 steps: 100000000 batch_size: 64 threads: 1
data { generated { rows: 4000 seed: 1 } } optimizer { sgd {} }
model {
  layers { dense { outputs: 200 activation: TANH } }
  layers { dense { outputs: 200 activation: TANH } }
  layers { dense { outputs: 1 } }
}
loss { sigmoid_cross_entropy {} }
"""
# In seconds: between two scrapes, and the longest that psctl status may take.
INTERVAL, ANSWER_GOAL = 1, 0.05


def get(url):
    with urllib.request.urlopen(url, timeout=cluster.PATIENCE) as answer:
        return answer.read()


class Watchers:
    """Everything that watches a job, on threads and in a process, until the end of `with`. Counts
    what it has read. `pages`: the addresses of all processes, server 0 first."""

    def __init__(self, job, pages):
        self.scrapes = self.events = 0
        self._pages = pages
        self._failure = None
        self._stop = threading.Event()
        self._psctl = subprocess.Popen(
            [systems.program("client/psctl/psctl"), "events", "-f", f"--server={job.address}"],
            stdout=subprocess.DEVNULL)
        self._threads = [threading.Thread(target=self._run, args=(work,))
                         for work in (self._scrape, self._follow_page)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def _run(self, work):
        try:
            work()
        except (OSError, ValueError) as failure:
            self._failure = failure

    def _scrape(self):
        while not self._stop.is_set():
            for page in self._pages:
                if b"syncgrads_" not in get(page + "/metrics"):
                    raise ValueError(f"{page}/metrics has no metrics")
            self.scrapes += 1
            self._stop.wait(INTERVAL)

    def _follow_page(self):
        with urllib.request.urlopen(self._pages[0] + "/events",
                                    timeout=cluster.PATIENCE) as events:
            while not self._stop.is_set():
                if events.readline().startswith(b"data:"):
                    get(self._pages[0] + "/curves.json")
                    get(self._pages[0] + "/log.json")
                    self.events += 1

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failure is None and self._psctl.poll() is not None:
            self._failure = ValueError("psctl events has ended")
        self._psctl.kill()
        self._psctl.wait()
        if self._failure is not None:
            raise RuntimeError(f"monitoring: {self._failure}")


def watched_rates(job, pages, seconds):
    """Returns the rates while everything watches, the watchers, and the part of the processors that
    the answers to them take."""
    begin, answers = time.monotonic(), job.http_seconds()
    with Watchers(job, pages) as watchers:
        rates = job.rates(seconds)
    answers = job.http_seconds() - answers
    return rates, watchers, answers / (time.monotonic() - begin) / os.cpu_count()


def time_of(*arguments):
    """Returns how long psctl takes, from its start to its end, in seconds, and what it prints."""
    begin = time.monotonic()
    done = subprocess.run([systems.program("client/psctl/psctl"), *arguments], check=True,
                          capture_output=True, text=True, timeout=cluster.PATIENCE)
    return time.monotonic() - begin, done.stdout


def answer_time(job):
    """Returns how long `psctl status` takes, in seconds."""
    taken, printed = time_of("status", f"--server={job.address}")
    if '"model": step' not in printed:
        raise RuntimeError(f"psctl status has printed no step:\n{printed}")
    return taken


def times_text(times):
    """Describes durations, which are sorted and in seconds."""
    return (f"median {statistics.median(times) * 1e3:.1f} ms, "
            f"90th percentile {times[len(times) * 9 // 10] * 1e3:.1f} ms, "
            f"99th {times[len(times) * 99 // 100] * 1e3:.1f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3, help="of each block")
    parser.add_argument("--rounds", type=int, default=21, help="number of pairs of blocks")
    parser.add_argument("--answers", type=int, default=100, help="how often psctl status is called")
    options = parser.parse_args()

    results.print_machine()
    flags = ["--metrics=127.0.0.1:0"]
    with cluster.Cluster(JOB, WORKERS, *flags, worker_flags=flags) as job:
        job.await_step(100)
        pages = job.metrics()
        pairs = cluster.in_pairs(options.rounds,
                                 lambda: watched_rates(job, pages, options.seconds),
                                 lambda: job.rates(options.seconds))
        answers = sorted(answer_time(job) for _ in range(options.answers))
        starts = sorted(time_of("--version")[0] for _ in range(options.answers))
    results.print_table(
        ["job", "read meanwhile", "steps/s not watched", "watched", "ratio",
         "CPU ms not watched", "watched", "ratio"],
        [["two workers", f"{watchers.scrapes} × 4 /metrics, {watchers.events} events",
          f"{alone:.0f}", f"{watched:.0f}", f"{watched / alone:.3f}",
          f"{alone_cpu:.3f}", f"{watched_cpu:.3f}", f"{watched_cpu / alone_cpu:.3f}"]
         for ((watched, watched_cpu), watchers, _), (alone, alone_cpu) in pairs])
    print(f"\npsctl status: {times_text(answers)}"
          f"\nof which psctl takes to start (psctl --version): {times_text(starts)}")

    comparisons = results.Comparisons("monitoring")
    for number, what, unit, goal in ((0, "steps/s", "steps/s", 0.99), (1, "CPU of a step", "ms", 1.01)):
        watched = [rates[number] for (rates, _, _), _ in pairs]
        alone = [rates[number] for _, rates in pairs]
        ratios = [one / other for one, other in zip(watched, alone)]
        spread = statistics.quantiles(ratios, n=4)
        comparisons.add(what, "watched", "not watched", statistics.median(watched),
                        statistics.median(alone), unit, statistics.median(ratios), goal=goal,
                        at_least=goal < 1, quartiles=[spread[0], spread[2]])
        print(f"{what}: half of the ratios are between {spread[0]:.3f} and {spread[2]:.3f}")
    share = statistics.fmean(share for (_, _, share), _ in pairs)
    comparisons.add("answers / all processors", "answers", "processors", share, 1, "", share,
                    goal=0.01)
    median = statistics.median(answers)
    comparisons.add("psctl status, median / 50 ms", "psctl status", "goal", median, ANSWER_GOAL,
                    "s", median / ANSWER_GOAL, goal=1,
                    percentile_90=answers[len(answers) * 9 // 10])
    comparisons.close()


if __name__ == "__main__":
    main()
