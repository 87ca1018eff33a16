"""Clients that misbehave towards a server.

Each run executes one scenario (hostile/limits.py), or all rows (the other files of hostile/), one
after the other. The exit code is 0 if the server reacted correctly: with an error that names what
is wrong, or by continuing if nothing is wrong. Otherwise the error is printed, and the exit code is
1. The caller (misbehaviour_test.cc) checks which resources the server still holds afterwards.
"""

import argparse
import importlib
import os
import sys
import time

# Where the rows are, in the order in which they are tried.
MODULES = ["hellos", "connections", "registrations", "pushes", "local", "members", "guesses"]


def run_rows(peers, only, most_mib):
    failures = 0
    for name, attempt in peers.ROWS:
        if only and only not in name:
            continue
        begin = time.monotonic()
        peers.forget_peak()
        before = peers.resident()
        reaction = attempted(peers, attempt)
        took = (peers.peak() - before) >> 20
        if took > most_mib and not isinstance(reaction, peers.Failure):
            reaction = peers.Failure(f"the server took {took} MiB more, and {most_mib} are "
                                     f"permitted; {reaction}")
        failed = isinstance(reaction, peers.Failure)
        failures += failed
        print(f"{'FAILED ' if failed else ''}{name}: {reaction} "
              f"({time.monotonic() - begin:.1f} s; the server had up to {peers.peak() >> 20} MiB)",
              flush=True)
    return failures


def attempted(peers, attempt):
    """Returns the server's reaction, or a Failure."""
    try:
        return attempt()
    except peers.Failure as failure:
        return failure
    except peers.grpc.RpcError as error:
        return peers.Failure(f"{error.code().name}: {error.details()}")
    finally:
        peers.close_all()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", help="a function of hostile/limits.py, or: rows")
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--pid", type=int, required=True, help="of the server")
    parser.add_argument("--state", required=True, help="the server's state directory")
    parser.add_argument("--stubs", required=True, help="folder of proto/*_pb2*.py")
    parser.add_argument("--only", default="", help="only the rows whose name has this text")
    parser.add_argument("--most_mib", type=int, default=512,
                        help="the memory that the server may take for one row")
    options = parser.parse_args()
    # The links of Bazel's runfiles are not resolved.
    sys.path[:0] = [options.stubs, os.path.dirname(os.path.abspath(__file__))]
    peers = importlib.import_module("hostile.peers")
    peers.Options.coordinator = options.coordinator
    peers.Options.pid = options.pid
    peers.Options.state = options.state
    if options.scenario == "rows":
        for module in MODULES:
            importlib.import_module(f"hostile.{module}")
        failures = run_rows(peers, options.only, options.most_mib)
    else:
        limits = importlib.import_module("hostile.limits")
        reaction = attempted(peers, limits.SCENARIOS[options.scenario])
        failures = isinstance(reaction, peers.Failure)
        print(f"{options.scenario}: {reaction}", flush=True)
    # A normal exit would wait for open streams.
    os._exit(1 if failures else 0)


if __name__ == "__main__":
    main()
