"""Contributions that are wrong."""

import random
import struct

import grpc
from hostile.peers import (MIB, PATIENCE, ROWS, Code, Failure, Peer, Stream, channel,
                           check_refusal, control, data, floats, pair, resident, row, spec_of)

INVALID = Code.INVALID_ARGUMENT
ELEMENTS = 1024
TWO = floats(*[2.0] * ELEMENTS)
SPEC = spec_of("g", 4 * ELEMENTS, chunk_bytes=4096)  # 4 chunks
# What is wrong in the hello of a data stream of a job whose token is "right", and the refusal.
WRONG_HELLOS = (({"token": "wrong"}, Code.PERMISSION_DENIED, "token"),
                ({"job": "nobody"}, Code.UNAVAILABLE, "nobody"),
                ({"member": 4711}, Code.UNAVAILABLE, "4711"),
                ({"incarnation": 5}, Code.FAILED_PRECONDITION, "5"),
                ({"protocol_version": 99}, Code.FAILED_PRECONDITION, "99"))


def refused_pushes(name, codes, *pushes, spec=SPEC):
    """A row: pushes that are answered with an error. The stream continues, and the round closes
    with what is pushed afterwards. A push is (the round, the fields, texts of the error, …)."""
    def attempt():
        first, second = pair(f"pushes {len(name)} {name[:80]}", spec)
        stream, other = Stream(first), Stream(second)
        reactions = []
        for round_, fields, *texts in pushes:
            stream.push(round_, **{"payload": TWO, **fields})
            reactions.append(stream.expect_error(f"{name} {fields}", codes, *texts))
        expect_average(stream, other, 1)
        return reactions

    ROWS.append((name, attempt))


def expect_average(stream, other, round_, value=2.0):
    """The two members make a round with payloads of 2.0."""
    for member in stream, other:
        member.push(round_, TWO)
    for member in stream, other:
        expect_values(member.result(f"round {round_}"), value, 2)


def expect_values(update, value, members):
    values = struct.unpack(f"<{ELEMENTS}f", update.payload)
    if list(update.counts) != [members] or any(number != value for number in values):
        raise Failure(f"round {update.round} has {values[0]} of {list(update.counts)}, "
                      f"not {value} of [{members}]")


@row("a push before the hello of a data stream")
def _():
    stream = Stream(Peer().join("no hello"), hello=False)
    stream.push(1, TWO)
    return stream.expect_end("no hello", Code.FAILED_PRECONDITION, "must be a hello")


@row("two hellos on a data stream")
def _():
    peer = Peer().join("two hellos")
    stream = Stream(peer)
    stream.outgoing.put(peer.data_hello())
    return stream.expect_end("a second hello", Code.FAILED_PRECONDITION, "second hello")


@row("a data stream with a wrong token, job, member, incarnation or version")
def _():
    peer = Peer().join("hello", token="right")
    good = {"token": "right"}
    reactions = []
    for more, code, text in WRONG_HELLOS:
        reactions.append(Stream(peer, **{**good, **more}).expect_end(str(more), code, text))
    return reactions


@row("a push with the identity of another member")
def _():
    first, second = pair("identity", SPEC)
    stream = Stream(first)
    stream.push(1, TWO, member=second.member, incarnation=second.incarnation)
    reaction = stream.expect_end("another's push", INVALID, str(second.incarnation))
    expect_average(Stream(first), Stream(second), 1)
    return reaction


refused_pushes("a push of a generation of the past", Code.FAILED_PRECONDITION,
               (1, {"generation": 1}, "generation 1", "not the current"))
refused_pushes("a push to a group or a chunk that there is not", INVALID,
               (1, {"group": 4711}, "4711"), (1, {"chunk": (1 << 32) - 1}, "4294967295"),
               (1, {"chunk": 4}, "4 chunks", "no chunk 4"))
refused_pushes("a push of round 0, 2, 2^63 and 2^64-1", Code.FAILED_PRECONDITION,
               (0, {}, "round 0"), (2, {}, "round 2", "round 1"),
               (1 << 63, {}, "9223372036854775808"), ((1 << 64) - 1, {}, "18446744073709551615"))
refused_pushes("a payload that is a byte short or long, empty, or three times as long", INVALID,
               (1, {"payload": TWO[:-1]}, "4095 bytes", "4096"),
               (1, {"payload": TWO + b"x"}, "4097 bytes", "4096"),
               (1, {"payload": b""}, "has 0", "1024"), (1, {"payload": TWO * 3}, "3072", "1024"))
refused_pushes("a skip with a payload, and absent spans that cannot be", INVALID,
               (1, {"skip": True}, "a skip with 4096 bytes"),
               (1, {"absent_spans": [9]}, "absent span 9"),
               (1, {"absent_spans": [0, 0]}, "ascend"),
               (1, {"absent_spans": [0], "payload": b""}, "every span is absent"),
               (1, {"absent_spans": list(range(1000000))}, "absent span 1"))
refused_pushes("a weight of NaN, -1, infinity and 1e300", INVALID,
               *[(1, {"weight": weight}, "weight") for weight in (
                   float("nan"), -1, float("inf"), 1e300)])
refused_pushes("a codec that was not planned, and one that is unknown", INVALID,
               (1, {"codec": 4}), (1, {"codec": 200}, "200"), (1, {"codec": 256}, "256"))
refused_pushes("shared memory that was never offered", (INVALID, Code.UNAVAILABLE),
               (1, {"payload": b"", "shared": [data.SharedPiece(length=4096)]}, "memory"),
               (1, {"shared": [data.SharedPiece(region=0, length=4096)]}))


@row("two million pieces of shared memory")
def _():
    first, second = pair("pieces", SPEC)
    stream = Stream(first)
    stream.push(1, b"", shared=[data.SharedPiece(length=1)] * 2000000)
    reaction = stream.expect_end("two million pieces", INVALID, "more than 16384 pieces")
    expect_average(Stream(first), Stream(second), 1)
    return reaction


@row("NaN in all elements")
def _():
    first, second = pair("nan", SPEC)
    stream, other = Stream(first), Stream(second)
    stream.push(1, floats(*[float("nan")] * ELEMENTS))
    other.push(1, TWO)
    reaction = stream.expect_error("nan", INVALID, "nan", "worker", "step 1")
    expect_values(other.result("the other's round"), 2.0, 1)
    return reaction


@row("one push 200 times, on four streams")
def _():
    first, second = pair("repeats", SPEC)
    streams, other = [Stream(first) for _ in range(4)], Stream(second)
    for _ in range(50):
        for stream in streams:
            stream.push(1, TWO)
    other.push(1, TWO)
    for stream in streams + [other]:
        expect_values(stream.result("round 1"), 2.0, 2)
    return "it counts once"


@row("a second push to the same round with other values")
def _():
    first, second = pair("other values", SPEC)
    stream, other = Stream(first), Stream(second)
    stream.push(1, TWO)
    stream.push(1, floats(*[1e6] * ELEMENTS))
    other.push(1, TWO)
    expect_values(other.result("round 1"), 2.0, 2)
    return "the first counts"


@row("rounds that have been answered already")
def _():
    first, second = pair("stale", SPEC)
    stream, other = Stream(first), Stream(second)
    for round_ in (1, 2, 3):
        expect_average(stream, other, round_)
    stream.push(1, floats(*[1e6] * ELEMENTS))
    reaction = stream.expect_error("round 1 again", Code.FAILED_PRECONDITION, "no longer kept")
    stream.push(3, floats(*[1e6] * ELEMENTS))
    expect_values(stream.result("round 3 again"), 2.0, 2)
    return reaction


@row("300 messages of random bytes, cut varints, and lengths that lie")
def _():
    peer = Peer().join("frames")
    peer.registered(SPEC)
    chance = random.Random(7)
    hello = peer.data_hello().SerializeToString()
    good = peer.push(1, TWO).SerializeToString()
    endings = {}
    method = "/syncgrads.v1.Data/Exchange"
    for i in range(300):
        message = bytearray(good)
        if i % 3 == 0:
            message = bytearray(chance.randbytes(chance.randrange(1, 200)))
        elif i % 3 == 1:
            message[chance.randrange(60)] = chance.randrange(256)
        else:
            del message[chance.randrange(1, 60):]
        call = channel(peer.addresses[0]).stream_stream(method)(
            iter([hello, bytes(message)]), timeout=PATIENCE)
        try:
            for update in call:
                ending = f"answer {data.UpdateChunk.FromString(update).error.code}"
            ending = "OK"
        except grpc.RpcError as error:
            ending = error.code().name
        endings[ending] = endings.get(ending, 0) + 1
    if set(endings) - {"OK", "INVALID_ARGUMENT"}:
        raise Failure(f"endings: {endings}")
    return endings


@row("pushes of 19 MiB and of 21 MiB")
def _():
    peer, other = pair("large", SPEC)
    stream = Stream(peer)
    stream.push(1, b"\0" * (19 * MIB))
    first = stream.expect_error("19 MiB", INVALID, "4980736", "1024")
    stream.push(1, b"\0" * (21 * MIB))
    second = stream.expect_end("21 MiB", Code.RESOURCE_EXHAUSTED, "larger than max")
    expect_average(Stream(peer), Stream(other), 1)
    return first, second


@row("a compressed push")
def _():
    peer = Peer().join("compressed")
    peer.registered(SPEC)
    call = channel(peer.addresses[0]).stream_stream("/syncgrads.v1.Data/Exchange")(
        iter([peer.data_hello().SerializeToString(),
              peer.push(1, b"\0" * (64 * MIB)).SerializeToString()]),
        timeout=PATIENCE, compression=grpc.Compression.Gzip)
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        if error.code() == Code.UNIMPLEMENTED:
            return f"UNIMPLEMENTED: {error.details()}"
        raise
    raise Failure("a compressed push was taken")


@row("reads no results: 400 rounds of 64 KiB")
def _():
    peer = Peer().join("slow")
    peer.registered(spec_of("g", 16384, chunk_bytes=1 << 16))
    slow, stream = Stream(peer, reads=False), Stream(peer)
    before = resident()
    payload = b"\0" * (1 << 16)
    try:
        for round_ in range(1, 401):
            slow.push(round_, payload)
            stream.push(round_, payload)
            stream.result(f"round {round_}")
    except grpc.RpcError as error:
        return check_refusal(f"round {round_}", error.code(), error.details(),
                             Code.RESOURCE_EXHAUSTED)
    grown = (resident() - before) >> 20
    if grown > 32:
        raise Failure(f"400 rounds that are not read took {grown} MiB of the server")
    return f"400 rounds that are not read took {grown} MiB of the server"


@row("the end of a group at round 0 after a push of round 1, and values again")
def _():
    first, second = pair("ended", SPEC)
    stream, other = Stream(first), Stream(second)
    expect_average(stream, other, 1)
    first.send(end_group=control.EndGroup(request=9, group=0, last_round=0))
    first.wait_for("done")
    stream.push(2, TWO)
    reaction = stream.expect_error("a push after the end", Code.FAILED_PRECONDITION,
                                   "ended its data")
    other.push(2, TWO)
    expect_values(other.result("the other's round"), 2.0, 1)
    return reaction
