"""Groups that cannot be registered, and requests about groups that there are not."""

import itertools

from hostile.peers import (CODES, MIB, ROWS, Code, Failure, Peer, check_refusal, control,
                           pair, row, spec_of, types)

INVALID = Code.INVALID_ARGUMENT
ADAM = types.Optimizer(adam=types.Adam())
_jobs = itertools.count()


def refused_specs(name, codes, *specs):
    """A row: groups that are refused. A spec is (the spec, texts of the error, …)."""
    def attempt():
        peer = Peer().join(f"registers-{next(_jobs)}")
        reactions = []
        for spec, *texts in specs:
            peer.register(spec)
            reactions.append(peer.expect_refusal(name, codes, *texts))
        peer.registered(spec_of("a good one", 4))
        return reactions

    ROWS.append((name, attempt))


def tensor(*shape, name="t", dtype=types.F32):
    return types.TensorSpec(name=name, dtype=dtype, shape=shape)


def group(*tensors, name="g", rule=types.UpdateRule(reduction=types.AVERAGE), **more):
    return types.GroupSpec(name=name, tensors=tensors, rule=rule, **more)


def optimizer(kind, **more):
    return group(tensor(4), rule=types.UpdateRule(optimizer=kind), **more)


refused_specs("a tensor of 2^60 elements", INVALID,
              (group(tensor(1 << 60)), "1152921504606846976", "2^48"))
refused_specs("a tensor of 2^32 x 2^32 x 2^32 elements", INVALID,
              (group(tensor(1 << 32, 1 << 32, 1 << 32)), "4294967296", "2^48"))
refused_specs("a tensor of 2^47 elements", INVALID, (group(tensor(1 << 47)), "chunks", "65536"))
refused_specs("a tensor of 2^42 elements in chunks of 4 MiB", INVALID,
              (group(tensor(1 << 42), chunk_bytes=4 * MIB), "chunks", "65536"))
refused_specs("a group that is larger than the memory", Code.RESOURCE_EXHAUSTED,
              (group(tensor(1 << 36), chunk_bytes=4 * MIB), "bytes", "available"))
refused_specs("shapes with 0, -1 and -2^63", INVALID, (group(tensor(0)), "\"t\"", "[0]"),
              (group(tensor(-1)), "\"t\"", "[-1]"),
              (group(tensor(-1 << 63)), "\"t\"", "-9223372036854775808"))
refused_specs("a tensor of 65 axes", INVALID, (group(tensor(*[1] * 65)), "65", "64"))
refused_specs("an unknown dtype, no tensors, no rule, no names, chunks of 1 byte and of 4 GiB",
              INVALID, (group(tensor(4, dtype=77)), "dtype"), (group(), "no tensors"),
              (types.GroupSpec(name="g", tensors=[tensor(4)]), "rule"),
              (group(tensor(4), name=""), "name"), (group(tensor(4, name="")), "name"),
              (group(tensor(4), chunk_bytes=1), "1"),
              (group(tensor(4), chunk_bytes=(1 << 32) - 1), "4294967295"))
refused_specs("two tensors of one name", INVALID, (group(tensor(4), tensor(5)), "\"t\""))
refused_specs("a learning rate that is NaN, a decay of 7, a quorum of 0, 2^32-1 kept results",
              INVALID,
              (optimizer(types.Optimizer(adam=types.Adam(learning_rate=float("nan")))),
               "learning_rate", "nan"),
              (optimizer(types.Optimizer(adam=types.Adam(beta1=7))), "beta1", "7"),
              (group(tensor(4), policy=types.Policy(quorum=types.Quorum(least=0))), "0"),
              (group(tensor(4), policy=types.Policy(quorum=types.Quorum(
                  least=1, kept=(1 << 32) - 1))), "4294967295"))
refused_specs("a top-k fraction of 9, a clip norm of -1, a factor of 1e9", INVALID,
              (group(tensor(4), compression=[types.Compression(push=types.Encoding(
                  codec=types.TOP_K, fraction=9))]), "9"),
              (optimizer(ADAM, clip_norm=-1), "-1"),
              (optimizer(ADAM, factors=[types.TensorFactors(learning_rate=1e9)]), "1e+09"))


@row("200,000 tensors in one group")
def _():
    peer = Peer().join("tensors")
    plan = peer.registered(group(*[tensor(1, name=f"t{i}") for i in range(200000)]))
    return f"registered: {len(plan.chunks)} chunks"


@row("a link rate that is NaN, and one that is negative")
def _():
    peer = Peer().join("rate")
    for rate in (float("nan"), -1, float("inf")):
        peer.register(spec_of(f"g{rate}", 4), link_rate=rate)
        answer = peer.wait_for("registered", "refused")
        if answer.WhichOneof("kind") == "refused" and answer.refused.error.code != 3:
            raise Failure(f"link rate {rate}: {answer.refused.error}")
    return "none does harm"


@row("the group of another worker with another shape")
def _():
    peer, _ = pair("shapes", spec_of("g", 4))
    peer.register(spec_of("g", 5))
    return peer.expect_refusal("another shape", INVALID, "f32[5]", "f32[4]")


@row("500 groups of one job")
def _():
    peer = Peer().join("groups")
    for i in range(500):
        peer.register(spec_of(f"g{i}", 4))
    for _ in range(500):
        peer.wait_for("registered")
    return "all are registered"


@row("1025 groups of one job")
def _():
    peer = Peer().join("too many groups")
    for i in range(1025):
        peer.register(spec_of(f"g{i}", 4))
    answers = [peer.wait_for("registered", "refused") for _ in range(1025)]
    refused = [answer.refused for answer in answers if answer.HasField("refused")]
    if len(refused) != 1 or refused[0].request != 1025:
        raise Failure(f"refusals: {refused}")
    return check_refusal("the last group", CODES[refused[0].error.code], refused[0].error.message,
                         Code.RESOURCE_EXHAUSTED, "1024")


@row("the end of a group that there is not")
def _():
    peer = Peer().join("no group")
    peer.send(end_group=control.EndGroup(request=1, group=99, last_round=0))
    return peer.expect_refusal("an end", INVALID, "99", "0 groups")


@row("a state in a group that there is not")
def _():
    peer, other = pair("no state", spec_of("g", 4), max_workers=4, min_workers=1)
    peer.send(ready=control.Ready(request=9, group=4711))
    reaction = peer.expect_refusal("a state", INVALID, "4711")
    for member in peer, other:
        member.send(ready=control.Ready(request=10, group=0))
        member.wait_for("done")
    return f"{reaction}; the others name theirs"


@row("a learning rate factor that is NaN")
def _():
    peer, _ = pair("factor", spec_of("g", 4, rule=types.UpdateRule(optimizer=ADAM)))
    peer.send(set_learning_rate=control.SetLearningRate(request=9, factor=float("nan")))
    return peer.expect_refusal("a factor", INVALID, "nan")


@row("a leave with rounds of a thousand groups that there are not")
def _():
    peer = Peer().join("leaves")
    peer.registered(spec_of("g", 4))
    peer.send(leave=control.Leave(request=9, last_rounds=[
        types.GroupRound(group=group_, round=1 << 60) for group_ in range(1000)]))
    return peer.expect_refusal("a leave", INVALID, "1000", "1")
