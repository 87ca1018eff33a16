"""Members, and strangers, that do what only others may do."""

import time

import grpc
from hostile.peers import (MIB, PATIENCE, Code, Failure, Peer, Stream, channel, check_refusal,
                           control, control_grpc, floats, pair, row, spec_of, types)
from proto import admin_pb2 as admin
from proto import admin_pb2_grpc as admin_grpc

SPEC = spec_of("g", 4)
VALUES = floats(1, 2, 3, 4)


def admin_stub():
    return admin_grpc.AdminStub(channel())


def expect_denied(what, call, *texts):
    try:
        call()
    except grpc.RpcError as error:
        return check_refusal(what, error.code(), error.details(), Code.PERMISSION_DENIED, *texts)
    raise Failure(f"{what} was permitted")


def expect_invalid(what, call, *texts):
    try:
        call()
    except grpc.RpcError as error:
        return check_refusal(what, error.code(), error.details(), Code.INVALID_ARGUMENT, *texts)
    raise Failure(f"{what} was permitted")


def secret_pair(job, **terms):
    """Two members that have secrets, as those of the client library have."""
    peers = Peer(), Peer()
    for rank, peer in enumerate(peers):
        peer.secret = f"secret of {rank}"
        peer.hello(job, rank=rank, world_size=2, **terms)
    for peer in peers:
        peer.welcomed()
        peer.wait_for("epoch")
        peer.registered(SPEC)
    return peers


def expect_round(streams, round_):
    for stream in streams:
        stream.push(round_, VALUES)
    for stream in streams:
        update = stream.result(f"round {round_}")
        if update.payload != VALUES or list(update.counts) != [2]:
            raise Failure(f"round {round_}: {update}")


@row("a stranger pushes in a member's place, in a job without a token")
def _():
    first, second = secret_pair("no token")
    streams = Stream(first), Stream(second)
    reactions = []
    for secret in "", "guess":
        thief = Stream(first, member_secret=secret)
        thief.push(1, floats(*[1e6] * 4))
        reactions.append(thief.expect_end("a thief's stream", Code.PERMISSION_DENIED))
    expect_round(streams, 1)
    return reactions


@row("a stranger asks for the incarnations of members")
def _():
    first, _ = secret_pair("secrets")
    text = str(admin_stub().GetStatus(admin.GetStatusRequest(), timeout=PATIENCE))
    if str(first.incarnation) in text or first.secret in text or "sha256" in text:
        raise Failure("GetStatus shows an incarnation or a secret")
    return "GetStatus shows none"


@row("the name of a job is taken before its workers come")
def _():
    squatter = Peer().join("tomorrow", token="squatter")
    peer = Peer()
    peer.hello("tomorrow", token="right")
    reaction = peer.expect_refusal("a worker that comes later", Code.PERMISSION_DENIED, "tomorrow")
    squatter.leave()
    return reaction


@row("follows the plan as a server that there is not")
def _():
    signal = control.ServerSignal(hello=control.ServerHello(
        protocol_version=2, index=1, address="127.0.0.1:9", incarnation=5))
    call = control_grpc.ControlStub(channel()).Follow(iter([signal]), timeout=PATIENCE)
    try:
        next(call)
    except grpc.RpcError as error:
        return check_refusal("a server too many", error.code(), error.details(),
                             Code.INVALID_ARGUMENT, "index 1", "1 server")
    raise Failure("a stranger follows the plan")


@row("administers the honest job without its token")
def _():
    stub = admin_stub()
    calls = {
        "Explain": lambda: stub.Explain(admin.ExplainRequest(job="honest"), timeout=PATIENCE),
        "Evict": lambda: stub.Evict(admin.EvictRequest(job="honest", worker="worker-0"),
                                    timeout=PATIENCE),
        "Readmit": lambda: stub.Readmit(admin.ReadmitRequest(job="honest", worker="worker-0"),
                                        timeout=PATIENCE),
        "Checkpoint": lambda: stub.Checkpoint(admin.CheckpointRequest(job="honest"),
                                              timeout=PATIENCE),
        "SetLearningRate": lambda: stub.SetLearningRate(
            admin.SetLearningRateRequest(job="honest", factor=9), timeout=PATIENCE),
        "ReadOptimizer": lambda: next(stub.ReadOptimizer(
            admin.ReadOptimizerRequest(job="honest"), timeout=PATIENCE)),
        "Trace": lambda: next(stub.Trace(admin.TraceRequest(job="honest", seconds=1),
                                         timeout=PATIENCE)),
    }
    return [expect_denied(name, call, "honest") for name, call in calls.items()]


@row("joins and leaves in the place of another member of the job")
def _():
    first, second = secret_pair("thief", token="right")
    reactions = []
    for secret in "", second.secret:
        thief = Peer()
        thief.incarnation, thief.secret = first.incarnation, secret
        thief.hello("thief", token="right", rank=0, world_size=2, generation=first.generation)
        reactions.append(thief.expect_refusal("a thief", Code.PERMISSION_DENIED))
    expect_round((Stream(first), Stream(second)), 1)
    return reactions


@row("claims round 2^60, so that the others are behind")
def _():
    first, second = pair("behind", SPEC, max_workers=4, min_workers=1, step_timeout_ms=2000)
    for peer in first, second:
        peer.send(ready=control.Ready(request=peer.request(), group=0))
        peer.wait_for("done")
    streams = Stream(first), Stream(second)
    begin, round_ = time.monotonic(), 0
    # Twice the time after which a member that is behind is dropped.
    while time.monotonic() - begin < 4:
        for peer, progress in (first, round_), (second, 1 << 60):
            peer.send(heartbeat=control.Heartbeat(progress=[
                types.GroupRound(group=0, round=progress)]))
        round_ += 1
        expect_round(streams, round_)
        time.sleep(0.05)
    return f"{round_} rounds with both members"


@row("is evicted, and does not read its results")
def _():
    peer = Peer().join("evicted")
    peer.registered(spec_of("g", MIB, chunk_bytes=4 * MIB))
    stream = Stream(peer, reads=False)
    for round_ in range(1, 4):
        stream.push(round_, b"\0" * (4 * MIB))
    admin_stub().Evict(admin.EvictRequest(job="evicted", worker=peer.name), timeout=PATIENCE)
    reactions = [peer.expect_refusal("the membership", Code.ABORTED, "evict")]
    stream.read()
    try:
        while True:
            stream.answer("a result of an evicted member")
    except grpc.RpcError as error:
        return reactions + [f"its data stream: {error.code().name}: {error.details()[:100]}"]


def admitted_admin_stub():
    """Without a call that is admitted first, the bytes of a connection are limited."""
    stub = admin_stub()
    stub.ReadClock(admin.ReadClockRequest(), timeout=PATIENCE)
    return stub


@row("tokens of 19 MiB in Admin.Explain and Admin.Evict")
def _():
    stub, token = admitted_admin_stub(), "x" * (19 * MIB)
    return [expect_invalid(what, call, str(len(token)), "1024") for what, call in (
        ("Explain", lambda: stub.Explain(admin.ExplainRequest(job="honest", token=token),
                                         timeout=PATIENCE)),
        ("Evict", lambda: stub.Evict(admin.EvictRequest(job="honest", token=token, worker="a"),
                                     timeout=PATIENCE)))]


@row("names of 1 MiB and of control characters in Admin.Explain")
def _():
    stub = admitted_admin_stub()
    return [expect_invalid(f"a name of {len(name)} bytes",
                           lambda name=name: stub.Explain(admin.ExplainRequest(job=name),
                                                          timeout=PATIENCE), "the job's name")
            for name in ("x" * MIB, "\x1b[2J")]


@row("40 callers of Admin.GetStatus that do not read the answer")
def _():
    # Its windows are so small that no answer fits until it is read.
    shared = channel(options=[("grpc.http2.lookahead_bytes", 5), ("grpc.http2.bdp_probe", 0)])
    calls = [shared.stream_stream("/syncgrads.v1.Admin/GetStatus")(iter([b""]))
             for _ in range(40)]
    stub = admin_stub()

    def wait_for(expected):
        """Calls until the answer is as expected; returns the error."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                stub.GetStatus(admin.GetStatusRequest(), timeout=PATIENCE)
                code, details = Code.OK, ""
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
            if code == expected:
                return details
        raise Failure(f"no answer was {expected.name} within {PATIENCE} s; {len(calls)} calls")

    refused = wait_for(Code.RESOURCE_EXHAUSTED)
    if "have not been read" not in refused:
        raise Failure(f"a further caller is refused: {refused}")
    wait_for(Code.OK)
    return f"a further caller is refused ({refused}), and admitted when they have been cut"
