#include "common/contract/trace.h"

#include <map>
#include <utility>

namespace syncgrads {
namespace {

// A part and the positions in it.
class PartWriter {
 public:
  bool full() const { return part_.events_size() == static_cast<int>(kTracePartEvents); }

  void Add(const TracedThread& thread, const TraceEvent& event) {
    v1::TraceEvent& proto = *part_.add_events();
    proto.set_name(NameOf(event.name));
    proto.set_thread(ThreadOf(thread));
    proto.set_begin_ns(event.begin);
    proto.set_duration_ns(static_cast<uint64_t>(event.end - event.begin));
    proto.set_overlaps(event.overlaps);
    switch (event.args.kind) {
      case TraceArgs::Kind::kNone:
        break;
      case TraceArgs::Kind::kStep:
        proto.set_step(event.args.number);
        break;
      case TraceArgs::Kind::kBytes:
        proto.set_bytes(event.args.number);
        break;
      case TraceArgs::Kind::kRound:
        proto.mutable_round()->set_group(event.args.group);
        proto.mutable_round()->set_chunk(event.args.chunk);
        proto.mutable_round()->set_round(event.args.number);
        if (MemberId{event.args.member} != TraceArgs::kEveryMember) {
          proto.mutable_round()->set_member(event.args.member);
        }
        break;
    }
  }

  v1::TracePart& part() { return part_; }

 private:
  uint32_t NameOf(const char* name) {
    const auto [at, is_new] = names_.try_emplace(name, part_.names_size());
    if (is_new) part_.add_names(name);
    return at->second;
  }
  uint32_t ThreadOf(const TracedThread& thread) {
    const auto [at, is_new] = threads_.try_emplace(&thread, part_.threads_size());
    if (is_new) {
      v1::TracedThread& proto = *part_.add_threads();
      proto.set_id(thread.id);
      proto.set_name(thread.name);
    }
    return at->second;
  }

  v1::TracePart part_;
  std::map<const char*, uint32_t> names_;
  std::map<const TracedThread*, uint32_t> threads_;
};

}  // namespace

std::vector<v1::TracePart> ToProto(const TraceRecords& records, uint32_t job) {
  std::vector<v1::TracePart> parts;
  PartWriter writer;
  writer.part().set_lost(records.lost);
  for (const TracedThread& thread : records.threads) {
    for (const TraceEvent& event : thread.events) {
      if (job != 0 && event.args.job != 0 && event.args.job != job) continue;
      if (writer.full()) {
        parts.push_back(std::move(writer.part()));
        writer = PartWriter();
      }
      writer.Add(thread, event);
    }
  }
  parts.push_back(std::move(writer.part()));
  return parts;
}

}  // namespace syncgrads
