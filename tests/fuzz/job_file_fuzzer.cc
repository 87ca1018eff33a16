// Parses arbitrary bytes as a job file. A job that is accepted can be written as text again, and
// then is the same job.

#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/text_format.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz_target.h"
#include "worker/job/job_file.h"

namespace syncgrads::fuzz {
namespace {

constexpr absl::string_view kData =
    "data { table { path: \"iris.csv\" } target: \"class\" shards: 3 holdout_every: 5 }\n";
constexpr absl::string_view kModel =
    "model { layers { dense { outputs: 8 activation: TANH } } layers { dense { outputs: 3 } } }\n";
constexpr absl::string_view kLoss = "loss { logit_cross_entropy {} }\n";
constexpr absl::string_view kOptimizer = "optimizer { adam { learning_rate: 0.001 } }\n";
constexpr absl::string_view kBegin = "name: \"iris\" batch_size: 8 epochs: 50 workers: 2\n";

}  // namespace

void Fuzz(absl::string_view input) {
  // Protobuf would log each string that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  const absl::StatusOr<Job> job = ParseJobFile(input, "dir/x.job");
  RequireExplained(job.status());
  if (!job.ok()) return;
  v1::JobFile file = job->file;
  // A named model has been replaced by its layers, which a file must not have beside it.
  if (file.model().has_named()) file.mutable_model()->clear_layers();
  std::string text;
  Require(google::protobuf::TextFormat::PrintToString(file, &text), "a job can be written");
  const absl::StatusOr<Job> again = ParseJobFile(text, "dir/x.job");
  Require(again.ok(), absl::StrCat("a job that is written again is accepted: ",
                                   again.status().message(), "\n", text));
  Require(again->file.SerializeAsString() == job->file.SerializeAsString(),
          "a job is written as it was read");
}

std::vector<std::string> Seeds() {
  return {
      absl::StrCat(kBegin, kData, kModel, kLoss, kOptimizer),
      absl::StrCat(kBegin, kData, "model { named { name: \"mlp\" hidden: 5 outputs: 3 } }", kLoss,
                   "optimizer { lamb { } } consistency { sync { } } elastic { min_workers: 1 }"),
      absl::StrCat(kBegin,
                   "data { idx { images: \"i\" labels: \"l\" } shards: 2 holdout_every: 9 }\n",
                   "model { layers { conv2d { outputs: 4 window: 3 } } layers { batch_norm { } }",
                   " layers { residual { body { conv2d { outputs: 4 window: 3 padding: 1 } } } }",
                   " layers { flatten { } } layers { dense { outputs: 10 } } }", kLoss,
                   "optimizer { sgd { learning_rate: 0.1 } } place: SERVERS clip_norm: 1",
                   " checkpoint { directory: \"c\" best: ACCURACY }"),
      absl::StrCat(kBegin, kData, kModel, kLoss, kOptimizer,
                   "schedule { cosine { cycle_steps: 9 minimum: 0.1 } }",
                   "compression { push { codec: TOP_K fraction: 0.1 } result { codec: F16 } }",
                   "gradient_checks { non_finite: SKIP outliers: REJECT outlier_factor: 3 }"),
  };
}

}  // namespace syncgrads::fuzz
