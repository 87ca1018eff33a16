#include "worker/report/tensorboard.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/crc32c.h"
#include "worker/base/host_name.h"

namespace syncgrads {
namespace {

// Encodes a number in little-endian order, as the format requires.
template <typename T>
std::string Bytes(T number) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes.push_back(static_cast<char>(number >> (8 * i)));
  return bytes;
}

}  // namespace

TensorboardFile::TensorboardFile(LogFile file, std::string path, const Clock& clock)
    : path_(std::move(path)), clock_(clock), file_(std::move(file)) {}

absl::StatusOr<std::unique_ptr<TensorboardFile>> TensorboardFile::Create(
    const std::string& directory, const Clock& clock, LogFile::Warn warn) {
  // If this fails, the file cannot be opened.
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  // TensorBoard recognises its files by "tfevents", and sorts them by the seconds in the
  // name.
  const std::string path =
      absl::StrCat(directory, "/events.out.tfevents.", absl::ToUnixSeconds(clock.Now()), ".",
                   HostName(), ".", getpid());
  SYNCGRADS_ASSIGN_OR_RETURN(
      LogFile opened,
      LogFile::Open(path, "event file", LogFile::Existing::kContinued, std::move(warn)));
  auto file = absl::WrapUnique(new TensorboardFile(std::move(opened), path, clock));
  v1::TensorboardEvent first;
  first.set_file_version("brain.Event:2");
  file->Write(first);
  return file;
}

void TensorboardFile::Add(uint64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars) {
  v1::TensorboardEvent event;
  event.set_step(static_cast<int64_t>(step));
  for (const auto& [tag, value] : scalars) {
    v1::TensorboardSummary::Value& scalar = *event.mutable_summary()->add_value();
    scalar.set_tag(tag);
    scalar.set_simple_value(static_cast<float>(value));
  }
  Write(event);
}

void TensorboardFile::Write(const v1::TensorboardEvent& event) {
  v1::TensorboardEvent timed = event;
  timed.set_wall_time(absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()));
  const std::string data = timed.SerializeAsString();
  const std::string length = Bytes<uint64_t>(data.size());
  file_.Write(absl::StrCat(length, Bytes(MaskedCrc32c(length)), data, Bytes(MaskedCrc32c(data))));
}

void TensorboardProgress::Started(const TrainingPlan& plan) {
  started_ = clock_.Now();
  step_ = 0;
  recent_.Started(plan);
}

void TensorboardProgress::Stepped(uint64_t step, std::optional<double> loss) {
  recent_.Stepped(loss);
  const bool due = every_.IsDue(step_, step);
  step_ = step;
  if (!due) return;
  const RecentSteps recent = recent_.Take();
  Scores scalars;
  if (recent.loss.has_value()) scalars.emplace_back("loss", *recent.loss);
  if (recent.own_loss.has_value()) scalars.emplace_back("own_loss", *recent.own_loss);
  const double seconds = absl::ToDoubleSeconds(clock_.Now() - started_);
  if (seconds > 0) scalars.emplace_back("steps_per_s", static_cast<double>(step) / seconds);
  scalars.emplace_back("rows_per_s", recent.rows_per_s);
  scalars.emplace_back("learning_rate", recent.learning_rate);
  scalars.emplace_back("reads", recent.reads);
  scalars.emplace_back("waits", recent.waits);
  Add(step, "training", scalars);
}

void TensorboardProgress::Validated(uint64_t step, const Scores& scores) {
  Add(step, "validation", scores);
}

void TensorboardProgress::Evaluated(absl::string_view rows, const Scores& scores) {
  Add(step_, rows, scores);
}

void TensorboardProgress::Add(uint64_t step, absl::string_view group, const Scores& scores) {
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [name, value] : scores) {
    scalars.emplace_back(absl::StrCat(group, "/", name), value);
  }
  file_->Add(step, scalars);
}

}  // namespace syncgrads
