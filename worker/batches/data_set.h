// A worker's rows, in the form that a model needs.

#ifndef SYNCGRADS_WORKER_BATCHES_DATA_SET_H_
#define SYNCGRADS_WORKER_BATCHES_DATA_SET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/data/classes.h"
#include "worker/data/row_source.h"
#include "worker/data/shards.h"
#include "worker/data/stream_buffer.h"
#include "worker/job/job_file.h"
#include "worker/nn/shape.h"
#include "worker/team/team.h"

namespace syncgrads {

// Normalises pixels: x becomes x * factor + addend of its channel.
struct PixelScale {
  // One number for each channel.
  std::vector<double> factor;
  std::vector<double> addend;

  // Writes pixels.size() normalised numbers to `to`, which may be the pixels' own place. `pixels`
  // has the channels of one position next to each other, as ImageSource::Read returns them and as
  // the model needs them.
  template <typename T>
  void Apply(absl::Span<const float> pixels, T* to) const;
};

// The rows of a worker's shards. Targets of classes are class numbers.
struct DataSet {
  WorkerData data;
  // The names of the features.
  std::vector<std::string> features;
  // The shape of one row as the model's input.
  Shape shape;
  // Used for images only.
  PixelScale scale;
  // The names and numbers of the classes; set if the loss has classes.
  std::optional<Classes> classes;
  // Set if another process has read the rows: the features come from there.
  std::shared_ptr<RowSource> served;
  // Set if the rows are those of a stream of batches: the tables have none.
  std::shared_ptr<StreamBuffer> stream;
};

struct DataSetOptions {
  // Whether targets are read. Prediction needs none.
  bool with_targets = true;
  // The classes of a trained model that is evaluated. nullopt: they are found in the data
  // of all workers.
  std::optional<Classes> classes;
  // Not 0: this worker reads all shards, and if neither the job nor the source has a number of
  // shards, it is this one.
  uint32_t owners = 0;
};

// Returns whether the job's loss needs numbers or classes as targets.
TargetKind TargetKindOf(const v1::LossSpec& loss);

// Returns the number of targets of each row.
size_t TargetsPerRow(const v1::DataSpec& data);

// Returns the number of classes of the job's model; 0 if the targets are numbers.
uint32_t ClassCount(const v1::JobFile& job);

// Reads the rows of `request`, or requests them from the process that serves the job's
// data. Classes have no numbers yet. Errors: those of LoadDataSet, except the team's.
absl::StatusOr<DataSet> LoadRows(const Job& job, const ServedDataRequest& request);

// Loads this worker's shards, and agrees with the other workers on features and classes.
// A collective; a worker that cannot read its data does not take part in it.
//
// Errors:
//   InvalidArgument  shards with different features (names both); an image whose size is
//                    not the number of features (names both); or an error of Classes::Find
//   others           the errors of LoadShards, or the team's
absl::StatusOr<DataSet> LoadDataSet(const Job& job, const DataSetOptions& options, Team& team);

// Loads all shards, for jobs in which each worker reads all data: in an elastic job a
// worker may have to replace any other. `owners` is the number of shards to make if
// neither the job nor the source has one. `rank` is this worker's: it selects one of the processes
// in data.served_from. Errors: those of LoadDataSet.
absl::StatusOr<DataSet> LoadWholeDataSet(const Job& job, uint32_t owners, uint32_t rank);

// Whether images that cannot be read are left out (data.imagenet.damaged).
bool SkipsDamaged(const v1::DataSpec& data);

// Collects the errors of images that could not be read, and counts the rows that were read. Not
// thread-safe.
class DamagedImages {
 public:
  // `message` names the image.
  void Add(absl::string_view message);
  void AddRead(uint64_t rows) { read_ += rows; }

  uint64_t read() const { return read_; }
  uint64_t count() const { return count_; }
  // The first distinct messages, at most 20.
  const std::set<std::string>& messages() const { return messages_; }

 private:
  uint64_t read_ = 0;
  uint64_t count_ = 0;
  std::set<std::string> messages_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BATCHES_DATA_SET_H_
