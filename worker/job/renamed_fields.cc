#include "worker/job/renamed_fields.h"

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

// The old names are not `reserved` in proto/job.proto: the text parser skips reserved names without
// an error.
constexpr RenamedField kRenamedFields[] = {
    {"Conv2dSpec", "window", "kernel_size"},
    {"DataSpec", "holdout_every", "validation_every"},
    {"ImageSpec", "deviation", "std"},
    {"JobFile", "accumulate", "micro_batches"},
    {"JobFile", "place", "optimizer_placement"},
    {"JobFile", "restarts", "random_restarts"},
    {"LossSpec", "normalisation", "reduction"},
    {"PoolSpec", "window", "kernel_size"},
    {"LayerSpec", "window_input", "min_max_scaling"},
    {"LearningRateSchedule.Step", "at", "milestones"},
};

constexpr RenamedValue kRenamedValues[] = {
    {"mode", "DEALT", "DYNAMIC"},
    {"split", "CEIL", "KEEP_REMAINDER"},
    {"split", "FLOOR", "DROP_REMAINDER"},
};

}  // namespace

absl::Span<const RenamedField> RenamedFields() { return kRenamedFields; }

absl::Span<const RenamedValue> RenamedValues() { return kRenamedValues; }

std::string WithNewName(absl::string_view error) {
  for (const RenamedField& field : kRenamedFields) {
    const std::string unknown = absl::StrCat("Message type \"syncgrads.v1.", field.message,
                                             "\" has no field named \"", field.old_name, "\".");
    if (error == unknown) return absl::StrCat(field.old_name, " is now ", field.new_name);
  }
  for (const RenamedValue& value : kRenamedValues) {
    const std::string unknown = absl::StrCat("Unknown enumeration value of \"", value.old_name,
                                             "\" for field \"", value.field, "\".");
    if (error == unknown) return absl::StrCat(value.old_name, " is now ", value.new_name);
  }
  return std::string(error);
}

}  // namespace syncgrads
