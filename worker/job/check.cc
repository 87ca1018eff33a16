#include "worker/job/check.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/codec/encoding.h"
#include "common/contract/contract.h"
#include "common/group/layout.h"
#include "common/status_macros.h"
#include "worker/job/across_workers.h"
#include "worker/job/check_consistency.h"
#include "worker/job/check_data.h"
#include "worker/job/check_data_sets.h"
#include "worker/job/check_model.h"
#include "worker/job/check_optimizer.h"
#include "worker/job/check_validation.h"
#include "worker/job/check_values.h"

namespace syncgrads {
namespace {

// The smallest chunk: it has room for one element of any dtype.
constexpr uint32_t kLeastChunkBytes = 8;

absl::Status CheckGradientChecks(const v1::GradientChecks& checks, const Field& field) {
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "non_finite", checks.non_finite(), v1::OnBad_IsValid(checks.non_finite())));
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "outliers", checks.outliers(), v1::OnBad_IsValid(checks.outliers())));
  const double factor = checks.outlier_factor();
  if (factor == 0 || (std::isfinite(factor) && factor > 1)) return absl::OkStatus();
  return field.Member("outlier_factor")
      .Error(absl::StrCat("is ", factor, ", must be 0 or a finite number above 1"));
}

// Norms over all chunks of a step are computed where the optimizer is applied.
absl::Status CheckNorms(const v1::JobFile& file, const Field& root) {
  const bool has_ratios = file.optimizer().has_lamb() || file.optimizer().has_lars();
  if (file.clip_norm() == 0 && !has_ratios) return absl::OkStatus();
  std::string why;
  if (file.consistency().has_async() || file.consistency().has_bounded_staleness()) {
    why = absl::StrCat("consistency is ",
                       file.consistency().has_async() ? "async" : "bounded_staleness",
                       ", which has no steps common to all workers");
  } else if (file.optimizer_placement() == v1::SERVERS &&
             file.data().mode() == v1::DataSpec::DYNAMIC) {
    why =
        "optimizer_placement is SERVERS and data.mode is DYNAMIC: set data.mode to SHARDS or "
        "optimizer_placement to WORKERS";
  } else {
    return absl::OkStatus();
  }
  if (file.clip_norm() > 0) {
    return root.Member("clip_norm").Error(absl::StrCat("is ", file.clip_norm(), ", but ", why));
  }
  return root.Member("optimizer")
      .Error(absl::StrCat("is ", file.optimizer().has_lamb() ? "lamb" : "lars", ", but ", why));
}

// Checks what is applied to averaged gradients, or to the parameters after each step.
absl::Status CheckSteps(const v1::JobFile& file, const Field& root) {
  SYNCGRADS_RETURN_IF_ERROR(
      CheckGradientChecks(file.gradient_checks(), root.Member("gradient_checks")));
  const Field clip = root.Member("clip_norm");
  if (!std::isfinite(file.clip_norm()) || file.clip_norm() < 0) {
    return clip.Error(absl::StrCat("is ", file.clip_norm(), ", must be 0 or a positive number"));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckNorms(file, root));
  if (file.check_replicas_every() > 0 && file.has_elastic()) {
    return root.Member("check_replicas_every")
        .Error(
            "is given, but the job is elastic: replicas of an elastic job are compared only at the "
            "end");
  }
  return absl::OkStatus();
}

absl::Status CheckWeightColumn(const v1::JobFile& file, const Field& root) {
  const bool needed = file.loss().reduction() == v1::LossSpec::BY_COLUMN;
  const Field column = root.Member("data").Member("weight_column");
  const std::string& name = file.data().weight_column();
  if (needed && name.empty()) return column.Error("is missing: loss.reduction is BY_COLUMN");
  if (!needed && !name.empty()) {
    return column.Error(absl::StrCat("is \"", name, "\", but loss.reduction is not BY_COLUMN"));
  }
  if (needed && !file.data().has_table() && !file.data().has_custom()) {
    return column.Error(absl::StrCat(
        "is \"", name, "\", but only data.table and data.custom can have a weight column"));
  }
  for (const std::string& feature : file.data().features()) {
    if (needed && feature == name) return column.Error(absl::StrCat("\"", name, "\" is a feature"));
  }
  return absl::OkStatus();
}

absl::Status CheckElastic(const v1::JobFile& file, const Field& root) {
  const Field mode = root.Member("data").Member("mode");
  SYNCGRADS_RETURN_IF_ERROR(CheckEnum(root.Member("data"), "mode", file.data().mode(),
                                      v1::DataSpec::Mode_IsValid(file.data().mode())));
  if (file.data().mode() == v1::DataSpec::DYNAMIC) {
    if (!file.has_elastic()) {
      return mode.Error(
          "is DYNAMIC, but the job is not elastic: only elastic jobs support DYNAMIC");
    }
    if (file.data().order() == v1::DataSpec::WITH_REPLACEMENT) {
      return mode.Error(
          "is DYNAMIC, but order is WITH_REPLACEMENT: DYNAMIC uses each row once per epoch");
    }
  }
  const uint32_t workers = file.workers();
  const v1::Elastic& elastic = file.elastic();
  if (workers == 0) return absl::OkStatus();  // set by a flag
  if (elastic.min_workers() > workers) {
    return root.Member("elastic")
        .Member("min_workers")
        .Error(absl::StrCat("is ", elastic.min_workers(), ", but workers is ", workers));
  }
  if (elastic.max_workers() != 0 && elastic.max_workers() < workers) {
    return root.Member("elastic")
        .Member("max_workers")
        .Error(absl::StrCat("is ", elastic.max_workers(), ", but workers is ", workers));
  }
  return absl::OkStatus();
}

absl::Status CheckEncoding(const v1::Encoding& proto, const Field& field) {
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "codec", proto.codec(), v1::Codec_IsValid(proto.codec())));
  SYNCGRADS_ASSIGN_OR_RETURN(const Encoding encoding, FromProto(proto));
  const absl::Status status = Validate(encoding);
  return status.ok() ? status : field.Error(status.message());
}

absl::Status CheckCompression(const v1::JobFile& file, const Field& root) {
  for (int i = 0; i < file.compression_size(); ++i) {
    const v1::CompressionRule& rule = file.compression(i);
    const Field field = root.Member("compression", i);
    if (file.dtype() != v1::F32) return field.Error("supports F32 only, but dtype is F64");
    for (int p = 0; p < rule.parameters_size(); ++p) {
      if (rule.parameters(p).empty()) return field.Member("parameters", p).Error("is empty");
    }
    SYNCGRADS_RETURN_IF_ERROR(CheckEncoding(rule.push(), field.Member("push")));
    SYNCGRADS_RETURN_IF_ERROR(CheckEncoding(rule.result(), field.Member("result")));
    if (file.optimizer_placement() == v1::SERVERS && rule.result().codec() != v1::RAW) {
      return field.Member("result").Error(
          "is given, but optimizer_placement is SERVERS: results are parameters, which are not "
          "compressed");
    }
    if (file.consistency().has_local_steps() && rule.result().codec() != v1::RAW) {
      return field.Member("result").Error(
          "is given, but consistency is local_steps: results are parameters, which are not "
          "compressed");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpoint(const v1::JobFile& file, const Field& root) {
  if (!file.has_checkpoint()) return absl::OkStatus();
  const v1::Checkpoint& checkpoint = file.checkpoint();
  const Field field = root.Member("checkpoint");
  if (checkpoint.directory().empty()) return field.Member("directory").Error("is missing");
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnum(field, "best", checkpoint.best(), v1::Checkpoint::Best_IsValid(checkpoint.best())));
  if (checkpoint.best() == v1::Checkpoint::NONE) return absl::OkStatus();
  const std::string& best = v1::Checkpoint::Best_Name(checkpoint.best());
  if (file.data().validation_every() == 0 && !file.has_validation()) {
    return field.Member("best").Error(absl::StrCat(
        "is ", best,
        ", but there is no validation, and data.validation_every is 0: no rows are held out"));
  }
  if (checkpoint.best() == v1::Checkpoint::ACCURACY && HasNumbers(file.loss())) {
    return field.Member("best").Error(
        "is ACCURACY, but the targets are numbers, which have no accuracy");
  }
  return absl::OkStatus();
}

absl::Status CheckRestarts(const v1::JobFile& file, const Field& root) {
  if (file.random_restarts() == 0) return absl::OkStatus();
  const Field field = root.Member("random_restarts");
  const auto refuse = [&](absl::string_view why) {
    return field.Error(absl::StrCat("is ", file.random_restarts(), ", but ", why));
  };
  if (file.data().validation_every() == 0) {
    return refuse(
        "data.validation_every is 0: there are no held-out rows to compare the initialisations on");
  }
  if (file.has_elastic())
    return refuse("the job is elastic: a worker that joins later would miss some of them");
  if (file.has_checkpoint())
    return refuse("checkpoint is given: checkpoints cover a single training run");
  if (file.consistency().has_best_of()) return refuse("consistency is best_of");
  if (!file.model().init_from().empty())
    return refuse("model.init_from sets the initial parameters");
  return absl::OkStatus();
}

// A stream of batches has no table: there is nothing to hold out, to divide or to read again.
absl::Status CheckStream(const v1::JobFile& file, const Field& custom) {
  const auto refuse = [&](absl::string_view why) {
    return custom.Member("stream_features").Error(absl::StrCat("is given, but ", why));
  };
  if (file.steps() == 0) return refuse("steps is 0: the largest number of steps is needed");
  if (file.data().validation_every() != 0) return refuse("a stream has no held-out rows");
  if (file.data().shards() != 0) return refuse("data.shards is given: each worker has a stream");
  if (file.data().partition() != v1::DataSpec::PERMUTED) return refuse("data.partition is given");
  if (!file.data().served_from().empty()) return refuse("data.served_from is given");
  if (!file.data().weight_column().empty()) return refuse("data.weight_column is given");
  if (file.has_validation() && file.validation().every_steps() == 0) {
    return refuse("validation.every_steps is not: a stream has no epochs");
  }
  if (file.has_elastic()) return refuse("the job is elastic");
  if (file.consistency().has_best_of()) return refuse("best_of trains each worker alone");
  if (file.random_restarts() != 0) return refuse("random_restarts train on the data several times");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckJobFile(const v1::JobFile& file, const Field& root) {
  if (file.name().empty()) return root.Member("name").Error("is missing: the job's name");
  if (file.dtype() != v1::F32 && file.dtype() != v1::F64) {
    const std::string name =
        v1::DType_IsValid(file.dtype()) ? v1::DType_Name(file.dtype()) : absl::StrCat(file.dtype());
    return root.Member("dtype").Error(absl::StrCat("is ", name, ", must be F32 or F64"));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckThreads(root, "threads", file.threads()));
  if (!file.has_data()) return root.Member("data").Error("is missing");
  SYNCGRADS_RETURN_IF_ERROR(CheckData(file.data(), root.Member("data")));
  SYNCGRADS_RETURN_IF_ERROR(CheckDataSets(file, root));
  if (file.data().custom().stream_features() > 0) {
    SYNCGRADS_RETURN_IF_ERROR(CheckStream(file, root.Member("data").Member("custom")));
  }
  const bool all = file.data().partition() == v1::DataSpec::ALL;
  if (all && (file.has_elastic() || file.consistency().has_best_of())) {
    return root.Member("data")
        .Member("partition")
        .Error(file.has_elastic()
                   ? "is ALL, but the job is elastic"
                   : "is ALL, but with best_of each worker trains on its own shards");
  }
  if (!all && file.data().shards() > 0 && file.workers() > file.data().shards()) {
    return root.Member("workers").Error(absl::StrCat("is ", file.workers(), ", but data.shards is ",
                                                     file.data().shards(),
                                                     ": each worker needs at least one shard"));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckElastic(file, root));
  if (!file.has_model()) return root.Member("model").Error("is missing");
  SYNCGRADS_RETURN_IF_ERROR(CheckModel(file.model(), root.Member("model")));
  if (!file.has_loss()) return root.Member("loss").Error("is missing");
  SYNCGRADS_RETURN_IF_ERROR(
      CheckLoss(file.loss(), file.model(), file.data(), root.Member("loss"), root.Member("model")));
  if (file.data().class_names_size() > 0 && HasNumbers(file.loss())) {
    return root.Member("data").Member("class_names").Error("is given, but the targets are numbers");
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckOptimizer(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckConsistency(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckWeightColumn(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckCompression(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckSteps(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckValidation(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckCheckpoint(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckRestarts(file, root));
  SYNCGRADS_RETURN_IF_ERROR(CheckAcrossWorkers(file, root));
  if (file.batch_size() == 0) {
    return root.Member("batch_size").Error("is 0 or missing, must be at least 1");
  }
  if (file.epochs() == 0 && file.steps() == 0) {
    return root.Error("epochs or steps is missing: give one of them");
  }
  if (file.epochs() > 0 && file.steps() > 0) {
    return root.Member("steps").Error(
        absl::StrCat("is ", file.steps(), " and epochs is ", file.epochs(), ": give one of them"));
  }
  if (file.chunk_bytes() != 0 &&
      (file.chunk_bytes() < kLeastChunkBytes || file.chunk_bytes() > kMaxChunkBytes)) {
    return root.Member("chunk_bytes")
        .Error(absl::StrCat("is ", file.chunk_bytes(), ", must be 0 or from ", kLeastChunkBytes,
                            " to ", kMaxChunkBytes));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
