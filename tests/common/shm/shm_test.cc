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

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/shm/fd_socket.h"
#include "common/shm/handover.h"
#include "common/shm/host.h"
#include "common/shm/region.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

// The same within one test, and no other program's: process ids repeat between
// containers that share a network.
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

// What the kernel says of a mapping of this process: of how many KiB it uses huge pages.
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
  // How many there are is up to the kernel.
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

TEST(PeerRegionTest, RefusesWhatIsNoMemory) {
  const FileDescriptor file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ExpectError(PeerRegion::Map(file), absl::StatusCode::kInvalidArgument, {"no sealable memory"});
}

TEST(FdSocketTest, HandsDescriptorsOver) {
  auto listener = FdListener::Listen(Address());
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::thread owner([&] {
    auto socket = listener->Accept();
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
  // The owner has gone, and its memory is still there.
  EXPECT_EQ(std::memcmp((*peer)->bytes().data(), "shared", 6), 0);
  ExpectError(socket->Receive(Soon()), absl::StatusCode::kUnavailable, {"closed"});
}

TEST(FdSocketTest, APeerThatSaysNothingIsNotWaitedForLongerThanTheDeadline) {
  auto listener = FdListener::Listen(Address());
  auto socket = FdSocket::Connect(Address());
  ASSERT_TRUE(socket.ok());
  ExpectError(socket->Receive(absl::Now() + absl::Milliseconds(20)),
              absl::StatusCode::kDeadlineExceeded, {});
}

TEST(FdSocketTest, NobodyListeningIsUnavailable) {
  ExpectError(FdSocket::Connect(Address()), absl::StatusCode::kUnavailable, {Address()});
}

TEST(FdListenerTest, OneListenerAnAddress) {
  auto first = FdListener::Listen(Address());
  ASSERT_TRUE(first.ok());
  ExpectError(FdListener::Listen(Address()), absl::StatusCode::kAlreadyExists, {Address()});
}

TEST(FdListenerTest, ShutdownEndsAnAccept) {
  auto listener = FdListener::Listen(Address());
  std::thread acceptor([&] { ExpectError(listener->Accept(), absl::StatusCode::kCancelled, {}); });
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
