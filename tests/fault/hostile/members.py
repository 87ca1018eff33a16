"""Members, and strangers, that do what only others may do."""

import queue
import threading
import time

import grpc
from hostile.peers import (MIB, PATIENCE, Code, Failure, Peer, Stream, channel, check_refusal,
                           control, control_grpc, floats, forget_peak, pair, peak, resident, row,
                           spec_of, types)
from proto import admin_pb2 as admin
from proto import admin_pb2_grpc as admin_grpc
from proto import trace_pb2 as trace

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


def expect_refused(what, call, code, *texts):
    try:
        call()
    except grpc.RpcError as error:
        return check_refusal(what, error.code(), error.details(), code, *texts)
    raise Failure(f"{what} was permitted")


def expect_invalid(what, call, *texts):
    return expect_refused(what, call, Code.INVALID_ARGUMENT, *texts)


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
    return [expect_refused(what, call, Code.RESOURCE_EXHAUSTED, f"{what}Request", "65536")
            for what, call in (
        ("Explain", lambda: stub.Explain(admin.ExplainRequest(job="honest", token=token),
                                         timeout=PATIENCE)),
        ("Evict", lambda: stub.Evict(admin.EvictRequest(job="honest", token=token, worker="a"),
                                     timeout=PATIENCE)))]


@row("names and tokens of 60 KiB, and names of control characters, in Admin.Explain")
def _():
    stub, long = admitted_admin_stub(), "x" * 61440
    return [expect_invalid(what, lambda request=request: stub.Explain(request, timeout=PATIENCE),
                           *texts)
            for what, request, *texts in (
        ("a long name", admin.ExplainRequest(job=long), "the job's name", "61440", "255"),
        ("a long token", admin.ExplainRequest(job="honest", token=long), "61440", "1024"),
        ("control characters", admin.ExplainRequest(job="\x1b[2J"), "the job's name"))]


def delimited(number, body):
    """A field with a length."""
    length, rest = b"", len(body)
    while rest > 127:
        length, rest = length + bytes([rest & 127 | 128]), rest >> 7
    return bytes([number << 3 | 2]) + length + bytes([rest]) + body


# Two bytes take a hundred when they are parsed: an empty element, and a field that there is not.
MANY = MIB * 19 // 2
UNKNOWN = delimited(15, b"") * MANY


def with_little_memory(what, attempt):
    """Expects that `attempt` takes less than 64 MiB of the server. Returns what it returns."""
    forget_peak()
    before = resident()
    answer = attempt()
    if (more := peak() - before) > 64 * MIB:
        raise Failure(f"{what} took {more >> 20} MiB of the server")
    return answer


@row("19 MiB that take much more when they are parsed, to every method with one message")
def _():
    # A process (3) with a part (4) with empty events (3).
    events = delimited(3, delimited(4, delimited(3, b"") * MANY))
    shared, answers = channel(), []
    shared.unary_unary("/syncgrads.v1.Control/Probe")(b"", timeout=PATIENCE)
    for method, message in [("Control/ReportTrace", events), ("Control/Probe", UNKNOWN)] + [
            (f"Admin/{method}", UNKNOWN) for method in (
                "Explain", "Evict", "Readmit", "Checkpoint", "SetLearningRate", "ReadOptimizer",
                "GetStatus", "Drain", "Trace", "StopTrace", "Events", "ReadClock")]:
        call = shared.unary_stream(f"/syncgrads.v1.{method}")
        answers.append(with_little_memory(method, lambda: expect_refused(
            method, lambda: list(call(message, timeout=PATIENCE)), Code.RESOURCE_EXHAUSTED,
            "bytes; at most")))
    return answers[:2]


@row("a worker that reports about a trace again and again, and never says that it is done")
def _():
    peer = Peer().join("reporter", world_size=1)
    ends, over = queue.Queue(), threading.Event()

    def read():
        request = admin.TraceRequest(job="reporter", seconds=0.1)
        try:
            for answer in admin_stub().Trace(request, timeout=PATIENCE):
                if answer.missing:
                    ends.put(answer.missing)
            ends.put("the trace ended")
        except grpc.RpcError as error:
            ends.put(error.details())
        over.set()

    reader = threading.Thread(target=read)
    reader.start()
    asked = peer.wait_for("trace_requested").trace_requested
    report = control.TraceReport(trace=asked.trace, member=peer.member,
                                 process=trace.ProcessTrace())
    stub = control_grpc.ControlStub(channel())
    while not over.is_set():
        try:
            stub.ReportTrace(report, timeout=PATIENCE)
        except grpc.RpcError as error:
            if error.code() != Code.NOT_FOUND:
                raise
    reader.join()
    missing, end = ends.get(), ends.get()
    if "did not report within" not in missing or end != "the trace ended":
        raise Failure(f"{missing}; {end}")
    return missing


@row("a registration of ten million empty tensors, and a signal of ten million unknown fields")
def _():
    # The spec (2) of a group (3) with empty tensors (2).
    tensors = delimited(3, delimited(2, delimited(2, b"") * MANY))
    answers = []
    for what, signal in ("tensors", tensors), ("fields", UNKNOWN):
        outgoing = queue.Queue()
        outgoing.put(Peer().hello_of(f"many {what}").SerializeToString())
        call = channel().stream_stream("/syncgrads.v1.Control/Join")(iter(outgoing.get, None))
        next(call)

        def send():
            outgoing.put(signal)
            return expect_refused(what, lambda: list(call), Code.RESOURCE_EXHAUSTED, "parts")

        answers.append(with_little_memory(what, send))
    return answers


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
