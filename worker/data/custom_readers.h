// Readers of data that a program adds to those that job files can name.

#ifndef SYNCGRADS_WORKER_DATA_CUSTOM_READERS_H_
#define SYNCGRADS_WORKER_DATA_CUSTOM_READERS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/table.h"
#include "worker/data/table_reader.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// What a job file says of a source.
struct CustomReaderOptions {
  std::map<std::string, std::string> settings;
  // Which columns are wanted, where columns have names. With a target_kind of kNone rows
  // need no targets.
  TableColumns columns;
  // Where the paths in `settings` are; readers that read images later keep it.
  std::shared_ptr<const Storage> storage;
};

// A whole table, of which each worker then gets its shards. Its errors should name file
// and place. Called by several threads where several workers are in a process.
using CustomReader = std::function<absl::StatusOr<Table>(const CustomReaderOptions& options)>;

// Not thread-safe while readers are added.
class CustomReaders {
 public:
  // Job files can then say `data { custom { kind: "KIND" } }`. A kind is added once; the
  // first one stays.
  void Add(const std::string& kind, CustomReader reader);

  // Errors:
  //   InvalidArgument  there is no such kind, naming those there are; or what was read is
  //                    no table: so many names, rows, targets and weights do not fit
  //   others           as the reader
  absl::StatusOr<Table> Read(const std::string& kind, const CustomReaderOptions& options) const;

 private:
  std::map<std::string, CustomReader> readers_;
};

// Those of a program that adds none.
const CustomReaders& NoCustomReaders();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_CUSTOM_READERS_H_
