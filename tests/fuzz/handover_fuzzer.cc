// Sends arbitrary messages over the unix socket on which memory is shared, with any number of
// descriptors of any kind. A message that is received has a valid request or none, a descriptor
// that is mapped can be read, and the others are closed.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/shm/fd_socket.h"
#include "common/shm/handover.h"
#include "common/shm/region.h"
#include "tests/fuzz/fuzz_target.h"

namespace syncgrads::fuzz {
namespace {

constexpr size_t kMaxDescriptors = 4;

// Two ends of a connection.
struct Connection {
  Connection() {
    const std::string address = absl::StrCat("syncgrads-fuzz-", getpid());
    absl::StatusOr<FdListener> listener = FdListener::Listen(address);
    Require(listener.ok(), "the socket listens");
    sender = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, address.data(), address.size());
    const auto length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.size());
    Require(connect(sender, reinterpret_cast<sockaddr*>(&name), length) == 0, "it is reached");
    absl::StatusOr<FdSocket> accepted = listener->Accept(Soon());
    Require(accepted.ok(), "it accepts");
    receiver.emplace(*std::move(accepted));
  }
  static absl::Time Soon() { return MonotonicNow() + absl::Seconds(4); }

  int sender;
  std::optional<FdSocket> receiver;
};

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// Opens a file of the kind that `choices` draws.
int AnyFile(Choices& choices) {
  const uint8_t kind = choices.Byte();
  const size_t size = choices.Number(2);
  switch (kind % 8) {
    case 0:
      return open("/dev/null", O_RDWR | O_CLOEXEC);
    case 1:
      return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    case 2:
      return open("/proc", O_PATH | O_CLOEXEC);
    case 3:
      return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    default:
      break;
  }
  const int file = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  Require(file >= 0 && ftruncate(file, static_cast<off_t>(size)) == 0, "a file is created");
  if (kind & 0x80 && size > 0) Require(fallocate(file, 0, 0, size) == 0, "it is allocated");
  if (kind & 0x40) fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
  const int seals[] = {0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE,
                       F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE};
  fcntl(file, F_ADD_SEALS, seals[(kind >> 4) % 4]);
  return file;
}

// Sends the text, with descriptors, of which the sender keeps none.
void Send(int sender, absl::string_view text, const std::vector<int>& files) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!files.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), files.data(), files.size() * sizeof(int));
  }
  Require(sendmsg(sender, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()),
          "a message is sent");
  for (const int file : files) close(file);
}

void Parse(absl::string_view text) {
  const std::optional<HandoverRequest> request = ParseHandover(text);
  if (!request.has_value()) return;
  const std::optional<HandoverRequest> again = ParseHandover(ToText(*request));
  Require(again.has_value(), "a request that is written again is accepted");
  Require(again->kind == request->kind && again->number == request->number,
          "a request is written as it was read");
}

void Map(const FileDescriptor& descriptor) {
  const auto region = PeerRegion::Map(descriptor);
  RequireExplained(region.status());
  if (!region.ok()) return;
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  Require((seals & F_SEAL_SHRINK) && (seals & F_SEAL_GROW), "a file that is mapped keeps its size");
  volatile std::byte sum{};
  for (const std::byte byte : (*region)->bytes()) sum = sum ^ byte;
}

}  // namespace

void Fuzz(absl::string_view input) {
  static Connection connection;
  Choices choices(input);
  const size_t count = choices.Byte() % (kMaxDescriptors + 1);
  std::vector<int> files;
  for (size_t i = 0; i < count; ++i) files.push_back(AnyFile(choices));
  const absl::string_view text = choices.Rest();
  Parse(text);
  // An empty message is the end of the connection.
  const std::string sent = text.empty() ? "-" : std::string(text.substr(0, FdSocket::kMaxText + 1));
  const size_t before = OpenDescriptors() - files.size();
  Send(connection.sender, sent, files);
  {
    const absl::StatusOr<FdSocket::Message> message =
        connection.receiver->Receive(Connection::Soon());
    RequireExplained(message.status());
    Require(message.ok() == (count <= 1 && sent.size() <= FdSocket::kMaxText),
            "a message has at most one descriptor");
    if (message.ok()) {
      Require(message->text == sent && message->descriptor.valid() == (count == 1),
              "a message is received as it was sent");
      if (count == 1) Map(message->descriptor);
    }
  }
  Require(OpenDescriptors() == before, "no descriptor is left open");
}

std::vector<std::string> Seeds() {
  const auto input = [](const std::vector<int>& kinds, const HandoverRequest& request) {
    std::string bytes = Encoded(kinds.size(), 1);
    for (const int kind : kinds) bytes += Encoded(kind, 1) + Encoded(5000, 2);
    return bytes + ToText(request);
  };
  const HandoverRequest offer = {HandoverRequest::Kind::kOffer, 0};
  std::vector<std::string> seeds = {
      input({}, {HandoverRequest::Kind::kOffer, ~0u}),
      input({}, {HandoverRequest::Kind::kResults, 17}),
      input({0xa4, 0xa4}, offer),
      input({0xa4, 1, 2, 3}, offer),
  };
  // All kinds of files and seals: allocated, with a hole, and not allocated.
  for (const int kind : {0, 1, 2, 3, 0x84, 0x94, 0xa4, 0xb4, 0xe4, 0x24, 0x34}) {
    seeds.push_back(input({kind}, offer));
  }
  return seeds;
}

}  // namespace syncgrads::fuzz
