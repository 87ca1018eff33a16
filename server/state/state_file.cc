#include "server/state/state_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/planted_bug.h"
#include "common/status_macros.h"
#include "server/state/checksum.h"
#include "server/state/mapped_file.h"

// The layout of a file, in the machine's own byte order:
//
//   Header                      followed by FurtherRoom in a further slot's file
//   u64 newest[chunks]          the newest-round words; see slot_record.h
//   records                     of all chunks in set 0, then in set 1
//   values, optimizer's arrays, residual
//                               of all chunks in set 0, then in set 1
//
// Records and arrays begin at multiples of 64 bytes, and the first array at a multiple of the
// page size. A further slot's file has the same layout with one chunk and one set; its
// newest-round word is not used.

namespace syncgrads::server {
namespace {

constexpr uint64_t kMagic = 0x3374616473637953;  // "Sycsdat3"

struct Header {
  uint64_t magic;
  uint64_t file_bytes;
  uint64_t sequence;
  uint64_t generation;
  uint64_t group;
  // The checksum of the layout's sizes, which determine all offsets in the file.
  uint64_t layout;
  uint64_t checksum;  // of all fields before it
};

constexpr size_t kHeaderBytes = 128;
constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t ArrayBytes(const StateLayout::Chunk& chunk) {
  return RoundUp(chunk.value_bytes, AlignedBuffer::kAlignment);
}

uint64_t LayoutChecksum(const StateLayout& layout, size_t sets) {
  std::vector<uint64_t> numbers = {sets, layout.optimizer_slots, layout.contributors};
  for (const StateLayout::Chunk& chunk : layout.chunks) {
    numbers.insert(numbers.end(),
                   {ToNumber(chunk.id), chunk.value_bytes, chunk.spans, chunk.residual_bytes});
  }
  return Checksum(numbers.data(), numbers.size() * sizeof(numbers[0]));
}

// The offsets of all parts of a file.
struct FileMap {
  FileMap(const StateLayout& layout, size_t sets) {
    size_t at = kHeaderBytes;
    newest_at = at;
    at = RoundUp(at + 8 * layout.chunks.size(), 64);
    for (size_t set = 0; set < sets; ++set) {
      for (const StateLayout::Chunk& chunk : layout.chunks) {
        records.push_back(at);
        at += RecordBytes(chunk.spans, layout.contributors);
      }
    }
    at = RoundUp(at, kPage);
    for (size_t set = 0; set < sets; ++set) {
      for (const StateLayout::Chunk& chunk : layout.chunks) {
        arrays.push_back(at);
        at += (1 + layout.optimizer_slots) * ArrayBytes(chunk);
        at += RoundUp(chunk.residual_bytes, AlignedBuffer::kAlignment);
      }
    }
    bytes = at;
  }

  size_t newest_at;
  // Offsets, by set and then by chunk.
  std::vector<size_t> records;
  std::vector<size_t> arrays;
  size_t bytes;
};

Header HeaderOf(const StateLayout& layout, size_t sets, size_t bytes) {
  Header header = {kMagic,
                   bytes,
                   layout.sequence,
                   ToNumber(layout.generation),
                   ToNumber(layout.group),
                   LayoutChecksum(layout, sets),
                   0};
  header.checksum = Checksum(&header, offsetof(Header, checksum));
  return header;
}

// Describes the first field in which two headers differ, with both values; empty if they are
// equal.
std::string Difference(const Header& found, const Header& wanted) {
  const std::pair<const char*, uint64_t Header::*> fields[] = {
      {"magic", &Header::magic},
      {"size", &Header::file_bytes},
      {"sequence", &Header::sequence},
      {"generation", &Header::generation},
      {"group", &Header::group},
      {"layout", &Header::layout},
      {"header's checksum", &Header::checksum}};
  for (const auto& [name, field] : fields) {
    if (found.*field == wanted.*field) continue;
    return absl::StrCat("its ", name, " is ", absl::Hex(found.*field), ", expected ",
                        absl::Hex(wanted.*field));
  }
  return "";
}

absl::Status CheckHeader(const std::string& path, const MappedFile& region,
                         const StateLayout& layout, size_t sets, size_t bytes) {
  if (region.size() != bytes) {
    return absl::DataLossError(
        absl::StrCat("state file ", path, " has ", region.size(), " bytes, expected ", bytes));
  }
  Header found;
  std::memcpy(&found, region.data(), sizeof(found));
  const std::string difference = Difference(found, HeaderOf(layout, sets, bytes));
  if (difference.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("state file ", path, ": ", difference));
}

// Returns the slot of the chunk at `position` in `set`, whose arrays and record point into
// `region`. If there is an optimizer, `updates` has one entry for each span.
StoredSlot SlotAt(const MappedFile& region, const FileMap& map, const StateLayout& layout,
                  size_t set, size_t position) {
  const StateLayout::Chunk& chunk = layout.chunks[position];
  const size_t index = set * layout.chunks.size() + position;
  auto slot = std::make_unique<Slot>();
  std::byte* array = region.data() + map.arrays[index];
  slot->values = AlignedBuffer::Borrow(array, chunk.value_bytes);
  for (size_t i = 0; i < layout.optimizer_slots; ++i) {
    array += ArrayBytes(chunk);
    slot->optimizer.push_back(AlignedBuffer::Borrow(array, chunk.value_bytes));
  }
  if (chunk.residual_bytes > 0) {
    slot->residual = AlignedBuffer::Borrow(array + ArrayBytes(chunk), chunk.residual_bytes);
  }
  if (layout.optimizer_slots > 0) slot->updates.resize(chunk.spans);
  slot->record = {region.data() + map.records[index],
                  RecordBytes(chunk.spans, layout.contributors)};
  slot->contributors = layout.contributors;
  slot->newest = reinterpret_cast<uint64_t*>(region.data() + map.newest_at) + position;
  return {std::move(slot), std::nullopt};
}

std::string FurtherPath(const std::string& path) { return path + ".further"; }

// The sizes of a further slot, stored in its file: they may exceed those of the group's layout.
struct FurtherRoom {
  uint64_t value_bytes;
  uint64_t contributors;
};

StateLayout OneChunk(const StateLayout& layout, size_t position, const FurtherRoom& room) {
  StateLayout one = layout;
  one.chunks = {layout.chunks[position]};
  one.chunks[0].value_bytes = room.value_bytes;
  one.contributors = room.contributors;
  return one;
}

}  // namespace

StateFile::StateFile(std::string path, StateLayout layout)
    : path_(std::move(path)),
      layout_(std::move(layout)),
      slots_(layout_.chunks.size()),
      further_(layout_.chunks.size()) {}

uint64_t StateFile::BytesFor(const StateLayout& layout) { return FileMap(layout, kSets).bytes; }

absl::StatusOr<std::shared_ptr<StateFile>> StateFile::Create(const std::string& path,
                                                             const StateLayout& layout,
                                                             uint64_t room,
                                                             const AllocationProgress& progress) {
  Remove(path);  // left by a server that died before it stored the change
  std::shared_ptr<StateFile> file(new StateFile(path, layout));
  SYNCGRADS_RETURN_IF_ERROR(file->CreateFile(room, progress));
  return file;
}

void StateFile::AddSlotsLocked() {
  const FileMap map(layout_, kSets);
  for (size_t position = 0; position < layout_.chunks.size(); ++position) {
    for (size_t set = 0; set < kSets; ++set) {
      StoredSlot stored = SlotAt(*region_, map, layout_, set, position);
      stored.slot->arena_offset = stored.slot->values.data() - region_->data();
      slots_[position].push_back(std::move(stored));
    }
  }
}

absl::Status StateFile::CreateFile(uint64_t room, const AllocationProgress& progress) {
  const FileMap map(layout_, kSets);
  SYNCGRADS_ASSIGN_OR_RETURN(region_, MappedFile::Create(path_, map.bytes, room, progress));
  const Header header = HeaderOf(layout_, kSets, map.bytes);
  std::memcpy(region_->data(), &header, sizeof(header));
  MutexLock lock(mutex_);
  AddSlotsLocked();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<StateFile>> StateFile::Open(const std::string& path,
                                                           const StateLayout& layout) {
  std::shared_ptr<StateFile> file(new StateFile(path, layout));
  SYNCGRADS_RETURN_IF_ERROR(file->OpenFiles());
  return file;
}

absl::Status StateFile::OpenFiles() {
  const FileMap map(layout_, kSets);
  SYNCGRADS_ASSIGN_OR_RETURN(region_, MappedFile::Open(path_));
  SYNCGRADS_RETURN_IF_ERROR(CheckHeader(path_, *region_, layout_, kSets, map.bytes));
  MutexLock lock(mutex_);
  AddSlotsLocked();
  std::error_code error;
  const std::filesystem::directory_iterator further(FurtherPath(path_), error);
  if (error && error != std::errc::no_such_file_or_directory) {
    return absl::UnavailableError(
        absl::StrCat(FurtherPath(path_), " cannot be read: ", error.message()));
  }
  for (const auto& entry : further) {
    const std::vector<std::string> numbers = absl::StrSplit(entry.path().filename().string(), '.');
    size_t position, number;
    if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &position) ||
        !absl::SimpleAtoi(numbers[1], &number) || position >= layout_.chunks.size()) {
      return absl::DataLossError(
          absl::StrCat("state file ", entry.path().string(), " does not belong to any chunk"));
    }
    SYNCGRADS_RETURN_IF_ERROR(OpenFurther(entry.path().string(), position));
    further_[position] = std::max(further_[position], number + 1);
  }
  for (size_t position = 0; position < layout_.chunks.size(); ++position) {
    SYNCGRADS_RETURN_IF_ERROR(Verify(position));
  }
  return absl::OkStatus();
}

absl::Status StateFile::OpenFurther(const std::string& path, size_t position) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> region, MappedFile::Open(path));
  Header header = {};
  if (region->size() >= kHeaderBytes) std::memcpy(&header, region->data(), sizeof(header));
  // The server died while it created the file: no round can be published in it.
  if (header.magic == 0) {
    unlink(path.c_str());
    return absl::OkStatus();
  }
  FurtherRoom room;
  std::memcpy(&room, region->data() + sizeof(Header), sizeof(room));
  if (room.value_bytes > region->size() || room.contributors > region->size()) {
    return absl::DataLossError(absl::StrCat("state file ", path, " of ", region->size(),
                                            " bytes has a header for ", room.value_bytes,
                                            " bytes of ", room.contributors, " contributors"));
  }
  const StateLayout one = OneChunk(layout_, position, room);
  const FileMap map(one, 1);
  SYNCGRADS_RETURN_IF_ERROR(CheckHeader(path, *region, one, 1, map.bytes));
  StoredSlot stored = SlotAt(*region, map, one, 0, 0);
  stored.slot->newest =
      reinterpret_cast<uint64_t*>(region_->data() + FileMap(layout_, kSets).newest_at) + position;
  stored.slot->file = std::move(region);
  slots_[position].push_back(std::move(stored));
  return absl::OkStatus();
}

absl::Status StateFile::Verify(size_t position) {
  const std::string where =
      absl::StrCat("state file ", path_, ", chunk ", ToNumber(layout_.chunks[position].id), ": ");
  std::optional<Round> newest;
  for (StoredSlot& stored : slots_[position]) {
    absl::StatusOr<std::optional<RoundRecord>> published = ReadPublished(*stored.slot);
    if (!published.ok()) {
      if (IsPlanted(PlantedBug::kOlderSlotAfterBadChecksum)) continue;
      return absl::DataLossError(absl::StrCat(where, published.status().message()));
    }
    if (!published->has_value()) continue;
    const RoundRecord& record = **published;
    if (record.generation != layout_.generation || record.group != layout_.group ||
        record.chunk != layout_.chunks[position].id) {
      return absl::DataLossError(absl::StrCat(where, "has round ", ToNumber(record.round),
                                              " of generation ", ToNumber(record.generation),
                                              ", group ", ToNumber(record.group), ", chunk ",
                                              ToNumber(record.chunk)));
    }
    newest = std::max(newest, std::optional<Round>(record.round));
    stored.published = *std::move(published);
  }
  const absl::StatusOr<std::optional<Round>> stored =
      NewestPublished(*slots_[position].front().slot->newest);
  if (!stored.ok()) return absl::DataLossError(absl::StrCat(where, stored.status().message()));
  // The word is stored after the record. If the server died between the two, the record is newer
  // than the word.
  if (newest >= *stored || IsPlanted(PlantedBug::kOlderSlotAfterBadChecksum))
    return absl::OkStatus();
  const auto name = [](const std::optional<Round>& round) {
    return round.has_value() ? absl::StrCat("round ", ToNumber(*round)) : std::string("no round");
  };
  return absl::DataLossError(absl::StrCat(where, name(newest),
                                          " is the newest round in the file, but ", name(*stored),
                                          " was published"));
}

void StateFile::Remove(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  std::filesystem::remove_all(FurtherPath(path), ignored);
}

std::vector<StoredSlot> StateFile::SlotsOf(size_t position) {
  MutexLock lock(mutex_);
  return std::move(slots_[position]);
}

absl::StatusOr<std::unique_ptr<Slot>> StateFile::Another(size_t position, size_t value_bytes,
                                                         size_t contributors) {
  MutexLock lock(mutex_);
  const FurtherRoom room = {std::max(value_bytes, layout_.chunks[position].value_bytes),
                            std::max(contributors, layout_.contributors)};
  const StateLayout one = OneChunk(layout_, position, room);
  const FileMap map(one, 1);
  const std::string directory = FurtherPath(path_);
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    const int error = errno;
    const std::string text = absl::StrCat(directory, " cannot be created: ", std::strerror(error));
    return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(text)
                                              : absl::UnavailableError(text);
  }
  const std::string path = absl::StrCat(directory, "/", position, ".", further_[position]);
  SYNCGRADS_ASSIGN_OR_RETURN(
      std::shared_ptr<const MappedFile> region,
      MappedFile::Create(path, map.bytes,
                         RoomIn(std::filesystem::path(path_).parent_path().string())));
  ++further_[position];
  std::memcpy(region->data() + sizeof(Header), &room, sizeof(room));
  const Header header = HeaderOf(one, 1, map.bytes);
  std::memcpy(region->data() + sizeof(kMagic), &header.file_bytes, sizeof(header) - sizeof(kMagic));
  // The magic number is stored last: without it, OpenFurther takes the file for incomplete.
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(region->data()))
      .store(kMagic, std::memory_order_release);
  StoredSlot stored = SlotAt(*region, map, one, 0, 0);
  stored.slot->newest =
      reinterpret_cast<uint64_t*>(region_->data() + FileMap(layout_, kSets).newest_at) + position;
  stored.slot->file = std::move(region);
  return std::move(stored.slot);
}

absl::StatusOr<FileDescriptor> StateFile::ReadOnlyDescriptor() const {
  return region_->ReadOnlyDescriptor();
}

}  // namespace syncgrads::server
