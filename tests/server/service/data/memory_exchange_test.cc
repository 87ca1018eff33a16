#include "server/service/data/memory_exchange.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/shm/fd_socket.h"
#include "common/shm/handover.h"
#include "common/shm/region.h"
#include "common/signals/protocol.h"
#include "common/wire/frame.h"
#include "gtest/gtest.h"
#include "server/core/jobs/jobs.h"
#include "tests/server/core/fixtures.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

using ::syncgrads::testing::WaitUntil;

constexpr size_t kElements = 1 << 13;

absl::Time Soon() { return MonotonicNow() + absl::Minutes(1); }

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// Sends messages with several descriptors, which FdSocket does not allow.
class RawSocket {
 public:
  explicit RawSocket(const std::string& address)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, address.data(), address.size());
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<const sockaddr*>(&name),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.size())),
              0)
        << std::strerror(errno);
  }

  void Send(std::string text, const std::vector<int>& descriptors) {
    iovec part{text.data(), text.size()};
    std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
    }
    EXPECT_GE(sendmsg(socket_.get(), &message, MSG_NOSIGNAL), 0) << std::strerror(errno);
  }
  std::string Receive() {
    std::string text(4096, '\0');
    const ssize_t bytes = recv(socket_.get(), text.data(), text.size(), 0);
    text.resize(bytes < 0 ? 0 : static_cast<size_t>(bytes));
    return text;
  }

 private:
  FileDescriptor socket_;
};

class MemoryExchangeTest : public ::testing::Test {
 protected:
  MemoryExchangeTest() : jobs_(ServerIndex{0}, Clock::Real()) {
    Apply(JobOpened{"secret"});
    Apply(EpochOfSize(3));
    Apply(std::make_shared<const GroupPlan>(
        OneTensor(DType::kF32, int64_t{kElements}, Reduction::kSum)));
  }

  void Apply(decltype(PlanChange::kind) kind) {
    jobs_.Apply({++sequence_, "iris", Generation{1}, std::move(kind), 77});
  }
  void Start(MemoryExchangeOptions options = {.interval = absl::Milliseconds(5)}) {
    auto started = MemoryExchange::Start(jobs_, journal_, options);
    ASSERT_TRUE(started.ok()) << started.status();
    exchange_ = *std::move(started);
  }

  static DataHello Hello(uint32_t member) {
    DataHello hello;
    hello.protocol_version = kProtocolVersion;
    hello.job = "iris";
    hello.token = "secret";
    hello.member = MemberId{member};
    hello.incarnation = IncarnationOf(member);
    return hello;
  }
  static std::string HelloText(uint32_t member) {
    PushHeader header;
    header.hello = Hello(member);
    return EncodeHeader(header, 0);
  }
  FdSocket Connect() {
    auto socket = FdSocket::Connect(exchange_->address());
    EXPECT_TRUE(socket.ok()) << socket.status();
    return *std::move(socket);
  }
  static std::string Ask(FdSocket& socket, const std::string& text,
                         const FileDescriptor* descriptor = nullptr) {
    EXPECT_TRUE(socket.Send(text, descriptor, Soon()).ok());
    auto answer = socket.Receive(Soon());
    return answer.ok() ? answer->text : std::string(answer.status().message());
  }
  // Returns a connection whose hello has been accepted.
  FdSocket Greeted(uint32_t member) {
    FdSocket socket = Connect();
    EXPECT_EQ(Ask(socket, HelloText(member)), kHandoverOk);
    return socket;
  }
  std::shared_ptr<MemberMemory> MemoryOf(uint32_t member) {
    return exchange_->MemoryOf(*jobs_.Find("iris"), Hello(member));
  }
  bool Wrote(const std::string& part) const {
    for (const std::string& line : journal_.lines()) {
      if (absl::StrContains(line, part)) return true;
    }
    return false;
  }

  LineJournal journal_;
  Jobs jobs_;
  uint64_t sequence_ = 0;
  std::unique_ptr<MemoryExchange> exchange_;
};

TEST_F(MemoryExchangeTest, TakesRegionsAndHandsResultsOut) {
  Start();
  FdSocket socket = Greeted(1);
  auto region = SharedRegion::Create("test", 5000);
  ASSERT_TRUE(region.ok()) << region.status();
  std::memcpy((*region)->data(), "0123", 4);
  const auto descriptor = (*region)->ReadOnlyDescriptor();
  ASSERT_EQ(Ask(socket, "offer 3", &*descriptor), kHandoverOk);
  const auto found = MemoryOf(1)->Find({{3, 1, 2}});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(std::memcmp(found->pieces[0].data(), "12", 2), 0);
  EXPECT_FALSE(MemoryOf(1)->IsMapped(GroupId{0}));

  ASSERT_TRUE(socket.Send("results 0", nullptr, Soon()).ok());
  const auto results = socket.Receive(Soon());
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(results->text, kHandoverOk);
  const auto mapped = PeerRegion::MapOwn(results->descriptor);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_GE((*mapped)->bytes().size(), kElements * sizeof(float));
  EXPECT_TRUE(MemoryOf(1)->IsMapped(GroupId{0}));
  EXPECT_EQ(MemoryOf(0), nullptr);
}

TEST_F(MemoryExchangeTest, TheRegionsOfAMemberHaveALimitedSize) {
  Start({.interval = absl::Milliseconds(5), .max_region_bytes = 12'000});
  FdSocket socket = Greeted(1);
  auto region = SharedRegion::Create("test", 5000);
  ASSERT_TRUE(region.ok()) << region.status();
  const auto descriptor = (*region)->ReadOnlyDescriptor();
  EXPECT_EQ(Ask(socket, "offer 1", &*descriptor), kHandoverOk);
  EXPECT_EQ(Ask(socket, "offer 2", &*descriptor), kHandoverOk);
  EXPECT_TRUE(absl::StrContains(Ask(socket, "offer 3", &*descriptor), "at most 2000 more"));
  EXPECT_EQ(MemoryOf(1)->region_bytes(), 10'000);
  // Another member has its own limit.
  FdSocket other = Greeted(2);
  EXPECT_EQ(Ask(other, "offer 1", &*descriptor), kHandoverOk);
}

TEST_F(MemoryExchangeTest, RefusesWhoIsNoMember) {
  Start();
  FdSocket socket = Connect();
  EXPECT_TRUE(absl::StrContains(Ask(socket, HelloText(7)), "member 7"));
  EXPECT_TRUE(Wrote("refused to share memory with a process"));
}

TEST_F(MemoryExchangeTest, AMemberHasOneConnection) {
  Start();
  std::optional<FdSocket> first = Greeted(1);
  FdSocket second = Connect();
  EXPECT_TRUE(absl::StrContains(Ask(second, HelloText(1)), "on another connection"));
  first.reset();
  EXPECT_TRUE(WaitUntil([&] { return MemoryOf(1) == nullptr; }));
  Greeted(1);
}

TEST_F(MemoryExchangeTest, ConnectionsThatHaveEndedAreGivenUpWithoutAnother) {
  Start();
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    FdSocket silent = Connect();
    FdSocket member = Greeted(1);
    member = Connect();
    EXPECT_TRUE(WaitUntil([&] { return MemoryOf(1) == nullptr; }));
  }
  EXPECT_TRUE(WaitUntil([&] { return OpenDescriptors() <= before; }));
}

TEST_F(MemoryExchangeTest, ADescriptorTooManyEndsTheConnectionAndLeaksNothing) {
  Start();
  const size_t before = OpenDescriptors();
  auto region = SharedRegion::Create("test", 4096);
  {
    auto descriptor = *(*region)->ReadOnlyDescriptor();
    for (const int count : {2, 3, 100}) {
      const std::vector<int> many(static_cast<size_t>(count), descriptor.get());
      RawSocket stranger(exchange_->address());  // sends no hello
      stranger.Send("offer 0", many);
      EXPECT_TRUE(absl::StrContains(stranger.Receive(), "file descriptors, at most 1 is allowed"));
      RawSocket member(exchange_->address());
      member.Send(HelloText(1), {});
      EXPECT_EQ(member.Receive(), kHandoverOk);
      member.Send("offer 0", many);
      EXPECT_TRUE(absl::StrContains(member.Receive(), "file descriptors, at most 1 is allowed"));
      EXPECT_TRUE(WaitUntil([&] { return MemoryOf(1) == nullptr; }));
    }
  }
  region = nullptr;
  EXPECT_TRUE(WaitUntil([&] { return OpenDescriptors() <= before; }));
}

TEST_F(MemoryExchangeTest, MemoryThatIsNotAllocatedIsRefused) {
  Start();
  FdSocket socket = Greeted(1);
  const FileDescriptor sparse(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  constexpr off_t kBytes = off_t{1} << 40;
  ASSERT_EQ(ftruncate(sparse.get(), kBytes), 0);
  ASSERT_EQ(fcntl(sparse.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  fcntl(sparse.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);  // fails before Linux 5.1
  const std::string answer = Ask(socket, "offer 0", &sparse);
  EXPECT_TRUE(absl::StrContains(answer, absl::StrCat(kBytes))) << answer;
  EXPECT_TRUE(absl::StrContains(answer, "all must be allocated")) << answer;
  EXPECT_FALSE(MemoryOf(1)->Find({{0, 0, 1}}).ok());
}

TEST_F(MemoryExchangeTest, AMemberHasSoManyRegions) {
  Start();
  FdSocket socket = Greeted(1);
  auto region = SharedRegion::Create("test", 4096);
  const auto descriptor = (*region)->ReadOnlyDescriptor();
  for (size_t i = 0; i < MemberMemory::kMaxRegions; ++i) {
    ASSERT_EQ(Ask(socket, absl::StrCat("offer ", i), &*descriptor), kHandoverOk);
  }
  const std::string answer =
      Ask(socket, absl::StrCat("offer ", MemberMemory::kMaxRegions), &*descriptor);
  EXPECT_TRUE(absl::StrContains(answer, "exceeds the limit")) << answer;
  EXPECT_EQ(Ask(socket, "offer 0", &*descriptor), kHandoverOk) << "it takes the place of one";
}

TEST_F(MemoryExchangeTest, AConnectionTooManyIsRefusedWithAReason) {
  Start({.max_connections = 2, .interval = absl::Milliseconds(5)});
  std::optional<FdSocket> first = Greeted(0);
  const FdSocket second = Greeted(1);
  FdSocket third = Connect();
  const auto refusal = third.Receive(Soon());
  ASSERT_TRUE(refusal.ok()) << refusal.status();
  EXPECT_TRUE(absl::StrContains(refusal->text, "2 processes")) << refusal->text;
  first.reset();
  EXPECT_TRUE(WaitUntil([&] {
    FdSocket again = Connect();
    return again.Send(HelloText(2), nullptr, Soon()).ok() &&
           again.Receive(Soon()).value_or(FdSocket::Message()).text == kHandoverOk;
  }));
}

// The process runs out of descriptors while a worker connects. Later some become available.
TEST_F(MemoryExchangeTest, GoesOnWhenThereAreDescriptorsAgain) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit small{std::min<rlim_t>(limit.rlim_cur, 256), limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
  Start();
  std::vector<FileDescriptor> taken;
  while (true) {
    FileDescriptor another(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!another.valid()) break;
    taken.push_back(std::move(another));
  }
  ASSERT_EQ(errno, EMFILE);
  taken.pop_back();
  FdSocket socket = Connect();  // takes the last descriptor
  EXPECT_TRUE(
      WaitUntil([&] { return Wrote("cannot share memory with further workers at present"); }));
  taken.clear();
  EXPECT_EQ(Ask(socket, HelloText(1)), kHandoverOk);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST_F(MemoryExchangeTest, EndsWhileWorkersConnect) {
  for (int life = 0; life < 20; ++life) {
    Start();
    const std::string address = exchange_->address();
    std::thread workers([&address] {
      for (int i = 0; i < 30; ++i) {
        auto socket = FdSocket::Connect(address);
        if (socket.ok()) socket->Send(HelloText(1), nullptr, Soon()).IgnoreError();
      }
    });
    exchange_ = nullptr;
    workers.join();
  }
}

}  // namespace
}  // namespace syncgrads::server
