"""Guesses of tokens. They come last: after them, a wrong token from this address is answered with
UNAVAILABLE."""

import time

import grpc
from hostile.peers import PATIENCE, Code, Failure, Peer, channel, row
from proto import admin_pb2 as admin
from proto import admin_pb2_grpc as admin_grpc

# So many wrong tokens may come from one address at once, and one more each second.
BURST = 50


def expect_slowed(codes, seconds):
    counts = {code.name: codes.count(code) for code in set(codes)}
    if set(codes) != {Code.PERMISSION_DENIED, Code.UNAVAILABLE}:
        raise Failure(f"guesses are answered with {counts}")
    if codes.count(Code.PERMISSION_DENIED) > BURST + seconds + 1:
        raise Failure(f"guesses within {seconds:.1f} s: {counts}")
    return counts


@row("300 guesses of the honest job's token by Admin.Explain")
def _():
    stub = admin_grpc.AdminStub(channel())
    codes = []
    begin = time.monotonic()
    for i in range(300):
        try:
            stub.Explain(admin.ExplainRequest(job="honest", token=f"guess-{i}"), timeout=PATIENCE)
            raise Failure("a guess was right")
        except grpc.RpcError as error:
            codes.append(error.code())
    return expect_slowed(codes, time.monotonic() - begin)


@row("300 guesses of the honest job's token by joining")
def _():
    codes = set()
    shared = channel()
    for i in range(300):
        peer = Peer(over=shared)
        peer.hello("honest", token=f"guess-{i}", world_size=2)
        try:
            peer.wait_for("welcome")
            raise Failure("a guess was right")
        except grpc.RpcError as error:
            codes.add(error.code())
    if not codes <= {Code.PERMISSION_DENIED, Code.UNAVAILABLE} or Code.UNAVAILABLE not in codes:
        raise Failure(f"guesses are answered with {codes}")
    return sorted(code.name for code in codes)
