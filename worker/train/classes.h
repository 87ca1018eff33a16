// What the classes of a job are called, and which number each has.

#ifndef SYNCGRADS_WORKER_TRAIN_CLASSES_H_
#define SYNCGRADS_WORKER_TRAIN_CLASSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/table.h"

namespace syncgrads {

// Immutable.
class Classes {
 public:
  // `found` is what the target column holds, in all shards of the job; repeats are
  // no matter. If every one is a whole number from 0, that is its class; else
  // names are numbered in byte order.
  //
  // InvalidArgument, naming the place, if a class has no number below `outputs`.
  static absl::StatusOr<Classes> Find(absl::Span<const ClassName> found, uint32_t outputs);

  // Classes that have been numbered before, as names() gives them.
  static Classes Named(std::vector<std::string> names) { return Classes(std::move(names)); }

  // By number. Empty if the target column holds the numbers themselves.
  const std::vector<std::string>& names() const { return names_; }

  // "Iris-setosa", or "0".
  std::string NameOf(uint32_t number) const;

  // InvalidArgument, naming the place, if `found` has no number below `outputs`.
  absl::StatusOr<uint32_t> NumberOf(const ClassName& found, uint32_t outputs) const;

 private:
  explicit Classes(std::vector<std::string> names) : names_(std::move(names)) {}

  std::vector<std::string> names_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_CLASSES_H_
