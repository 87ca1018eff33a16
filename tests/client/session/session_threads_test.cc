// Many threads use one session while its streams break. Meant for the thread sanitizer: it covers
// the membership, the data plane and the groups, over a transport whose streams have threads.

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/session/session.h"
#include "common/mutex.h"
#include "common/serial_thread.h"
#include "common/wire/frame.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"

namespace syncgrads::client {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);

// A stream whose events come from a thread. It breaks after some messages. The thread must outlive
// the stream's closures, and each closure keeps the stream alive.
template <typename Events>
class BreakingStream {
 public:
  BreakingStream(SerialThread& thread, std::shared_ptr<Events> events, int messages)
      : thread_(thread), events_(std::move(events)), messages_left_(messages) {}

  // Runs `closure` on the thread with the events, unless the stream has ended by then.
  template <typename Closure>
  void Run(std::shared_ptr<BreakingStream> self, Closure closure) {
    thread_.Run([self = std::move(self), closure = std::move(closure)] {
      if (self->events_ != nullptr) closure(*self);
    });
  }
  // The rest is called on the thread.
  Events& events() { return *events_; }
  // Ends the stream if it has passed its messages on, and returns whether it has.
  bool Breaks() {
    if (messages_left_-- > 0) return false;
    End(absl::UnavailableError("the link is cut"));
    return true;
  }
  void End(absl::Status status) {
    const std::shared_ptr<Events> events = std::move(events_);
    events->OnClosed(std::move(status));
  }

 private:
  SerialThread& thread_;
  std::shared_ptr<Events> events_;
  int messages_left_;
};

// Answers each push with its own values. The results are of epoch 1.
class EchoStream : public DataStream,
                   public BreakingStream<DataStreamEvents>,
                   public std::enable_shared_from_this<EchoStream> {
 public:
  // The answers list `ranks` as contributors.
  EchoStream(SerialThread& thread, std::shared_ptr<DataStreamEvents> events, int messages,
             std::vector<uint32_t> ranks)
      : BreakingStream(thread, std::move(events), messages), ranks_(std::move(ranks)) {}

  void Start() override {}
  bool Write(std::shared_ptr<const OutgoingMessage> message) override {
    Run(shared_from_this(), [message = std::move(message), this](BreakingStream& stream) {
      const std::string bytes = BytesOf(*message);
      stream.events().OnWritten();
      const absl::Span<const std::byte> whole = SpanOf(bytes);
      const PushFrame push = *DecodePush(absl::MakeConstSpan(&whole, 1));
      if (push.header.hello.has_value() || stream.Breaks()) return;
      UpdateHeader header;
      header.generation = push.header.generation;
      header.group = push.header.group;
      header.chunk = push.header.chunk;
      header.round = push.header.round;
      header.epoch = 1;
      header.counts = {1};
      header.contributors = ranks_;
      auto answer = std::make_shared<std::string>(EncodeHeader(header, TotalBytes(push.payload)));
      for (const absl::Span<const std::byte>& piece : push.payload) {
        answer->append(reinterpret_cast<const char*>(piece.data()), piece.size());
      }
      stream.events().OnReceived({{SpanOf(*answer)}, answer});
    });
    return false;
  }
  void Cancel() override {
    Run(shared_from_this(), [](BreakingStream& stream) { stream.End(absl::CancelledError("")); });
  }

 private:
  const std::vector<uint32_t> ranks_;
};

// A coordinator of a job with one member: accepts each request.
class CoordinatorStream : public ControlStream,
                          public BreakingStream<ControlStreamEvents>,
                          public std::enable_shared_from_this<CoordinatorStream> {
 public:
  // The worker begins in epoch `epoch`.
  CoordinatorStream(SerialThread& thread, std::shared_ptr<ControlStreamEvents> events, int messages,
                    uint64_t epoch)
      : BreakingStream(thread, std::move(events), messages), epoch_(epoch) {}

  void Start() override {}
  void Write(const WorkerSignal& signal) override {
    Run(shared_from_this(), [signal, this](BreakingStream& stream) {
      stream.events().OnWritten();
      if (stream.Breaks()) return;
      if (const auto* hello = std::get_if<Hello>(&signal)) {
        Welcome welcome;
        welcome.protocol_version = 1;
        welcome.name = "worker";
        welcome.servers = {"server 0", "server 1"};
        welcome.heartbeat_interval = absl::Milliseconds(1);
        welcome.lease = kTimeout;
        Epoch epoch;
        epoch.number = epoch_;
        epoch.members = {{MemberId{0}, "worker", hello->incarnation}};
        Send(stream, welcome);
        Send(stream, EpochBegun{std::make_shared<const Epoch>(std::move(epoch))});
      } else if (const auto* request = std::get_if<RegisterGroup>(&signal)) {
        // Each group has one name of one digit, which is its number.
        const GroupId id{static_cast<uint32_t>(request->spec.name[0] - '0')};
        Layout layout = *Layout::Create(request->spec.tensors, 64, request->spec.compression);
        std::vector<ServerIndex> servers;
        for (uint32_t c = 0; c < layout.chunks().size(); ++c) servers.push_back(ServerIndex{c % 2});
        auto plan = std::make_shared<const GroupPlan>(
            GroupPlan{id, request->spec, std::move(layout), std::move(servers)});
        Send(stream, Registered{request->request, std::move(plan)});
      } else if (const auto* leave = std::get_if<Leave>(&signal)) {
        Send(stream, Done{leave->request});
      }
    });
  }
  void Cancel() override {
    Run(shared_from_this(), [](BreakingStream& stream) { stream.End(absl::CancelledError("")); });
  }

 private:
  template <typename Kind>
  static void Send(BreakingStream& stream, Kind kind) {
    JobSignal signal;
    signal.generation = Generation{1};
    signal.kind = std::move(kind);
    stream.events().OnReceived(std::move(signal));
  }

  const uint64_t epoch_;
};

class BreakingTransport : public Transport {
 public:
  explicit BreakingTransport(uint64_t epoch = 1, std::vector<uint32_t> ranks = {0})
      : epoch_(epoch), ranks_(std::move(ranks)) {}

  std::shared_ptr<DataStream> OpenData(const std::string&,
                                       std::shared_ptr<DataStreamEvents> events) override {
    return std::make_shared<EchoStream>(NextThread(), std::move(events), 50, ranks_);
  }
  std::shared_ptr<ControlStream> OpenControl(const std::string&,
                                             std::shared_ptr<ControlStreamEvents> events) override {
    return std::make_shared<CoordinatorStream>(NextThread(), std::move(events), 20, epoch_);
  }
  void Explain(const std::string&, const std::string&, const std::string&, GroupId, absl::Duration,
               ExplainAnswer answer) override {
    answer(std::vector<RoundWait>());
  }

 private:
  const uint64_t epoch_;
  const std::vector<uint32_t> ranks_;

  SerialThread& NextThread() { return threads_[next_++ % std::size(threads_)]; }

  SerialThread threads_[3];
  std::atomic<size_t> next_{0};
};

constexpr uint32_t kTensors = 12;

GroupSpec SpecOf(int number) {
  GroupSpec spec;
  spec.name = absl::StrCat(number);
  for (uint32_t t = 0; t < kTensors; ++t) {
    spec.tensors.push_back({absl::StrCat("t", t), DType::kF32, {16}});
  }
  return spec;
}

// Trains on a group of its own: all values of a step come back as they are.
void RunSteps(Session& session, int number) {
  const absl::StatusOr<Group*> group = session.Register(SpecOf(number), kTimeout);
  ASSERT_TRUE(group.ok()) << group.status();
  std::vector<std::vector<float>> values(kTensors, std::vector<float>(16));
  for (int step = 0; step < 40; ++step) {
    for (uint32_t t = 0; t < kTensors; ++t) {
      values[t].assign(16, static_cast<float>(1000 * number + 20 * step + static_cast<int>(t)));
      const absl::Status pushed = (*group)->Push(
          TensorId{t}, values[t].data(), values[t].size() * sizeof(float), values[t].data());
      ASSERT_TRUE(pushed.ok()) << pushed;
    }
    const auto counted = (*group)->WaitStep(kTimeout);
    ASSERT_TRUE(counted.ok()) << counted.status();
    for (uint32_t t = 0; t < kTensors; ++t) {
      EXPECT_EQ((*counted)[t].least, 1u);
      const auto value = static_cast<float>(1000 * number + 20 * step + static_cast<int>(t));
      EXPECT_EQ(values[t], std::vector<float>(16, value));
    }
  }
}

ClientOptions Options() {
  ClientOptions options;
  options.coordinator = "server 0";
  options.job = "job";
  options.token = "secret";
  options.shared_memory = false;
  options.unix_socket = false;
  return options;
}

TEST(SessionThreadsTest, GroupsAreUsedByManyThreadsWhileStreamsBreak) {
  Session session(Options(), {std::make_unique<BreakingTransport>(),
                              std::make_unique<ThreadTimers>(), Incarnation{7}});
  ASSERT_TRUE(session.Join(kTimeout).ok());
  std::atomic<bool> done{false};
  std::thread observer([&] {
    for (int i = 0; !done; ++i) {
      EXPECT_TRUE(session.status().ok());
      EXPECT_EQ(session.rank(), 0u);
      EXPECT_EQ(session.epochs().newest().number, 1u);
      session.Progress();
      session.data_plane()->SetConnections(1 + i % 3);
      session.ReportCheckpoint(static_cast<uint64_t>(i), std::string("a path"));
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> trainers;
  for (int number = 0; number < 3; ++number) {
    trainers.emplace_back([&session, number] { RunSteps(session, number); });
  }
  for (std::thread& trainer : trainers) trainer.join();
  done = true;
  observer.join();
  EXPECT_TRUE(session.Leave(kTimeout).ok());
}

// The epoch of the answers is not known when they arrive, so their ranks are checked afterwards.
TEST(SessionThreadsTest, AnOutcomeListsNoRankThatItsEpochDoesNotHave) {
  Session session(Options(),
                  {std::make_unique<BreakingTransport>(/*epoch=*/2, std::vector<uint32_t>{0, 1}),
                   std::make_unique<ThreadTimers>(), Incarnation{7}});
  ASSERT_TRUE(session.Join(kTimeout).ok());
  RunSteps(session, 0);
  const absl::StatusOr<Group*> group = session.Register(SpecOf(0), kTimeout);
  ASSERT_TRUE(group.ok()) << group.status();
  const absl::Status status = (*group)->LastStep(kTimeout).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("rank 1"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("has 1 members"));
}

}  // namespace
}  // namespace syncgrads::client
