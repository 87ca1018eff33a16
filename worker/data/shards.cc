#include "worker/data/shards.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "worker/base/random.h"
#include "worker/data/images/augmented_images.h"
#include "worker/data/readers/cifar10_reader.h"
#include "worker/data/readers/generated.h"
#include "worker/data/readers/idx_reader.h"
#include "worker/data/readers/imagenet_reader.h"
#include "worker/data/readers/numpy_reader.h"
#include "worker/data/readers/table_reader.h"

namespace syncgrads {
namespace {

// The seed and the stream of the permutation that precedes the cut into shards. The job's seed is
// not used: a model is evaluated on the rows that were held out, whatever seed the evaluation has.
constexpr uint64_t kPartitionSeed = 1;
constexpr uint64_t kPartitionStream = 7;

// `what` is the text before the number of shards in the error: "data.shards is".
absl::Status CheckEnoughShards(uint32_t shards, uint32_t world_size, absl::string_view what) {
  if (world_size <= shards) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the job has ", world_size, " workers, but ", what,
                                                 " ", shards,
                                                 ": each worker needs at least one shard"));
}

char DelimiterOf(const v1::TableSource& table, absl::string_view file) {
  if (!table.delimiter().empty()) return table.delimiter()[0];
  return absl::EndsWith(absl::StripSuffix(file, ".gz"), ".tsv") ? '\t' : ',';
}

// Returns the number of directories shard0, shard1, ... in `directory`.
absl::StatusOr<uint32_t> CountShardDirectories(const Storage& storage,
                                               const std::string& directory) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             storage.ListDirectories(directory));
  const std::string path = storage.NameOf(directory);
  std::vector<uint32_t> numbers;
  for (const std::string& name : names) {
    absl::string_view digits = name;
    uint32_t number;
    if (absl::ConsumePrefix(&digits, "shard") && absl::SimpleAtoi(digits, &number) &&
        name == absl::StrCat("shard", number)) {
      numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  for (uint32_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != i) {
      return absl::NotFoundError(absl::StrCat(path, " has shard", numbers[i], " but no shard", i));
    }
  }
  return numbers.size();
}

// Cuts a table of `rows` rows into shards. `read` returns the given rows.
template <typename Read>
absl::StatusOr<WorkerData> CutRows(const v1::DataSpec& spec, size_t rows,
                                   const ShardRequest& request, Read read) {
  WorkerData data;
  data.total_shards = spec.shards() > 0 ? spec.shards() : request.world_size;
  if (data.total_shards > kMostShards) {
    return absl::InvalidArgumentError(absl::StrCat("the data is to be cut into ", data.total_shards,
                                                   " shards, must be at most ", kMostShards));
  }
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnoughShards(data.total_shards, request.world_size, "data.shards is"));
  const std::vector<uint32_t> own = ShardsOf(data.total_shards, request.rank, request.world_size);
  const std::vector<std::vector<size_t>> parts = SplitRows(rows, data.total_shards, own, spec);
  for (size_t i = 0; i < own.size(); ++i) {
    SYNCGRADS_ASSIGN_OR_RETURN(Table table, read(parts[i]));
    data.shards.push_back({own[i], std::move(table)});
  }
  return data;
}

absl::StatusOr<WorkerData> CutTable(const v1::DataSpec& spec, const Table& table,
                                    const ShardRequest& request) {
  return CutRows(
      spec, table.rows, request,
      [&](absl::Span<const size_t> rows) -> absl::StatusOr<Table> { return table.Select(rows); });
}

// Returns the joined tables of a source, the master first.
std::vector<TableFile> TablesIn(const std::string& directory, const v1::TableSource& source) {
  std::vector<TableFile> files;
  for (const v1::JoinedTable& table : source.tables()) {
    const TableFile file = {absl::StrCat(directory, "/", table.file()),
                            DelimiterOf(source, table.file()),
                            table.id().empty() ? "ID" : table.id()};
    const bool is_master = table.file() == source.master_table();
    files.insert(is_master ? files.begin() : files.end(), file);
  }
  return files;
}

// Reads the table in a directory, which may be a shard directory.
absl::StatusOr<Table> ReadDirectory(const Storage& storage, const std::string& directory,
                                    const v1::TableSource& source, const TableColumns& columns) {
  if (source.tables_size() > 0) {
    return ReadJoinedTable(storage, TablesIn(directory, source), columns);
  }
  return ReadTable(storage, absl::StrCat(directory, "/", source.file()),
                   DelimiterOf(source, source.file()), columns);
}

absl::StatusOr<WorkerData> LoadFile(const v1::DataSpec& spec, const Storage& storage,
                                    const TableColumns& columns, const ShardRequest& request) {
  const std::string& path = spec.table().path();
  const bool joined = spec.table().tables_size() > 0;
  if (joined || !spec.table().file().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        joined ? "data.table.tables are given" : "data.table.file is \"", spec.table().file(),
        joined ? "" : "\"", ", but ", storage.NameOf(path), " is not a directory"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const Table table,
                             ReadTable(storage, path, DelimiterOf(spec.table(), path), columns));
  return CutTable(spec, table, request);
}

// Reads the table of a source that is neither text nor generated.
absl::StatusOr<Table> ReadBinary(const v1::DataSpec& spec,
                                 const std::shared_ptr<const Storage>& storage,
                                 TargetKind target_kind) {
  if (spec.has_idx()) {
    return ReadIdx(*storage, spec.idx().images(), spec.idx().labels(), target_kind);
  }
  if (spec.has_numpy()) {
    return ReadNumpy(*storage, spec.numpy().features(), spec.numpy().targets(), target_kind);
  }
  if (spec.has_imagenet()) return ReadImageNet(storage, spec.imagenet(), target_kind);
  return ReadCifar10(*storage, {spec.cifar10().files().begin(), spec.cifar10().files().end()},
                     target_kind);
}

// Lets the table's images change in training as the job file says.
void Augment(const v1::DataSpec& spec, Table& table) {
  v1::Augmentation augmentation = spec.image().augmentation();
  if (!spec.image().has_augmentation()) {
    if (!spec.has_imagenet()) return;
    augmentation.set_mirror(0.5);
  }
  table.images = std::make_shared<AugmentedImages>(std::move(table.images), augmentation);
}

absl::StatusOr<WorkerData> LoadDirectory(const v1::DataSpec& spec, const Storage& storage,
                                         const TableColumns& columns, const ShardRequest& request) {
  const std::string& directory = spec.table().path();
  const std::string path = storage.NameOf(directory);
  const bool joined = spec.table().tables_size() > 0;
  if (!joined && spec.table().file().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a directory, but data.table.file is not given"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t shards, CountShardDirectories(storage, directory));
  if (shards == 0 && joined) {
    SYNCGRADS_ASSIGN_OR_RETURN(const Table table,
                               ReadDirectory(storage, directory, spec.table(), columns));
    return CutTable(spec, table, request);
  }
  if (shards == 0) return absl::NotFoundError(absl::StrCat(path, " has no directory shard0"));
  WorkerData data;
  data.total_shards = shards;
  if (spec.shards() > 0 && spec.shards() != shards) {
    return absl::InvalidArgumentError(absl::StrCat("data.shards is ", spec.shards(), ", but ", path,
                                                   " has ", shards, " shard directories"));
  }
  SYNCGRADS_RETURN_IF_ERROR(
      CheckEnoughShards(shards, request.world_size,
                        absl::StrCat("the number of shard directories in ", path, " is")));
  for (const uint32_t number : ShardsOf(shards, request.rank, request.world_size)) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        Table table,
        ReadDirectory(storage, absl::StrCat(directory, "/shard", number), spec.table(), columns));
    data.shards.push_back({number, std::move(table)});
  }
  return data;
}

}  // namespace

std::vector<std::vector<size_t>> SplitRows(size_t rows, uint32_t shards,
                                           absl::Span<const uint32_t> numbers,
                                           const v1::DataSpec& spec) {
  std::vector<size_t> order(rows);
  std::iota(order.begin(), order.end(), size_t{0});
  // With DYNAMIC, rows do not belong to shards.
  if (spec.partition() != v1::DataSpec::CONTIGUOUS && spec.mode() == v1::DataSpec::SHARDS) {
    RandomStream(kPartitionSeed, {kPartitionStream}).Shuffle(order);
  }
  size_t each = rows / shards;
  if (spec.split() == v1::DataSpec::KEEP_REMAINDER && rows % shards != 0) ++each;
  std::vector<std::vector<size_t>> parts;
  for (const size_t number : numbers) {
    const size_t begin = std::min(rows, number * each);
    const size_t end = std::min(rows, begin + each);
    parts.emplace_back(order.begin() + begin, order.begin() + end);
    std::sort(parts.back().begin(), parts.back().end());
  }
  return parts;
}

std::vector<uint32_t> ShardsOf(uint32_t shards, uint32_t rank, uint32_t world_size) {
  std::vector<uint32_t> numbers;
  for (uint64_t number = rank; number < shards; number += world_size) {
    numbers.push_back(static_cast<uint32_t>(number));
  }
  return numbers;
}

absl::StatusOr<bool> HasShardDirectories(const v1::DataSpec& spec, const Storage& storage) {
  if (!spec.has_table()) return false;
  const std::string& path = spec.table().path();
  SYNCGRADS_ASSIGN_OR_RETURN(const bool is_directory, storage.IsDirectory(path));
  if (!is_directory) return false;
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t shards, CountShardDirectories(storage, path));
  return shards > 0;
}

absl::StatusOr<WorkerData> LoadShards(const v1::DataSpec& spec,
                                      const std::shared_ptr<const Storage>& storage,
                                      const ShardRequest& request, const CustomReaders& readers) {
  const TableColumns columns = {{spec.features().begin(), spec.features().end()},
                                spec.target(),
                                request.target_kind,
                                spec.weight_column(),
                                {spec.more_targets().begin(), spec.more_targets().end()}};
  if (spec.has_generated()) {
    return CutRows(spec, spec.generated().rows(), request, [&](absl::Span<const size_t> rows) {
      return GeneratePoints(spec.generated().seed(), rows, columns);
    });
  }
  if (spec.has_custom()) {
    const CustomReaderOptions options = {
        {spec.custom().settings().begin(), spec.custom().settings().end()}, columns, storage};
    SYNCGRADS_ASSIGN_OR_RETURN(const Table table, readers.Read(spec.custom().kind(), options));
    return CutTable(spec, table, request);
  }
  if (!spec.has_table()) {
    SYNCGRADS_ASSIGN_OR_RETURN(Table table, ReadBinary(spec, storage, request.target_kind));
    Augment(spec, table);
    return CutTable(spec, table, request);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const bool is_directory, storage->IsDirectory(spec.table().path()));
  if (is_directory) return LoadDirectory(spec, *storage, columns, request);
  return LoadFile(spec, *storage, columns, request);
}

}  // namespace syncgrads
