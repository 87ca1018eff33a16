#include "worker/job/job_file.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "worker/base/file.h"
#include "worker/job/check.h"
#include "worker/job/renamed_fields.h"
#include "worker/nn/models/named_model.h"

namespace syncgrads {
namespace {

using google::protobuf::TextFormat;

constexpr size_t kMaxJobFileBytes = 1 << 20;
// The parser and the checks are recursive. The limit keeps them within the stack.
constexpr int kMaxDepth = 100;

// Keeps the first error and counts the rest.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(const std::string& path) : path_(path) {}

  // Lines and columns count from 0; -1 stands for the file as a whole.
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (++count_ > 1) return;
    first_ = absl::StrCat(path_, ":", line < 0 ? 1 : line + 1, ":", column < 0 ? 1 : column + 1,
                          ": ", WithNewName(message));
  }

  absl::Status ToStatus() const {
    return absl::InvalidArgumentError(
        count_ > 1 ? absl::StrCat(first_, " (and ", count_ - 1, " more errors)") : first_);
  }

 private:
  const std::string& path_;
  std::string first_;
  int count_ = 0;
};

// Whether a model has at most one layer of this kind, the first, whose default name has no number.
bool IsScaling(const v1::LayerSpec& layer) {
  return layer.has_min_max_scaling() || layer.has_standard_scaling();
}

// Returns the default name of a layer, without its number.
std::string KindOf(const v1::LayerSpec& layer) {
  if (layer.has_conv2d()) return "conv";
  if (layer.has_custom()) return layer.custom().kind();
  const auto* kinds = layer.GetDescriptor()->oneof_decl(0);
  const auto* kind = layer.GetReflection()->GetOneofFieldDescriptor(layer, kinds);
  return kind == nullptr ? "" : kind->name();
}

void NameLayers(google::protobuf::RepeatedPtrField<v1::LayerSpec>& layers,
                std::map<std::string, int>& counts) {
  for (v1::LayerSpec& layer : layers) {
    const std::string kind = KindOf(layer);
    if (kind.empty()) continue;
    const int number = ++counts[kind];
    if (layer.name().empty()) {
      layer.set_name(IsScaling(layer) ? kind : absl::StrCat(kind, number));
    }
    if (!layer.has_residual()) continue;
    NameLayers(*layer.mutable_residual()->mutable_body(), counts);
    NameLayers(*layer.mutable_residual()->mutable_shortcut(), counts);
  }
}

void FillIn(v1::JobFile& file) {
  if (file.dtype() == v1::DTYPE_UNSPECIFIED) file.set_dtype(v1::F32);
  if (file.optimizer_placement() == v1::OPTIMIZER_PLACEMENT_UNSPECIFIED) {
    file.set_optimizer_placement(v1::WORKERS);
  }
  if (!file.has_model()) return;
  std::map<std::string, int> counts;
  NameLayers(*file.mutable_model()->mutable_layers(), counts);
}

}  // namespace

absl::StatusOr<Job> ParseJobFile(absl::string_view text, const std::string& path) {
  Job job;
  job.directory = DirectoryOf(path);
  FirstError errors(path);
  TextFormat::ParseInfoTree locations;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.WriteLocationsTo(&locations);
  parser.SetRecursionLimit(kMaxDepth);
  if (!parser.ParseFromString(std::string(text), &job.file)) return errors.ToStatus();
  FillIn(job.file);
  SYNCGRADS_RETURN_IF_ERROR(CheckJobFile(job.file, Field(path, job.file, locations)));
  if (job.file.model().has_named()) {
    SYNCGRADS_ASSIGN_OR_RETURN(const v1::ModelSpec model,
                               ExpandNamedModel(job.file.model().named()));
    *job.file.mutable_model()->mutable_layers() = model.layers();
  }
  return job;
}

absl::StatusOr<Job> LoadJobFile(const std::string& path) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxJobFileBytes));
  return ParseJobFile(text, path);
}

}  // namespace syncgrads
