"""Clients that try to use up a server. Each of them has a server of its own."""

import os
import queue
import resource
import threading
import time

import grpc
from hostile.peers import (CODES, MIB, PATIENCE, Code, Failure, Options, Peer, Stream, Unfinished,
                           channel, connect, control, control_grpc, data_grpc, floats, pair,
                           resident, spec_of, types)

# The codes of refusals because of a limit.
LIMITS = {Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED}
# The statuses of streams that a server ends because the client does not follow the protocol.
CUTS = {Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED, Code.INVALID_ARGUMENT,
        Code.FAILED_PRECONDITION}


def plan_bytes():
    return os.path.getsize(f"{Options.state}/plan")


def chunk_bomb():
    """A group of few bytes in very many chunks."""
    peer = Peer().join("bomb")
    peer.register(spec_of("bomb", 1 << 17, types.F64, chunk_bytes=8))
    return peer.expect_refusal("a group of 1 MiB in 131072 chunks", LIMITS)


def repeats():
    """Repeats the same registration, and does not read the answers."""
    peer = Peer(reads=False)
    peer.hello("repeats")
    spec = spec_of("model", 1 << 22, chunk_bytes=4096)
    peer.register(spec)
    for signal in peer.answers:
        if signal.WhichOneof("kind") == "registered":
            plan = signal.ByteSize()
            break
    before = resident()
    # The answers have half a gigabyte in all.
    for _ in range((512 << 20) // plan):
        peer.register(spec)
    deadline = time.monotonic() + 15
    most = 0
    while time.monotonic() < deadline:
        most = max(most, resident() - before)
        time.sleep(0.05)
    if most > 64 * MIB:
        raise Failure(f"answers that nobody reads took {most >> 20} MiB of the server")
    return f"answers of {plan >> 10} KiB that nobody reads took {most >> 20} MiB of the server"


def descriptors():
    """Opens more connections than the server has descriptors, for one second."""
    used = len(os.listdir(f"/proc/{Options.pid}/fd"))
    soft, hard = resource.prlimit(Options.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(Options.pid, resource.RLIMIT_NOFILE, (used + 40, hard))
    connections = [connect() for _ in range(100)]
    time.sleep(1)
    for connection in connections:
        connection.close()
    resource.prlimit(Options.pid, resource.RLIMIT_NOFILE, (soft, hard))
    try:
        Peer().join("later")
    except grpc.RpcError as error:
        raise Failure(f"nobody gets in any more: {error.code().name}: {error.details()}") from None
    return "a client that comes later gets in"


def names():
    """Names of several megabytes."""
    long_name = "n" * (4 * MIB)
    peer = Peer()
    peer.hello(long_name)
    reactions = [peer.expect_refusal("a job name of 4 MiB", LIMITS)]
    peer = Peer()
    peer.hello("names", name=long_name)
    reactions.append(peer.expect_refusal("a worker name of 4 MiB", LIMITS))
    peer = Peer().join("names")
    peer.register(spec_of(long_name, 4))
    reactions.append(peer.expect_refusal("a group name of 4 MiB", LIMITS))
    peer.register(types.GroupSpec(
        name="g", tensors=[types.TensorSpec(name=long_name, dtype=types.F32, shape=[4])],
        rule=types.UpdateRule(reduction=types.AVERAGE)))
    reactions.append(peer.expect_refusal("a tensor name of 4 MiB", LIMITS))
    return reactions


def job_names():
    """Creates many jobs with different names. The plan must not keep these names."""
    size = plan_bytes()
    for i in range(1500):
        peer = Peer().join(f"{i:04}" + "n" * 200)
        peer.leave()
        peer.channel.close()
    grown = plan_bytes() - size
    # The plan is compacted when it has 1 MiB more than it needs.
    if grown > 1200 << 10:
        raise Failure(f"1500 jobs that are over have left {grown >> 10} KiB in the plan")
    return f"1500 jobs that are over have left {grown >> 10} KiB in the plan"


def ends():
    """Sends EndGroup thousands of times."""
    peer = Peer().join("ends")
    peer.registered(spec_of("g", 4))
    size = plan_bytes()
    count = 5000
    for _ in range(count):
        peer.send(end_group=control.EndGroup(request=peer.request(), group=0, last_round=0))
    for _ in range(count):
        try:
            peer.wait_for("done", "refused")
        except grpc.RpcError as error:
            if error.code() in CUTS:
                break
            raise
    grown = plan_bytes() - size
    if grown > 64 << 10:
        raise Failure(f"{count} ends of one group have left {grown >> 10} KiB in the plan")
    return f"{count} ends of one group have left {grown >> 10} KiB in the plan"


def half_open():
    """Opens streams without sending a first message. A connection that has begun too many is reset."""
    shared = channel()
    ended = queue.Queue()

    def watch(call):
        try:
            for _ in call:
                pass
            ended.put(None)
        except grpc.RpcError as error:
            ended.put(error.code())

    streams = []
    for _ in range(500):
        for stub in (control_grpc.ControlStub(shared).Join, data_grpc.DataStub(shared).Exchange):
            silent = queue.Queue()
            streams.append(silent)
            threading.Thread(target=watch, args=(stub(iter(silent.get, None)),),
                             daemon=True).start()
    deadline = time.monotonic() + PATIENCE
    codes = set()
    for i in range(len(streams)):
        try:
            codes.add(ended.get(timeout=max(0.01, deadline - time.monotonic())))
        except queue.Empty:
            raise Failure(f"{len(streams) - i} of {len(streams)} streams without a hello are "
                          f"still open after {PATIENCE} s") from None
    if not codes <= CUTS | {Code.UNAVAILABLE}:
        raise Failure(f"streams without a hello ended with {codes}")
    return f"{len(streams)} streams without a hello ended with {codes}"


def partial():
    """Announces messages of 19 MiB, and sends all but the last byte. The server holds them until
    the deadline for a hello."""
    endings = queue.Queue()
    calls = 5

    def run():
        try:
            endings.put(Unfinished("/syncgrads.v1.Data/Exchange", 19 * MIB).run())
        except Failure as failure:
            endings.put(failure)

    for _ in range(calls):
        threading.Thread(target=run, daemon=True).start()
    seen = [endings.get(timeout=3 * PATIENCE) for _ in range(calls)]
    for ending in seen:
        if isinstance(ending, Failure):
            raise ending
    return f"calls with an unfinished message ended with {set(seen)}"


def gzip():
    """Sends a message that is small when compressed and very large when decompressed."""
    stub = control_grpc.ControlStub(channel())
    try:
        # The timeout is long, because this process has to compress the message first.
        stub.Probe(control.ProbeRequest(padding=b"\0" * (256 * MIB)), timeout=6 * PATIENCE,
                   compression=grpc.Compression.Gzip)
    except grpc.RpcError as error:
        if error.code() in {Code.RESOURCE_EXHAUSTED, Code.UNIMPLEMENTED}:
            return f"256 MiB of zeros: {error.code().name}: {error.details()[:200]}"
        raise Failure(f"256 MiB of zeros: {error.code().name}: {error.details()}") from None
    raise Failure("256 MiB of zeros were taken")


def future_leave():
    """A member leaves and claims future rounds. The other member must be able to continue."""
    leaver, other = pair("leaves", spec_of("g", 4))
    payload = floats(1, 2, 3, 4)
    stream, first = Stream(other), Stream(leaver)
    first.push(1, payload)
    stream.push(1, payload)
    stream.result("round 1")
    answer = leaver.leave(1 << 40)
    if answer.WhichOneof("kind") == "refused":
        return f"the claim was refused: {answer.refused.error}"
    stream.push(2, payload)
    update = stream.result("the round after a leave that claims future rounds")
    return f"the other member goes on: round {update.round}, counts {list(update.counts)}"


def churn():
    """More than 16 members join and leave a job of bounded staleness."""
    spec = spec_of("model", 4,
                   rule=types.UpdateRule(optimizer=types.Optimizer(sgd=types.Sgd())),
                   policy=types.Policy(staleness=types.Staleness(bound=1000)))
    payload = floats(1, 2, 3, 4)
    terms = {"max_workers": 64, "min_workers": 1}

    def member(name):
        peer = Peer()
        peer.join("churn", name=name, **({**terms, "rank": None} if name != "stays" else terms))
        epoch = peer.wait_for("epoch").epoch
        peer.registered(spec)
        peer.send(ready=control.Ready(request=peer.request(), group=0))
        return peer, epoch

    stays, epoch = member("stays")
    stream = Stream(stays)
    stream.push(0, payload, epoch=epoch.number)
    stream.result("the first parameters")
    for i in range(20):
        comes, epoch = member(f"comes-{i}")
        first = max([entry.round for entry in epoch.handover.rounds] or [1])
        its_stream = Stream(comes)
        its_stream.push(first, payload, epoch=epoch.number)
        its_stream.result(f"a push of member {i + 2}")
        stream.push(i + 1, payload, epoch=epoch.number)
        stream.result(f"a push of the first member beside member {i + 2}")
        comes.leave(first)
        comes.channel.close()
    return "21 members have come, and 20 have gone"


def unread():
    """Does not read results of 4 MiB, while the state directory has 64 MiB."""
    elements = MIB
    peer = Peer().join("unread")
    peer.registered(spec_of("g", elements, chunk_bytes=4 * MIB))
    slow = Stream(peer, reads=False)
    # The same pushes are sent on a second stream. Its answers show when the next round is open.
    stream = Stream(peer)
    payload = b"\0" * (4 * elements)
    reactions = []
    for round_ in range(1, 31):
        slow.push(round_, payload)
        stream.push(round_, payload)
        try:
            update = stream.answer(f"round {round_}")
        except grpc.RpcError as error:
            reactions.append(f"round {round_}: {error.code().name}: {error.details()[:200]}")
            break
        if update.HasField("error"):
            reactions.append(f"round {round_}: {update.error.message[:200]}")
            break
    Peer().join("beside").registered(spec_of("g", MIB))
    reactions.append("another job has room")
    slow.read()
    slow.push(31, payload)
    # Either the server has stopped reading this stream in time, and then answers each push, or
    # more results wait than it permits, and it has cut the stream.
    for round_ in range(1, 32):
        try:
            update = slow.answer(f"round {round_} of the slow reader")
        except grpc.RpcError as error:
            code = error.code()
        else:
            code = CODES[update.error.code] if update.HasField("error") else Code.OK
        # FAILED_PRECONDITION: the round was answered on the other stream and is no longer kept.
        if code not in (Code.OK, Code.FAILED_PRECONDITION):
            break
    else:
        return reactions + ["the slow reader has got its answers"]
    if code != Code.RESOURCE_EXHAUSTED:
        raise Failure(f"the slow reader's stream ended with {code}")
    return reactions + ["the slow reader's stream ended with RESOURCE_EXHAUSTED"]



SCENARIOS = {scenario.__name__: scenario for scenario in (
    chunk_bomb, repeats, descriptors, names, job_names, ends, half_open, partial, gzip,
    future_leave, churn, unread)}
