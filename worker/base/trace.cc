#include "worker/base/trace.h"

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// Returns an event that gives a name to a row of the timeline, or to the whole timeline.
std::string NameEvent(absl::string_view of, int row, absl::string_view name) {
  return absl::StrCat(R"({"ph":"M","pid":1,"tid":)", row, R"(,"name":")", of,
                      R"(","args":{"name":)", JsonString(name), "}}");
}

}  // namespace

Trace::Span::Span(Trace* trace, Row row, const char* name, std::optional<uint64_t> step)
    : recorded_(name, step.has_value() ? TraceArgs::Step(*step) : TraceArgs()),
      trace_(trace),
      row_(row) {
  if (trace == nullptr) return;
  name_ = step.has_value() ? absl::StrCat(name, " ", *step) : name;
  begin_ = MonotonicNow();
}

Trace::Span::~Span() {
  if (trace_ == nullptr) return;
  trace_->Add(row_, name_, begin_, MonotonicNow());
}

void Trace::Add(Row row, absl::string_view name, absl::Time begin, absl::Time end) {
  Write(absl::StrCat(R"({"ph":"X","pid":1,"tid":)", static_cast<int>(row), R"(,"name":)",
                     JsonString(name), R"(,"ts":)", absl::ToUnixMicros(begin), R"(,"dur":)",
                     absl::ToInt64Microseconds(end - begin), "}"));
}

absl::StatusOr<std::unique_ptr<Trace>> Trace::Create(const std::string& path,
                                                     absl::string_view worker, LogFile::Warn warn) {
  SYNCGRADS_ASSIGN_OR_RETURN(
      LogFile file, LogFile::Open(path, "trace", LogFile::Existing::kReplaced, std::move(warn)));
  auto trace = absl::WrapUnique(new Trace(std::move(file)));
  trace->Write(NameEvent("process_name", 0, worker));
  for (const auto& [row, name] : {std::pair<Row, absl::string_view>{Row::kSteps, "steps"},
                                  {Row::kCompute, "compute"},
                                  {Row::kGradients, "gradients"},
                                  {Row::kResults, "results"},
                                  {Row::kDevice, "device"}}) {
    trace->Write(NameEvent("thread_name", static_cast<int>(row), name));
  }
  return trace;
}

Trace::~Trace() { file_.Write("\n]\n"); }

void Trace::Write(absl::string_view event) {
  file_.Write(absl::StrCat(empty_ ? "[\n" : ",\n", event));
  empty_ = false;
}

}  // namespace syncgrads
