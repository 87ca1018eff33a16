#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/shm/fd_socket.h"
#include "common/shm/handover.h"
#include "common/shm/host.h"
#include "common/shm/region.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

absl::Time Soon() { return MonotonicNow() + absl::Minutes(1); }

// Constant within one test and unique among programs. Process ids are not unique among containers
// that share a network.
std::string Address() {
  static const uint64_t drawn = uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  return absl::StrCat("syncgrads-test-", absl::Hex(drawn), "-",
                      testing::UnitTest::GetInstance()->current_test_info()->name());
}

TEST(SharedRegionTest, APeerSeesWhatIsWritten) {
  auto region = SharedRegion::Create("test", 10'000);
  ASSERT_TRUE(region.ok()) << region.status();
  auto descriptor = (*region)->ReadOnlyDescriptor();
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  auto peer = PeerRegion::Map(*descriptor);
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_EQ((*peer)->bytes().size(), 10'000u);
  std::memcpy((*region)->data() + 9'000, "here", 4);
  EXPECT_EQ(std::memcmp((*peer)->bytes().data() + 9'000, "here", 4), 0);
}

TEST(SharedRegionTest, APeerCannotWriteOrResize) {
  auto region = SharedRegion::Create("test", 4096);
  ASSERT_TRUE(region.ok());
  auto descriptor = (*region)->ReadOnlyDescriptor();
  ASSERT_TRUE(descriptor.ok());
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor->get(), 0),
            MAP_FAILED);
  EXPECT_NE(ftruncate(descriptor->get(), 0), 0);
}

// Before Linux 5.1, nothing forbids later writes.
bool KnowsFutureWriteSeal() {
  const FileDescriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  return fcntl(file.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0;
}

TEST(SharedRegionTest, APeerCannotWriteThroughADescriptorThatItOpensAgain) {
  if (!KnowsFutureWriteSeal()) GTEST_SKIP() << "the kernel has no seal for it";
  auto region = SharedRegion::Create("test", 8192);
  ASSERT_TRUE(region.ok());
  const FileDescriptor own = *(*region)->ReadOnlyDescriptor();
  const FileDescriptor again(
      open(absl::StrCat("/proc/self/fd/", own.get()).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(again.valid());
  EXPECT_NE(pwrite(again.get(), "x", 1, 0), 1);
  EXPECT_EQ(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0), MAP_FAILED);
  EXPECT_NE(fallocate(again.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
}

TEST(SharedRegionTest, ItsOwnerWritesAndFreesNoPages) {
  if (!KnowsFutureWriteSeal()) GTEST_SKIP() << "the kernel has no seal for it";
  auto region = SharedRegion::Create("test", 8192);
  ASSERT_TRUE(region.ok());
  const auto peer = PeerRegion::Map(*(*region)->ReadOnlyDescriptor());
  ASSERT_TRUE(peer.ok()) << peer.status();
  std::memset((*region)->data(), 7, 8192);
  EXPECT_NE(madvise((*region)->data(), 4096, MADV_REMOVE), 0);
  EXPECT_EQ(std::count((*peer)->bytes().begin(), (*peer)->bytes().end(), std::byte{7}), 8192);
}

// Returns how many KiB of a mapping of this process use huge pages, according to the kernel.
int64_t HugeKilobytes(const void* begin) {
  std::ifstream maps("/proc/self/smaps");
  const std::string address = absl::StrCat(absl::Hex(reinterpret_cast<uintptr_t>(begin)), "-");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with(address)) found = true;
    int64_t kilobytes;
    if (found && sscanf(line.c_str(), "ShmemPmdMapped: %" SCNd64, &kilobytes) == 1) {
      return kilobytes;
    }
  }
  return -1;
}

TEST(SharedRegionTest, LargeOnesHaveHugePagesOnBothSides) {
  constexpr size_t kBytes = (size_t{9} << 20) + 12345;
  auto region = SharedRegion::Create("test", kBytes);
  ASSERT_TRUE(region.ok()) << region.status();
  auto peer = PeerRegion::Map(*(*region)->ReadOnlyDescriptor());
  ASSERT_TRUE(peer.ok()) << peer.status();
  std::memset((*region)->data(), 7, kBytes);
  EXPECT_EQ(std::count((*peer)->bytes().begin(), (*peer)->bytes().end(), std::byte{7}),
            static_cast<int64_t>(kBytes));
  const void* const sides[] = {(*region)->data(), (*peer)->bytes().data()};
  for (const void* const side : sides) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(side) % (2 << 20), 0u);
  }
  EXPECT_EQ(HugeKilobytes(sides[0]), HugeKilobytes(sides[1]));
  // The kernel decides how many huge pages there are.
  if (HugeKilobytes(sides[0]) < 8 << 10) GTEST_SKIP() << "the kernel has too few";
  EXPECT_EQ(HugeKilobytes(sides[0]), 8 << 10);
}

TEST(SharedRegionTest, MoreThanThereIsIsRefusedBeforeAnythingIsTaken) {
  ExpectError(SharedRegion::Create("test", size_t{1} << 60), absl::StatusCode::kResourceExhausted,
              {absl::StrCat(size_t{1} << 60), "are available"});
}

TEST(PeerRegionTest, RefusesMemoryThatCouldShrink) {
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  ExpectError(PeerRegion::Map(unsealed), absl::StatusCode::kInvalidArgument, {"seals 0"});
}

TEST(PeerRegionTest, RefusesMemoryWhosePagesCouldBeFreed) {
  if (!KnowsFutureWriteSeal()) GTEST_SKIP() << "the kernel has no seal for it";
  const FileDescriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(posix_fallocate(file.get(), 0, 4096), 0);
  ASSERT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  ExpectError(PeerRegion::Map(file), absl::StatusCode::kInvalidArgument,
              {"has seals 6; it must have 22"});
}

TEST(PeerRegionTest, RefusesMemoryThatIsNotAllocated) {
  const FileDescriptor sparse(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(sparse.get(), 1 << 30), 0);
  ASSERT_EQ(fallocate(sparse.get(), 0, 0, 4096), 0);
  ASSERT_EQ(fcntl(sparse.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  fcntl(sparse.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);  // fails before Linux 5.1
  ExpectError(PeerRegion::Map(sparse), absl::StatusCode::kInvalidArgument,
              {"1073741824 bytes has 4096 bytes allocated"});
}

TEST(PeerRegionTest, RefusesPagesBehindItsEnd) {
  // They would make up for the pages that are not allocated.
  const FileDescriptor sparse(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  constexpr off_t kBytes = 8 << 20;
  ASSERT_EQ(ftruncate(sparse.get(), kBytes), 0);
  ASSERT_EQ(fallocate(sparse.get(), FALLOC_FL_KEEP_SIZE, kBytes, 2 * kBytes), 0);
  ASSERT_EQ(fcntl(sparse.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  fcntl(sparse.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);  // fails before Linux 5.1
  ExpectError(PeerRegion::Map(sparse), absl::StatusCode::kInvalidArgument,
              {"8388608 bytes has 16777216 bytes allocated", "none behind its end"});
}

TEST(PeerRegionTest, TakesWhatItsOwnerHasNotTouched) {
  for (const size_t bytes : {0, 1, 4095, 4097, 5 << 20}) {
    const auto region = SharedRegion::Create("test", bytes);
    ASSERT_TRUE(region.ok()) << region.status();
    const auto peer = PeerRegion::Map(*(*region)->ReadOnlyDescriptor());
    EXPECT_TRUE(peer.ok()) << bytes << " bytes: " << peer.status();
  }
}

TEST(PeerRegionTest, RefusesMoreThanTheLimit) {
  const auto region = SharedRegion::Create("test", 5000);
  ASSERT_TRUE(region.ok()) << region.status();
  const auto descriptor = (*region)->ReadOnlyDescriptor();
  EXPECT_TRUE(PeerRegion::Map(*descriptor, {.bytes = 5000}).ok());
  ExpectError(PeerRegion::Map(*descriptor, {.bytes = 4999}), absl::StatusCode::kResourceExhausted,
              {"5000 bytes", "at most 4999"});
}

TEST(PeerRegionTest, MapsThePagesOfALargeRegionWhenTheyAreRead) {
  constexpr size_t kBytes = 64 << 10;
  const auto region = SharedRegion::Create("test", kBytes);
  ASSERT_TRUE(region.ok()) << region.status();
  const auto mapped_pages = [&](uint64_t mapped_at_once) {
    const auto peer =
        PeerRegion::Map(*(*region)->ReadOnlyDescriptor(), {.mapped_at_once = mapped_at_once});
    EXPECT_TRUE(peer.ok()) << peer.status();
    // Bit 63 of an entry: the page is mapped.
    const FileDescriptor map(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    const auto page_size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const uint64_t first = reinterpret_cast<uintptr_t>((*peer)->bytes().data()) / page_size;
    std::vector<uint64_t> entries(kBytes / page_size);
    const auto wanted = static_cast<ssize_t>(entries.size() * sizeof(uint64_t));
    EXPECT_EQ(pread(map.get(), entries.data(), static_cast<size_t>(wanted),
                    static_cast<off_t>(first * sizeof(uint64_t))),
              wanted);
    return std::count_if(entries.begin(), entries.end(),
                         [](uint64_t entry) { return (entry >> 63) != 0; });
  };
  EXPECT_GT(mapped_pages(kBytes), 0);
  EXPECT_EQ(mapped_pages(kBytes - 1), 0);
}

TEST(PeerRegionTest, RefusesWhatIsNoMemory) {
  const FileDescriptor file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ExpectError(PeerRegion::Map(file), absl::StatusCode::kInvalidArgument,
              {"not memory that can be sealed"});
}

TEST(FdSocketTest, HandsDescriptorsOver) {
  auto listener = FdListener::Listen(Address());
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::thread owner([&] {
    auto socket = listener->Accept(Soon());
    ASSERT_TRUE(socket.ok());
    auto region = SharedRegion::Create("test", 4096);
    std::memcpy((*region)->data(), "shared", 6);
    auto descriptor = (*region)->ReadOnlyDescriptor();
    EXPECT_TRUE(socket->Send("take this", &*descriptor, Soon()).ok());
    EXPECT_EQ(socket->Receive(Soon())->text, "thanks");
  });
  auto socket = FdSocket::Connect(Address());
  ASSERT_TRUE(socket.ok()) << socket.status();
  EXPECT_EQ(*socket->PeerUser(), geteuid());
  auto message = socket->Receive(Soon());
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->text, "take this");
  auto peer = PeerRegion::Map(message->descriptor);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_TRUE(socket->Send("thanks", nullptr, Soon()).ok());
  owner.join();
  // The owner has gone, but its memory still exists.
  EXPECT_EQ(std::memcmp((*peer)->bytes().data(), "shared", 6), 0);
  ExpectError(socket->Receive(Soon()), absl::StatusCode::kUnavailable, {"closed"});
}

TEST(FdSocketTest, APeerThatSaysNothingIsNotWaitedForLongerThanTheDeadline) {
  auto listener = FdListener::Listen(Address());
  auto socket = FdSocket::Connect(Address());
  ASSERT_TRUE(socket.ok());
  ExpectError(socket->Receive(MonotonicNow() + absl::Milliseconds(20)),
              absl::StatusCode::kDeadlineExceeded, {});
}

TEST(FdSocketTest, NobodyListeningIsUnavailable) {
  ExpectError(FdSocket::Connect(Address()), absl::StatusCode::kUnavailable, {Address()});
}

TEST(FdSocketTest, ConnectDoesNotWaitForAListenerThatIsBusy) {
  auto listener = FdListener::Listen(Address());
  std::vector<FdSocket> waiting;
  absl::Status refused;
  while (waiting.size() < 10'000) {
    auto socket = FdSocket::Connect(Address());
    refused = socket.status();
    if (!socket.ok()) break;
    waiting.push_back(*std::move(socket));
  }
  ExpectError(refused, absl::StatusCode::kResourceExhausted, {Address()});
  ASSERT_TRUE(listener->Accept(Soon()).ok());
  EXPECT_TRUE(FdSocket::Connect(Address()).ok());
}

TEST(FdListenerTest, WaitsUntilTheDeadline) {
  auto listener = FdListener::Listen(Address());
  ExpectError(listener->Accept(MonotonicNow()), absl::StatusCode::kDeadlineExceeded, {});
}

TEST(FdListenerTest, OneListenerAnAddress) {
  auto first = FdListener::Listen(Address());
  ASSERT_TRUE(first.ok());
  ExpectError(FdListener::Listen(Address()), absl::StatusCode::kAlreadyExists, {Address()});
}

TEST(FdListenerTest, ShutdownEndsAnAccept) {
  auto listener = FdListener::Listen(Address());
  std::thread acceptor(
      [&] { ExpectError(listener->Accept(Soon()), absl::StatusCode::kCancelled, {}); });
  listener->Shutdown();
  acceptor.join();
}

TEST(HandoverTest, RequestsComeBackAsTheyWere) {
  using Kind = HandoverRequest::Kind;
  for (Kind kind : {Kind::kOffer, Kind::kResults}) {
    const auto parsed = ParseHandover(ToText({kind, 4'000'000'000}));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->kind, kind);
    EXPECT_EQ(parsed->number, 4'000'000'000);
  }
}

TEST(HandoverTest, AnythingElseIsNoRequest) {
  for (const char* text : {"", "offer", "offer ", "offer -1", "offer 5000000000", "results x",
                           "take 1", "offer 1 2"}) {
    EXPECT_FALSE(ParseHandover(text).has_value()) << text;
  }
}

TEST(HostTest, TheBootIdIsTheSameTwice) { EXPECT_EQ(HostId(), HostId()); }

}  // namespace
}  // namespace syncgrads
