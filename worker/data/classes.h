// The names and numbers of a job's classes.

#ifndef SYNCGRADS_WORKER_DATA_CLASSES_H_
#define SYNCGRADS_WORKER_DATA_CLASSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/readers/table.h"

namespace syncgrads {

// Maps class names to class numbers. Immutable, so thread-safe.
class Classes {
 public:
  // `found` has the values of the target column in all shards of the job; duplicates are
  // allowed. If every value is a whole number from 0 on, it is the class number.
  // Otherwise the names are numbered in byte order.
  //
  // Errors: InvalidArgument, which names the place, if a class's number is not below
  // `outputs`.
  static absl::StatusOr<Classes> Find(absl::Span<const ClassName> found, uint32_t outputs);

  // Creates the classes that have these names, in the order of their numbers; see
  // names().
  static Classes Named(std::vector<std::string> names) { return Classes(std::move(names)); }

  // The names by number. Empty if the target column has the numbers themselves.
  const std::vector<std::string>& names() const { return names_; }

  // Returns the name, "Iris-setosa", or else the number as text, "0".
  std::string NameOf(uint32_t number) const;

  // Returns the class's number. Errors: InvalidArgument, which names the place, if the
  // class is unknown or its number is not below `outputs`.
  absl::StatusOr<uint32_t> NumberOf(const ClassName& found, uint32_t outputs) const;

 private:
  explicit Classes(std::vector<std::string> names) : names_(std::move(names)) {}

  std::vector<std::string> names_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_CLASSES_H_
