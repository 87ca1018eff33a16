// Opens damaged state files of a group. An input is a list of changes to the bytes of the group's
// file and of a further slot's file. If the files are accepted, every round in them is one that was
// published, with its values.

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "server/state/slot_record.h"
#include "server/state/state_file.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/scratch.h"
#include "tests/server/state/example_state.h"

namespace syncgrads::fuzz {
namespace {

using server::RoundRecord;
using server::StateFile;
using server::StateLayout;
using server::StoredSlot;

constexpr const char* kNames[] = {"group-3", "group-3.further/0.0"};
constexpr size_t kChunks = 2;

void PublishRound(const StateLayout& layout, size_t position, uint64_t round, server::Slot& slot) {
  server::MakeVacant(slot);
  server::Fill(slot, round);
  server::Publish(server::ExampleRecord(layout, position, round), slot);
}

// The bytes of the two files. Chunk 0 has the rounds 2, 3 and 4, the last of them in the further
// slot; chunk 1 has the rounds 2 and 3.
std::vector<std::string> IntactFiles() {
  const ScratchDirectory scratch;
  const StateLayout layout = server::ExampleLayout();
  const auto file = StateFile::Create(scratch.PathOf(kNames[0]), layout, 1 << 20);
  Require(file.ok(), "a state file is created");
  for (size_t position = 0; position < kChunks; ++position) {
    uint64_t round = 2;
    for (StoredSlot& stored : (*file)->SlotsOf(position)) {
      PublishRound(layout, position, round++, *stored.slot);
    }
  }
  const auto further = (*file)->Another(0, 200, 6);
  Require(further.ok(), "a further slot is created");
  PublishRound(layout, 0, 4, **further);
  std::vector<std::string> files = {scratch.Read(kNames[0]), scratch.Read(kNames[1])};
  Require(!files[0].empty() && !files[1].empty(), "there are both files");
  return files;
}

void RequirePublished(const StateLayout& layout, size_t position, const StoredSlot& stored) {
  if (!stored.published.has_value()) return;
  const RoundRecord& record = *stored.published;
  const uint64_t round = ToNumber(record.round);
  Require(round >= 2 && round <= 4, "the round was published");
  Require(record == server::ExampleRecord(layout, position, round),
          "a record is read as it was published");
  for (size_t i = 0; i < record.value_bytes; ++i) {
    Require(stored.slot->values.data()[i] == static_cast<std::byte>(round),
            "the values are those of the round");
  }
}

// A change of `length` bytes to `value`, in file `file` at `offset`.
std::string Change(uint8_t file, uint16_t offset, uint8_t length, uint8_t value) {
  return Encoded(file, 1) + Encoded(offset, 2) + Encoded(length, 1) + Encoded(value, 1);
}

}  // namespace

void Fuzz(absl::string_view input) {
  static const std::vector<std::string> intact = IntactFiles();
  static const ScratchDirectory scratch;
  std::filesystem::create_directory(scratch.PathOf("group-3.further"));
  std::vector<std::string> files = intact;
  Choices choices(input);
  while (!choices.empty()) {
    const uint8_t kind = choices.Byte();
    std::string& file = files[kind % 2];
    const size_t at = choices.Number(2) % (file.size() + 1);
    const size_t length = choices.Byte();
    const char value = static_cast<char>(choices.Byte());
    if (kind / 2 % 16 == 1) {
      file.resize(at);
    } else {
      for (size_t i = at; i < file.size() && i < at + length; ++i) file[i] = value;
    }
  }
  for (size_t i = 0; i < files.size(); ++i) scratch.Write(kNames[i], files[i]);
  const StateLayout layout = server::ExampleLayout();
  const auto opened = StateFile::Open(scratch.PathOf(kNames[0]), layout);
  RequireExplained(opened.status());
  Require(opened.ok() || files != intact, "files that are not damaged are opened");
  if (!opened.ok()) return;
  for (size_t position = 0; position < kChunks; ++position) {
    for (const StoredSlot& stored : (*opened)->SlotsOf(position)) {
      RequirePublished(layout, position, stored);
    }
  }
}

std::vector<std::string> Seeds() {
  return {
      "",
      Change(0, 0, 8, 0),        // the magic number of the group's file
      Change(1, 0, 8, 0),        // the magic number of the further slot's file: it is incomplete
      Change(1, 56, 16, 0xff),   // the sizes of the further slot
      Change(0, 128, 16, 0),     // the newest rounds
      Change(0, 192, 8, 0),      // the state of the first record
      Change(0, 256, 24, 0xff),  // the lengths of its lists
      Change(2, 64, 0, 0),       // the group's file is cut
      Change(3, 100, 0, 0),      // the further slot's file is cut
      Change(0, 4096, 4, 7),     // values
  };
}

}  // namespace syncgrads::fuzz
