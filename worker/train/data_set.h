// A worker's rows, ready for a model.

#ifndef SYNCGRADS_WORKER_TRAIN_DATA_SET_H_
#define SYNCGRADS_WORKER_TRAIN_DATA_SET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/image_source.h"
#include "worker/data/loader.h"
#include "worker/data/served_rows.h"
#include "worker/data/shards.h"
#include "worker/job/job_file.h"
#include "worker/nn/matrix.h"
#include "worker/nn/shape.h"
#include "worker/train/classes.h"
#include "worker/train/team.h"

namespace syncgrads {

// What is made of an image's numbers: x becomes x * factor + addend, of its channel.
struct PixelScale {
  // By channel.
  std::vector<double> factor;
  std::vector<double> addend;

  // Sets as many numbers at `to` to pixels as ImageSource::Read gives them, as the model
  // takes them.
  template <typename T>
  void Apply(absl::Span<const float> pixels, T* to) const;
};

// A worker's shards; targets of classes are class numbers.
struct DataSet {
  WorkerData data;
  std::vector<std::string> features;
  // What a row looks like to the model.
  Shape shape;
  // Of images.
  PixelScale scale;
  // With the cross-entropies.
  std::optional<Classes> classes;
  // Where the features are, if another process has read them.
  std::shared_ptr<ServedRows> served;
};

struct DataSetOptions {
  // Whether targets are read; prediction does without.
  bool with_targets = true;
  // The classes of the model that is to be evaluated; without them they are found
  // in the data of all workers.
  std::optional<Classes> classes;
};

// What the job's loss needs its target to be.
TargetKind TargetKindOf(const v1::LossSpec& loss);

// How many classes the job's model tells apart; 0 where targets are numbers.
uint32_t ClassCount(const v1::JobFile& job);

// The rows that `request` says, read or asked for; classes have no numbers yet. Errors:
// as LoadDataSet, but for the team's.
absl::StatusOr<DataSet> LoadRows(const Job& job, const ServedDataRequest& request);

// Loads this worker's shards, and agrees with the others on features and classes.
// A collective; a worker that cannot read its data does not take part in it.
//
// Errors:
//   InvalidArgument  shards with different features (names both); an image whose
//                    size is not the number of features (with both); or as
//                    Classes::Find
//   others           as LoadShards, or as the team
absl::StatusOr<DataSet> LoadDataSet(const Job& job, const DataSetOptions& options, Team& team);

// Loads all shards, as every worker of an elastic job does, who may have to take
// anybody's place. `owners`: how many workers the rows are cut for, if the job or
// the source does not say. Errors as LoadDataSet.
absl::StatusOr<DataSet> LoadWholeDataSet(const Job& job, uint32_t owners);

// The least and the greatest value of each number that FillRow makes, over the
// training rows of all workers. A collective.
struct Ranges {
  std::vector<double> minimum;
  std::vector<double> maximum;
};
// FailedPrecondition if no worker has a training row.
absl::StatusOr<Ranges> FindRanges(const DataSet& data, uint32_t holdout_every, Team& team);

// Sets the shape.size() numbers at `to` to the row's, as the model takes them. Of rows
// that this process has read. Errors: as ImageSource::Read.
template <typename T>
absl::Status FillRow(const DataSet& data, const RowId& row, const ImageUse& use, T* to);

// Images that could not be read. Not thread-safe.
class DamagedImages {
 public:
  // `message` names the image.
  void Add(absl::string_view message);

  uint64_t count() const { return count_; }
  // Of the first so many; each once.
  const std::set<std::string>& messages() const { return messages_; }

 private:
  uint64_t count_ = 0;
  std::set<std::string> messages_;
};

// Rows that are filled at a time, where it is not a step that says how many.
inline constexpr size_t kRowsAtATime = 256;

// Sets `features` to a row for each of `rows`, and `targets` to their targets if
// the data has them. Images that cannot be read are left out, with their targets,
// and added to `damaged`; if that is null, the first is the error.
//
// Errors: as FillRow, or as ServedRows.
template <typename T>
absl::Status FillBatch(const DataSet& data, absl::Span<const RowId> rows, const ImageUse& use,
                       Matrix<T>& features, std::vector<double>& targets, DamagedImages* damaged);

// The same, of what has been served.
template <typename T>
absl::Status FillServed(const DataSet& data, absl::Span<const RowId> rows, const ServedBatch& batch,
                        Matrix<T>& features, std::vector<double>& targets, DamagedImages* damaged);

// Whether an error of FillRow is the image's own.
bool IsDamagedImage(const absl::Status& status);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_DATA_SET_H_
