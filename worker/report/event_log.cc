#include "worker/report/event_log.h"

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/json.h"

namespace syncgrads {
namespace {

std::string Names(const std::vector<std::string>& names) {
  return absl::StrCat(
      "[",
      absl::StrJoin(names, ",",
                    [](std::string* out, const std::string& name) { *out += JsonString(name); }),
      "]");
}

std::string NamesOf(const std::vector<uint32_t>& ranks, const std::vector<std::string>& members) {
  std::vector<std::string> names;
  for (const uint32_t rank : ranks) {
    if (rank < members.size()) names.push_back(members[rank]);
  }
  return Names(names);
}

}  // namespace

EventLog::EventLog(const std::string& worker) : worker_(JsonString(worker)) {}

absl::StatusOr<std::unique_ptr<EventLog>> EventLog::Open(const std::string& path,
                                                         const std::string& worker) {
  auto log = absl::WrapUnique(new EventLog(worker));
  log->file_.open(path, std::ios::app);
  if (!log->file_) {
    return absl::PermissionDeniedError(absl::StrCat("cannot write the event log ", path));
  }
  return log;
}

void EventLog::Write(absl::string_view line) {
  file_.write(line.data(), static_cast<std::streamsize>(line.size()));
  file_.flush();
}

void EventLog::Begins(uint64_t step, bool newcomer) {
  Write(absl::StrCat("{\"event\":\"begins\",\"worker\":", worker_, ",\"step\":", step,
                     ",\"newcomer\":", newcomer ? "true" : "false", "}\n"));
}

void EventLog::Stepped(const StepOutcome& outcome, const std::vector<RowId>& rows,
                       const WorkerData& data) {
  std::string parts;
  if (!outcome.whole) {
    parts = absl::StrCat(
        ",\"parts\":[",
        absl::StrJoin(outcome.parts, ",",
                      [&outcome](std::string* out, const std::vector<uint32_t>& ranks) {
                        *out += NamesOf(ranks, outcome.members);
                      }),
        "]");
  }
  const std::string used = absl::StrJoin(rows, ",", [&data](std::string* out, const RowId& row) {
    absl::StrAppend(out, "[", data.shards[row.shard].number, ",", row.row, "]");
  });
  Write(absl::StrCat("{\"event\":\"step\",\"worker\":", worker_, ",\"step\":", outcome.step,
                     ",\"epoch\":", outcome.epoch, ",\"members\":", Names(outcome.members),
                     ",\"contributors\":", NamesOf(outcome.contributors, outcome.members),
                     ",\"whole\":", outcome.whole ? "true" : "false", parts, ",\"rows\":[", used,
                     "]}\n"));
}

void EventLog::Checkpointed(uint64_t step, const absl::StatusOr<std::string>& path) {
  const std::string what = path.ok()
                               ? absl::StrCat("\"path\":", JsonString(*path))
                               : absl::StrCat("\"error\":", JsonString(path.status().message()));
  Write(absl::StrCat("{\"event\":\"checkpoint\",\"worker\":", worker_, ",\"step\":", step, ",",
                     what, "}\n"));
}

void EventLog::Ends(uint64_t step) {
  Write(absl::StrCat("{\"event\":\"ends\",\"worker\":", worker_, ",\"step\":", step, "}\n"));
}

}  // namespace syncgrads
