#include "worker/report/event_log.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/json.h"
#include "common/status_macros.h"

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

EventLog::EventLog(LogFile file, const std::string& worker)
    : worker_(JsonString(worker)), file_(std::move(file)) {}

absl::StatusOr<std::unique_ptr<EventLog>> EventLog::Open(const std::string& path,
                                                         const std::string& worker,
                                                         LogFile::Warn warn) {
  SYNCGRADS_ASSIGN_OR_RETURN(
      LogFile file,
      LogFile::Open(path, "event log", LogFile::Existing::kContinued, std::move(warn)));
  return absl::WrapUnique(new EventLog(std::move(file), worker));
}

void EventLog::Begins(uint64_t step, bool newcomer) {
  file_.Write(absl::StrCat("{\"event\":\"begins\",\"worker\":", worker_, ",\"step\":", step,
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
  file_.Write(absl::StrCat("{\"event\":\"step\",\"worker\":", worker_, ",\"step\":", outcome.step,
                           ",\"epoch\":", outcome.epoch, ",\"members\":", Names(outcome.members),
                           ",\"contributors\":", NamesOf(outcome.contributors, outcome.members),
                           ",\"whole\":", outcome.whole ? "true" : "false", parts, ",\"rows\":[",
                           used, "]}\n"));
}

void EventLog::Checkpointed(uint64_t step, const absl::StatusOr<std::string>& path) {
  const std::string what = path.ok()
                               ? absl::StrCat("\"path\":", JsonString(*path))
                               : absl::StrCat("\"error\":", JsonString(path.status().message()));
  file_.Write(absl::StrCat("{\"event\":\"checkpoint\",\"worker\":", worker_, ",\"step\":", step,
                           ",", what, "}\n"));
}

void EventLog::Ends(uint64_t step) {
  file_.Write(absl::StrCat("{\"event\":\"ends\",\"worker\":", worker_, ",\"step\":", step, "}\n"));
}

}  // namespace syncgrads
