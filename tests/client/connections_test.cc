// Several clients in one process that share connections: which stream uses which connection, and
// what happens to the other streams when a connection breaks or a client gives up.

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "client/grpc/grpc_connections.h"
#include "gmock/gmock.h"
#include "tests/client/workers.h"
#include "tests/fault/tcp_proxy.h"
#include "tests/testing/cluster.h"
#include "tests/testing/reserved_port.h"

namespace syncgrads::testing {
namespace {

using client::Connections;
using ::testing::Each;
using Purpose = Connections::Route::Purpose;

constexpr int kWorld = 4;
constexpr int kPerServer = 2;

// The addresses of these members serve as client ids.
struct Names {
  char a, b, c;
};

TEST(ConnectionsTest, TheNthStreamsOfAllClientsGoOverTheNthConnection) {
  const Names names{};
  const auto connections = std::make_shared<Connections>();
  const Connections::Route route{"127.0.0.1:1"};
  const auto a0 = connections->Take(&names.a, route);
  const auto a1 = connections->Take(&names.a, route);
  const auto b0 = connections->Take(&names.b, route);
  const auto b1 = connections->Take(&names.b, route);
  EXPECT_NE(a0->channel(), a1->channel());
  EXPECT_EQ(b0->channel(), a0->channel());
  EXPECT_EQ(b1->channel(), a1->channel());

  a0->End();
  EXPECT_EQ(connections->Take(&names.a, route)->channel(), b0->channel()) << "the lowest is free";
}

TEST(ConnectionsTest, OtherAddressesPurposesAndCongestionControlsHaveOthers) {
  const Names names{};
  const auto connections = std::make_shared<Connections>();
  const auto data = connections->Take(&names.a, {"127.0.0.1:1", Purpose::kData, ""});
  for (const Connections::Route& other :
       {Connections::Route{"127.0.0.1:2", Purpose::kData, ""},
        Connections::Route{"127.0.0.1:1", Purpose::kControl, ""},
        Connections::Route{"127.0.0.1:1", Purpose::kData, "reno"}}) {
    EXPECT_NE(connections->Take(&names.b, other)->channel(), data->channel());
  }
}

TEST(ConnectionsTest, OneThatNoStreamUsesIsNotUsedAgain) {
  const Names names{};
  const auto connections = std::make_shared<Connections>();
  const Connections::Route route{"127.0.0.1:1"};
  const auto a = connections->Take(&names.a, route);
  const auto b = connections->Take(&names.b, route);
  a->End();
  b->End();
  EXPECT_NE(connections->Take(&names.c, route)->channel(), a->channel());
}

TEST(ConnectionsTest, OneThatCannotConnectIsNotGivenOut) {
  const Names names{};
  const ReservedPort port;
  const auto connections = std::make_shared<Connections>();
  const Connections::Route route{port.address()};
  const auto a = connections->Take(&names.a, route);
  const auto deadline = absl::ToChronoTime(absl::Now() + kTimeout);
  for (grpc_connectivity_state state = a->channel()->GetState(/*try_to_connect=*/true);
       state != GRPC_CHANNEL_TRANSIENT_FAILURE; state = a->channel()->GetState(false)) {
    ASSERT_TRUE(a->channel()->WaitForStateChange(state, deadline));
  }
  const auto b = connections->Take(&names.b, route);
  EXPECT_NE(b->channel(), a->channel());
  const auto c = connections->Take(&names.c, route);
  EXPECT_EQ(c->channel(), b->channel());
}

// A socket that accepts connections to an abstract address, and reads nothing.
class UnixListener {
 public:
  UnixListener() : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name_.data(), name_.size());
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size())),
              0);
    EXPECT_EQ(listen(socket_, 8), 0);
  }
  ~UnixListener() { close(socket_); }

  std::string address() const { return absl::StrCat("unix-abstract:", name_); }

 private:
  const std::string name_ = absl::StrCat("syncgrads-connections-", std::random_device()());
  const int socket_;
};

TEST(ConnectionsTest, OneToAUnixSocketTakesNoStreamAfterOneHasEnded) {
  const Names names{};
  const UnixListener listener;
  const auto connections = std::make_shared<Connections>();
  const Connections::Route route{listener.address()};
  const auto a = connections->Take(&names.a, route);
  const auto b = connections->Take(&names.b, route);
  EXPECT_TRUE(a->refusal().ok()) << a->refusal();
  EXPECT_EQ(b->channel(), a->channel());
  a->End();
  const auto again = connections->Take(&names.a, route);
  EXPECT_TRUE(again->refusal().ok()) << again->refusal();
  EXPECT_NE(again->channel(), b->channel());
  EXPECT_EQ(connections->Take(&names.c, route)->channel(), again->channel());
}

TEST(ConnectionsTest, WhereNobodyListensEachStreamMakesAnAttempt) {
  const Names names{};
  const auto connections = std::make_shared<Connections>();
  std::optional<UnixListener> listener(std::in_place);
  const Connections::Route route{listener->address()};
  listener.reset();
  const auto a = connections->Take(&names.a, route);
  const auto b = connections->Take(&names.b, route);
  EXPECT_TRUE(absl::IsUnavailable(a->refusal())) << a->refusal();
  EXPECT_TRUE(absl::IsUnavailable(b->refusal())) << b->refusal();
  EXPECT_NE(b->channel(), a->channel());
}

// A proxy between clients and a server. It counts connections and can cut them.
class Way {
 public:
  explicit Way(const Cluster& cluster)
      : proxy_(*fault::TcpProxy::Start([this](uint16_t) {
          ++accepted_;
          return 0;
        })) {
    const std::string& address = cluster.coordinator();
    uint32_t port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    proxy_->SetUpstream(static_cast<uint16_t>(port));
  }

  ClientOptions Options(int rank, int world_size, const std::string& job) const {
    ClientOptions options;
    options.coordinator = absl::StrCat("127.0.0.1:", proxy_->port());
    options.job = job;
    options.rank = rank;
    options.world_size = world_size;
    options.connections_per_server = kPerServer;
    options.shared_memory = false;
    options.unix_socket = false;
    return options;
  }
  void Set(const fault::LinkState& state) { proxy_->SetLink(0, state); }

  // Returns the number of connections accepted so far.
  int accepted() const { return accepted_; }
  // Waits until `count` connections have been accepted. Returns false if that takes longer than
  // kTimeout.
  bool AwaitAccepted(int count) const {
    const absl::Time deadline = absl::Now() + kTimeout;
    while (accepted_ < count && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
    return accepted_ >= count;
  }

 private:
  std::atomic<int> accepted_{0};
  const std::unique_ptr<fault::TcpProxy> proxy_;
};

constexpr int64_t kElements = 100'000;

Group* Register(Client& client) {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"w", DType::kF32, {kElements}}};
  spec.chunk_bytes = 64 << 10;  // several chunks
  const absl::StatusOr<Group*> group = client.Register(spec, kTimeout);
  EXPECT_OK(group);
  return group.ok() ? *group : nullptr;
}

// Runs one step. Each rank contributes other values, and the result must be their average.
void Step(Group& group, int step, int rank, int world_size) {
  std::vector<float> values(kElements, static_cast<float>(100 * step + 2 * rank));
  ASSERT_OK(group.Push(TensorId{0}, values.data(), BytesOf(values), values.data()));
  ASSERT_OK(group.WaitStep(kTimeout));
  EXPECT_THAT(values, Each(100 * step + world_size - 1)) << "step " << step;
}

// The clients of one job. All of them run in this process.
class Job {
 public:
  Job(const Way& way, const std::shared_ptr<Connections>& connections) {
    for (int rank = 0; rank < kWorld; ++rank) {
      ClientOptions options = way.Options(rank, kWorld, "job");
      options.connections = connections;
      clients_.push_back(std::make_unique<Client>(std::move(options)));
    }
    groups_.resize(kWorld);
    Run([this](int rank) {
      ASSERT_OK(clients_[rank]->Join(kTimeout));
      groups_[rank] = Register(*clients_[rank]);
      ASSERT_NE(groups_[rank], nullptr);
    });
  }

  void Train(int steps) {
    Run([this, steps](int rank) {
      for (int step = 0; step < steps; ++step) Step(*groups_[rank], step, rank, kWorld);
    });
  }
  void End() {
    Run([this](int rank) {
      ASSERT_OK(groups_[rank]->End(kTimeout));
      ASSERT_OK(clients_[rank]->Leave(kTimeout));
    });
  }

 private:
  template <typename Work>
  static void Run(Work work) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kWorld; ++rank) threads.emplace_back([&work, rank] { work(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Group*> groups_;
};

TEST(ConnectionsTest, AllClientsTrainOverOneSet) {
  const Cluster cluster;
  const Way way(cluster);
  Job job(way, MakeConnections());
  job.Train(10);
  EXPECT_TRUE(way.AwaitAccepted(1 + kPerServer)) << "for signals, and for data";
  job.Train(10);
  job.End();
  EXPECT_EQ(way.accepted(), 1 + kPerServer);
}

TEST(ConnectionsTest, EachClientHasItsOwnUnlessItIsGivenOthers) {
  const Cluster cluster;
  const Way way(cluster);
  Job job(way, nullptr);
  job.Train(10);
  EXPECT_TRUE(way.AwaitAccepted(kWorld * (1 + kPerServer)));
  job.End();
  EXPECT_EQ(way.accepted(), kWorld * (1 + kPerServer));
}

TEST(ConnectionsTest, AllGoOnWhenTheirConnectionsAreCut) {
  server::ServerOptions options;
  options.stream_grace = kTimeout;  // no worker may be dropped while the connections are cut
  const Cluster cluster(1, options);
  Way way(cluster);
  Job job(way, MakeConnections());
  job.Train(5);
  ASSERT_TRUE(way.AwaitAccepted(1 + kPerServer));
  for (int cut = 0; cut < 3; ++cut) {
    const int before = way.accepted();
    way.Set({.cut = true});
    // Wait until reconnections have been tried and have failed.
    ASSERT_TRUE(way.AwaitAccepted(before + 1 + kPerServer));
    way.Set({});
    job.Train(5);
  }
  job.End();
}

// A client of a job of its own joins. It leaves after one step (`leaves`), or is abandoned in the
// middle of a step.
void ComeAndGo(ClientOptions options, bool leaves) {
  Client client(std::move(options));
  ASSERT_OK(client.Join(kTimeout));
  Group* const group = Register(client);
  ASSERT_NE(group, nullptr);
  if (leaves) {
    Step(*group, /*step=*/0, /*rank=*/0, /*world_size=*/1);
    ASSERT_OK(group->End(kTimeout));
    ASSERT_OK(client.Leave(kTimeout));
  } else {
    std::vector<float> values(kElements);
    ASSERT_OK(group->Push(TensorId{0}, values.data(), BytesOf(values), values.data()));
    client.Abandon();
  }
}

TEST(ConnectionsTest, AClientThatLeavesOrIsAbandonedDoesNotDisturbTheOthers) {
  const Cluster cluster;
  const Way way(cluster);
  const std::shared_ptr<Connections> connections = MakeConnections();
  Job job(way, connections);
  ASSERT_TRUE(way.AwaitAccepted(1 + kPerServer));
  std::atomic<bool> over{false};
  std::thread others([&] {
    while (!over) job.Train(1);
  });
  for (int i = 0; i < 10; ++i) {
    ClientOptions options = way.Options(0, 1, absl::StrCat("another ", i));
    options.connections = connections;
    ComeAndGo(std::move(options), /*leaves=*/i % 2 == 0);
  }
  over = true;
  others.join();
  job.End();
  EXPECT_EQ(way.accepted(), 1 + kPerServer);
}

}  // namespace
}  // namespace syncgrads::testing
