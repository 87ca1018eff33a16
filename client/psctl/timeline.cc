#include "client/psctl/timeline.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/json.h"
#include "common/trace/trace_event.h"

namespace syncgrads::client {
namespace {

// The category of chunks' events and of arrows between them.
constexpr char kChunkCategory[] = R"(,"cat":"chunk")";

// The place of an event in the file: a point of an arrow.
struct Point {
  uint32_t process = 0;
  uint32_t thread = 0;
  int64_t time = 0;
};

// The events of one member's part in a round, or of all members' part.
struct Steps {
  std::optional<Point> push, receive, reduce, result;
};

// group, chunk, round
using RoundKey = std::tuple<uint32_t, uint32_t, uint64_t>;

// The steps of a round, by member.
struct RoundSteps {
  std::map<uint32_t, Steps> members;
  Steps all;
};

void SetFirst(std::optional<Point>& step, const Point& point) {
  if (!step.has_value()) step = point;
}

// Writes the events of the file, one a line.
class EventWriter {
 public:
  // Times are written relative to `origin`.
  EventWriter(int64_t origin, std::ostream& out) : origin_(origin), out_(out) {}

  void Name(absl::string_view what, uint32_t process, uint32_t thread, absl::string_view name) {
    Write("M", process, thread, what, absl::StrCat(R"(,"args":{"name":)", JsonString(name), "}"));
  }
  void Place(uint32_t process) {
    Write("M", process, 0, "process_sort_index",
          absl::StrCat(R"(,"args":{"sort_index":)", process, "}"));
  }
  void ClockError(uint32_t process, uint64_t error) {
    Write("M", process, 0, "process_labels",
          absl::StrFormat(R"(,"args":{"labels":"clock +-%.1f us"})", error / 1e3));
  }

  void Event(const Point& at, const std::string& name, const v1::TraceEvent& event) {
    if (event.overlaps()) {
      const std::string id = absl::StrCat(R"(,"cat":"overlapping","id":)", ++last_id_);
      Write("b", at.process, at.thread, name, absl::StrCat(id, Time(at.time), Args(event)));
      Write("e", at.process, at.thread, name,
            absl::StrCat(id, Time(at.time + static_cast<int64_t>(event.duration_ns()))));
    } else {
      // Chromium draws an arrow only to an event of the arrow's category.
      Write("X", at.process, at.thread, name,
            absl::StrFormat(R"(%s%s,"dur":%.3f%s)", event.has_round() ? kChunkCategory : "",
                            Time(at.time), event.duration_ns() / 1e3, Args(event)));
    }
  }

  // Draws arrows from each of the steps that exist to the next one.
  void Arrows(const Steps& steps) {
    std::vector<Point> points;
    for (const auto& step : {steps.push, steps.receive, steps.reduce, steps.result}) {
      if (step.has_value()) points.push_back(*step);
    }
    if (points.size() < 2) return;
    ++last_id_;
    for (size_t i = 0; i < points.size(); ++i) {
      const bool last = i + 1 == points.size();
      const char* const between = i == 0 ? "s" : "t";
      Write(last ? "f" : between, points[i].process, points[i].thread, "chunk",
            absl::StrCat(kChunkCategory, R"(,"id":)", last_id_, Time(points[i].time),
                         last ? R"(,"bp":"e")" : ""));
    }
  }

 private:
  void Write(const char* phase, uint32_t process, uint32_t thread, absl::string_view name,
             absl::string_view rest) {
    out_ << (std::exchange(is_first_, false) ? "" : ",\n") << R"({"ph":")" << phase << R"(","pid":)"
         << process << R"(,"tid":)" << thread << R"(,"name":)" << JsonString(name) << rest << "}";
  }
  std::string Time(int64_t time) const {
    return absl::StrFormat(R"(,"ts":%.3f)", (time - origin_) / 1e3);
  }
  static std::string Args(const v1::TraceEvent& event) {
    switch (event.args_case()) {
      case v1::TraceEvent::kStep:
        return absl::StrCat(R"(,"args":{"step":)", event.step(), "}");
      case v1::TraceEvent::kBytes:
        return absl::StrCat(R"(,"args":{"bytes":)", event.bytes(), "}");
      case v1::TraceEvent::kRound:
        return absl::StrCat(
            R"(,"args":{"group":)", event.round().group(), R"(,"chunk":)", event.round().chunk(),
            R"(,"round":)", event.round().round(),
            event.round().has_member() ? absl::StrCat(R"(,"member":)", event.round().member()) : "",
            "}");
      case v1::TraceEvent::ARGS_NOT_SET:
        break;
    }
    return "";
  }

  const int64_t origin_;
  std::ostream& out_;
  bool is_first_ = true;
  uint64_t last_id_ = 0;
};

// Remembers the event if arrows begin or end at it.
void AddStep(const Point& at, const std::string& name, const v1::TraceEvent& event,
             std::map<RoundKey, RoundSteps>& rounds) {
  if (!event.has_round()) return;
  const v1::TraceRound& round = event.round();
  RoundSteps& of_round = rounds[{round.group(), round.chunk(), round.round()}];
  Steps& steps = round.has_member() ? of_round.members[round.member()] : of_round.all;
  if (name == kTracePush) SetFirst(steps.push, at);
  if (name == kTraceReceive) SetFirst(steps.receive, at);
  if (name == kTraceReduce || name == kTraceUpdate) SetFirst(steps.reduce, at);
  if (name == kTraceResult) SetFirst(steps.result, at);
}

}  // namespace

void Timeline::Add(const Origin& origin, uint64_t process, v1::TracePart part) {
  const auto [at, is_new] = processes_.try_emplace(process);
  Process& of = at->second;
  of.names[origin.place] = origin.name;
  if (is_new || origin.clock_error < of.clock_error) {
    of.clock_offset = origin.clock_offset;
    of.clock_error = origin.clock_error;
  }
  events_ += static_cast<uint64_t>(part.events_size());
  lost_ += part.lost();
  of.parts.push_back(std::move(part));
}

uint64_t Timeline::clock_error() const {
  uint64_t largest = 0;
  for (const auto& [id, process] : processes_) largest = std::max(largest, process.clock_error);
  return largest;
}

void Timeline::Write(std::ostream& out) const {
  std::vector<const Process*> ordered;
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (const auto& [id, process] : processes_) {
    ordered.push_back(&process);
    for (const v1::TracePart& part : process.parts) {
      for (const v1::TraceEvent& event : part.events()) {
        origin = std::min(origin, event.begin_ns() + process.clock_offset);
      }
    }
  }
  std::sort(ordered.begin(), ordered.end(), [](const Process* left, const Process* right) {
    return left->names.begin()->first < right->names.begin()->first;
  });
  std::vector<std::string> missing;
  for (const std::string& line : missing_) missing.push_back(JsonString(line));
  out << absl::StrFormat(
      R"({"displayTimeUnit":"ms","otherData":{"job":%s,"clock":"server 0",)"
      R"("clock_error_us":%.3f,"lost_events":%d,"missing":[%s]},"traceEvents":[)",
      JsonString(job_), clock_error() / 1e3, lost_, absl::StrJoin(missing, ","));
  out << "\n";
  EventWriter writer(origin, out);
  std::map<RoundKey, RoundSteps> rounds;
  for (uint32_t p = 0; p < ordered.size(); ++p) {
    const Process& process = *ordered[p];
    writer.Name("process_name", p, 0,
                absl::StrJoin(process.names, ", ",
                              [](std::string* text, const auto& name) { *text += name.second; }));
    writer.Place(p);
    writer.ClockError(p, process.clock_error);
    std::set<uint32_t> threads;
    for (const v1::TracePart& part : process.parts) {
      for (const v1::TracedThread& thread : part.threads()) {
        if (threads.insert(thread.id()).second) {
          writer.Name("thread_name", p, thread.id(), thread.name());
        }
      }
      for (const v1::TraceEvent& event : part.events()) {
        if (event.thread() >= static_cast<uint32_t>(part.threads_size()) ||
            event.name() >= static_cast<uint32_t>(part.names_size())) {
          continue;  // malformed
        }
        const Point at{p, part.threads(static_cast<int>(event.thread())).id(),
                       event.begin_ns() + process.clock_offset};
        const std::string& name = part.names(static_cast<int>(event.name()));
        writer.Event(at, name, event);
        AddStep(at, name, event, rounds);
      }
    }
  }
  for (auto& [key, round] : rounds) {
    for (auto& [member, steps] : round.members) {
      if (!steps.reduce.has_value()) steps.reduce = round.all.reduce;
      writer.Arrows(steps);
    }
  }
  out << "\n]}\n";
}

}  // namespace syncgrads::client
