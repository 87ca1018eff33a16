// A logger of one's own: a table with a line for each average over all workers.

#ifndef SYNCGRADS_EXAMPLES_OWN_LOGGER_CSV_LOG_H_
#define SYNCGRADS_EXAMPLES_OWN_LOGGER_CSV_LOG_H_

#include <fstream>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/report/progress.h"
#include "worker/train/extensions.h"

namespace syncgrads {

// Writes "step,loss,rows_per_s" and, for each validation, "step,validation,NAME,VALUE".
class CsvLog : public Progress {
 public:
  // Creates the file DIRECTORY/WORKER.csv.
  static MakeLogger In(const std::string& directory) {
    return [directory](const LoggedWorker& worker) -> absl::StatusOr<std::unique_ptr<Progress>> {
      const std::string path = absl::StrCat(directory, "/", worker.name, ".csv");
      auto log = std::make_unique<CsvLog>(path);
      if (!log->file_) return absl::PermissionDeniedError(absl::StrCat("cannot write ", path));
      return log;
    };
  }

  explicit CsvLog(const std::string& path) : file_(path) {}

  void Started(const TrainingPlan& plan) override { file_ << "# " << ToString(plan) << "\n"; }
  void Averaged(const TeamAverage& average) override {
    if (!average.loss.has_value()) return;
    file_ << average.step << "," << *average.loss << "," << average.rows_per_s << "\n";
  }
  void Stepped(uint64_t, std::optional<double>) override {}
  void Validated(uint64_t step, const Scores& scores) override {
    for (const auto& [name, value] : scores) {
      file_ << step << ",validation," << name << "," << value << "\n";
    }
  }
  void Finished() override { file_ << std::flush; }

 private:
  std::ofstream file_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_EXAMPLES_OWN_LOGGER_CSV_LOG_H_
