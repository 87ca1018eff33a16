#include "common/contract/round_wait.h"

#include "absl/time/time.h"
#include "common/contract/milliseconds.h"
#include "common/ids.h"

namespace syncgrads {

v1::RoundWait ToProto(const RoundWait& wait) {
  v1::RoundWait proto;
  proto.set_group(ToNumber(wait.group));
  proto.set_group_name(wait.group_name);
  proto.set_round(ToNumber(wait.round));
  proto.set_open_chunks(wait.open_chunks);
  proto.mutable_tensors()->Assign(wait.tensors.begin(), wait.tensors.end());
  proto.set_tensor_count(wait.tensor_count);
  for (const RoundWait::Missing& missing : wait.missing) {
    v1::MissingMember& member = *proto.add_missing();
    member.set_member(ToNumber(missing.member));
    member.set_name(missing.name);
    member.set_silent_ms(absl::ToInt64Milliseconds(missing.silent));
  }
  proto.set_open_ms(absl::ToInt64Milliseconds(wait.open_for));
  proto.set_text(ToString(wait));
  proto.set_held_for(wait.held_for);
  return proto;
}

RoundWait FromProto(const v1::RoundWait& proto) {
  RoundWait wait;
  wait.group = GroupId{proto.group()};
  wait.group_name = proto.group_name();
  wait.round = Round{proto.round()};
  wait.open_chunks = proto.open_chunks();
  wait.tensors.assign(proto.tensors().begin(), proto.tensors().end());
  wait.tensor_count = proto.tensor_count();
  for (const v1::MissingMember& member : proto.missing()) {
    wait.missing.push_back(
        {MemberId{member.member()}, member.name(), MillisecondsFromWire(member.silent_ms())});
  }
  wait.open_for = MillisecondsFromWire(proto.open_ms());
  wait.held_for = proto.held_for();
  return wait;
}

}  // namespace syncgrads
