// Data readers that a program registers in addition to the built-in sources of job files.

#ifndef SYNCGRADS_WORKER_DATA_READERS_CUSTOM_READERS_H_
#define SYNCGRADS_WORKER_DATA_READERS_CUSTOM_READERS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/readers/batch_stream.h"
#include "worker/data/readers/table.h"
#include "worker/data/readers/table_reader.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// The options of a custom source in a job file.
struct CustomReaderOptions {
  std::map<std::string, std::string> settings;
  // Which columns to read, if columns have names. If target_kind is kNone, rows need no targets.
  TableColumns columns;
  // The storage of the paths in `settings`. A reader that returns images must keep a reference for
  // them.
  std::shared_ptr<const Storage> storage;
};

// Reads a whole table, from which each worker takes its shards. Errors should name the file and
// the place in it. Must be thread-safe: the workers of a process call it in parallel.
using CustomReader = std::function<absl::StatusOr<Table>(const CustomReaderOptions& options)>;

// The registered readers. All readers must be added before several threads use the object; after
// that it is thread-safe.
class CustomReaders {
 public:
  // Registers a reader, which job files then select with `data { custom { kind: "KIND" } }`. If
  // `kind` is registered already, the call does nothing.
  void Add(const std::string& kind, CustomReader reader);

  // Registers a stream, which job files then select with
  // `data { custom { kind: "KIND" stream_features: N } }`. If a stream `kind` is registered
  // already, the call does nothing.
  void AddStream(const std::string& kind, BatchStreamMaker maker);

  // Opens a stream of that kind. Errors: InvalidArgument if `kind` is not registered (names the
  // registered kinds); those of the maker.
  absl::StatusOr<std::unique_ptr<BatchStream>> OpenStream(const std::string& kind,
                                                          const BatchStreamOptions& options) const;

  // Reads a table with the reader of that kind.
  //
  // Errors:
  //   InvalidArgument  `kind` is not registered (names the registered kinds), or the table is
  //                    inconsistent: its numbers of features, targets, weights and rows do not
  //                    match, its targets are of another kind than requested, or a target is no
  //                    class of the table
  //   others           those of the reader
  absl::StatusOr<Table> Read(const std::string& kind, const CustomReaderOptions& options) const;

 private:
  std::map<std::string, CustomReader> readers_;
  std::map<std::string, BatchStreamMaker> streams_;
};

// An empty registry, for programs without custom readers.
const CustomReaders& NoCustomReaders();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_READERS_CUSTOM_READERS_H_
