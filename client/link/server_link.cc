#include "client/link/server_link.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/planted_bug.h"
#include "common/trace/trace.h"

namespace syncgrads::client {
namespace {

// PlantedBug::kResendEncodedAgain: the same values in other bytes.
[[maybe_unused]] std::shared_ptr<const OutgoingMessage> EncodeAgain(
    const std::shared_ptr<const OutgoingMessage>& message) {
  Pieces bytes = {absl::MakeConstSpan(reinterpret_cast<const std::byte*>(message->header().data()),
                                      message->header().size())};
  for (const absl::Span<const std::byte>& piece : message->payload()) bytes.push_back(piece);
  absl::StatusOr<PushFrame> push = DecodePush(bytes);
  push->header.weight = push->header.weight == 0 ? 1 : push->header.weight;
  return std::make_shared<const OutgoingMessage>(
      EncodeHeader(push->header, TotalBytes(message->payload())), message->payload(), nullptr,
      [message] { static_cast<void>(message); });
}

}  // namespace

// One attempt at a stream. Members that are not constant are guarded by ServerLink::mutex_.
class ServerLink::Stream : public DataStreamEvents,
                           public std::enable_shared_from_this<ServerLink::Stream> {
 public:
  Stream(std::shared_ptr<ServerLink> link, size_t slot, absl::Time opened, std::string socket)
      : link(std::move(link)), slot(slot), opened(opened), socket(std::move(socket)) {}

  void OnWritten() override { link->OnWritten(this); }
  void OnReceived(ReceivedMessage message) override { link->OnReceived(this, std::move(message)); }
  void OnClosed(absl::Status status) override { link->OnClosed(this, std::move(status)); }

  const std::shared_ptr<ServerLink> link;
  const size_t slot;
  const absl::Time opened;
  const std::string socket;          // the unix socket that it uses; empty: TCP
  std::shared_ptr<DataStream> data;  // null once closed
  StreamNumber number = 0;           // set when it is started
  bool up = false;                   // the hello has been written
  bool writing = false;
  size_t taken = 0;       // bytes of the window that the message being written has
  bool received = false;  // a message was received; not guarded: OnReceived and OnClosed take turns
  bool replaced = false;  // cancelled because the path has changed
  absl::Status malformed;  // why the link cancelled it; OK if it did not
  // When the contribution that is being written was begun; set only if events are recorded.
  absl::Time written_since = absl::InfinitePast();
};

ServerLink::ServerLink(Options options, Transport& transport, Timers& timers)
    : options_(std::move(options)),
      transport_(transport),
      timers_(timers),
      slots_(std::max(1, options_.connections)),
      wanted_(slots_.size()) {}

std::string ServerLink::Name() const {
  return absl::StrCat("server ", ToNumber(options_.server), " at ", options_.address);
}

void ServerLink::Start() {
  if (options_.memory != nullptr) {
    options_.memory->SetListener(
        [weak = weak_from_this()](const std::string& socket) {
          if (const auto self = weak.lock()) self->OnShared(socket);
        },
        [weak = weak_from_this()](const std::string& reason) {
          if (const auto self = weak.lock()) self->OnRefused(reason);
        });
  }
  // Without a host id in the hello, the server sends no welcome. So it is known here that no memory
  // is shared and that streams use TCP.
  if (options_.hello.host_id.empty()) {
    OnRefused(options_.memory == nullptr && !options_.unix_socket
                  ? "this worker allows no other path"
                  : "the host id of this worker is unknown");
  }
  size_t slots;
  {
    MutexLock lock(mutex_);
    slots = slots_.size();
    down_since_ = timers_.Now();
  }
  for (size_t slot = 0; slot < slots; ++slot) Connect(slot);
}

void ServerLink::SetConnections(int connections) {
  const auto wanted = static_cast<size_t>(std::max(1, connections));
  std::vector<size_t> opened;
  std::vector<std::shared_ptr<DataStream>> closed;
  {
    MutexLock lock(mutex_);
    for (size_t slot = wanted; slot < wanted_; ++slot) {
      const std::shared_ptr<Stream>& stream = slots_[slot].stream;
      if (stream != nullptr && stream->data != nullptr) closed.push_back(stream->data);
    }
    if (slots_.size() < wanted) slots_.resize(wanted);
    for (size_t slot = wanted_; slot < wanted; ++slot) {
      // A stream that is still being closed is opened again by OnClosed.
      if (slots_[slot].stream == nullptr) opened.push_back(slot);
    }
    wanted_ = wanted;
  }
  for (const std::shared_ptr<DataStream>& stream : closed) stream->Cancel();
  for (const size_t slot : opened) Connect(slot);
}

void ServerLink::Connect(size_t slot) {
  std::string socket;
  {
    MutexLock lock(mutex_);
    socket = path_.socket();
  }
  auto stream = std::make_shared<Stream>(shared_from_this(), slot, timers_.Now(), socket);
  std::shared_ptr<DataStream> data = transport_.OpenData(
      socket.empty() ? options_.address : absl::StrCat("local:", socket), stream);
  {
    MutexLock lock(mutex_);
    if (stopped_ || lost_) return;  // the stream was not started, and is destroyed
    if (slot >= wanted_ || slots_[slot].stream != nullptr) return;
    stream->data = data;
    stream->number = ++streams_;
    stream->writing = true;
    slots_[slot].stream = stream;
    ++open_streams_;
  }
  PushHeader header;
  header.hello = options_.hello;
  data->Start();
  if (data->Write(std::make_shared<const OutgoingMessage>(EncodeHeader(header, 0), Pieces(),
                                                          nullptr, nullptr))) {
    OnWritten(stream.get());
  }
}

void ServerLink::Send(const ChunkKey& key, uint64_t made_in,
                      std::shared_ptr<const OutgoingMessage> message) {
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    message = unanswered_.Add(key, made_in, std::move(message));
  }
  Pump();
}

void ServerLink::Forget(const ChunkKey& key) {
  Unanswered::Message forgotten;  // destroyed last, without the lock
  MutexLock lock(mutex_);
  forgotten = unanswered_.Forget(key);
}

void ServerLink::Resume(const ChunkKey& key) {
  {
    MutexLock lock(mutex_);
    if (!unanswered_.Resume(key)) return;
  }
  Pump();
}

void ServerLink::Pump() {
  while (true) {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<DataStream> data;
    std::shared_ptr<const OutgoingMessage> form;
    {
      MutexLock lock(mutex_);
      Unanswered::Message next = unanswered_.Next();
      if (next == nullptr) return;
      for (size_t slot = 0; slot < wanted_ && stream == nullptr; ++slot) {
        const std::shared_ptr<Stream>& of_slot = slots_[slot].stream;
        if (of_slot != nullptr && of_slot->up && !of_slot->writing && of_slot->malformed.ok()) {
          stream = of_slot;
        }
      }
      if (stream == nullptr) return;
      form = FormOf(std::move(next));
      const size_t bytes = TotalBytes(form->payload());
      if (!options_.window->Take(shared_from_this(), bytes)) return;
      unanswered_.MarkSent(stream->number);
      stream->writing = true;
      stream->taken = bytes;
      if (IsTracing()) stream->written_since = MonotonicNow();
      data = stream->data;
    }
    if (data->Write(std::move(form))) Accepted(stream.get());
  }
}

std::shared_ptr<const OutgoingMessage> ServerLink::FormOf(
    std::shared_ptr<const OutgoingMessage> message) const {
  const std::optional<OutgoingMessage::ByReference>& reference = message->by_reference();
  if (options_.memory == nullptr || !reference.has_value()) return message;
  for (uint32_t region : reference->regions) {
    if (!options_.memory->Has(region)) return message;
  }
  // Keeps the whole message alive until the transport has released the reference.
  return std::make_shared<const OutgoingMessage>(reference->header, Pieces(), nullptr,
                                                 [message] { (void)message; });
}

absl::Status ServerLink::Resolve(UpdateFrame& update, std::shared_ptr<const void>& memory) const {
  const SharedPiece& piece = *update.header.shared;
  std::shared_ptr<const MappedResults> results;
  if (options_.memory != nullptr) results = options_.memory->Results(GroupId{piece.region});
  if (results == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a result of group ", piece.region, " in shared memory, which is not mapped"));
  }
  const size_t size = results->bytes().size();
  if (piece.offset > size || piece.length > size - piece.offset) {
    return absl::InvalidArgumentError(absl::StrCat("a result of ", piece.length, " bytes at ",
                                                   piece.offset, " of ", size,
                                                   " bytes in shared memory"));
  }
  update.payload.clear();
  update.payload.push_back(results->bytes().subspan(piece.offset, piece.length));
  memory = std::move(results);
  return absl::OkStatus();
}

void ServerLink::OnWelcome(const DataWelcome& welcome) {
  Change([&](PayloadPath& path) { path.OnNamed(options_.unix_socket ? welcome.stream : ""); });
  if (options_.memory != nullptr) {
    options_.memory->OnWelcome(welcome);
  } else {
    OnRefused("this worker shares no memory");
  }
}

void ServerLink::OnShared(const std::string& socket) {
  Change([&](PayloadPath& path) { path.OnShared(socket); });
}

void ServerLink::OnRefused(const std::string& reason) {
  Change([&](PayloadPath& path) { path.OnRefused(reason); });
}

void ServerLink::Change(absl::FunctionRef<void(PayloadPath&)> event) {
  std::optional<PathReport> report;
  std::vector<std::shared_ptr<DataStream>> replaced;
  {
    MutexLock lock(mutex_);
    if (stopped_ || lost_) return;
    const bool was_shared = path_.is_shared();
    event(path_);
    report = path_.TakeReport();
    // Shared memory is lost: contributions that were sent by reference and have not been answered
    // must be sent whole, so all streams are replaced.
    const bool all = was_shared && !path_.is_shared();
    for (const Slot& slot : slots_) {
      Stream* const stream = slot.stream.get();
      if (stream == nullptr || (stream->socket == path_.socket() && !all)) continue;
      // OnClosed queues the stream's unanswered contributions again.
      stream->replaced = true;
      stream->malformed = absl::UnavailableError("payloads use another path from now on");
      replaced.push_back(stream->data);
    }
  }
  for (const std::shared_ptr<DataStream>& stream : replaced) stream->Cancel();
  Report(report);
}

void ServerLink::Report(const std::optional<PathReport>& report) const {
  if (report.has_value() && options_.on_path) options_.on_path(*report);
}

void ServerLink::OnWritten(Stream* stream) {
  Accepted(stream);
  Pump();
}

void ServerLink::Accepted(Stream* stream) {
  size_t taken;
  absl::Time written_since;
  {
    MutexLock lock(mutex_);
    stream->writing = false;
    taken = std::exchange(stream->taken, 0);
    written_since = std::exchange(stream->written_since, absl::InfinitePast());
    // It may have closed meanwhile.
    if (!stream->up && stream->data != nullptr) {
      stream->up = true;
      down_since_ = absl::InfiniteFuture();
      trouble_ = absl::OkStatus();
    }
  }
  if (written_since != absl::InfinitePast()) {
    RecordTraceWait("write", written_since, MonotonicNow(), TraceArgs::Bytes(taken));
  }
  // Links that wait for the window get their turn before this one.
  options_.window->GiveBack(taken);
}

void ServerLink::OnReceived(Stream* stream, ReceivedMessage message) {
  absl::StatusOr<UpdateFrame> update = DecodeUpdate(message.bytes);
  absl::Status status = update.status();
  if (status.ok()) {
    if (!std::exchange(stream->received, true))
      Change([&](PayloadPath& path) { path.OnReceived(stream->socket); });
    if (update->header.welcome.has_value()) return OnWelcome(*update->header.welcome);
    if (update->header.shared.has_value()) status = Resolve(*update, message.memory);
  }
  if (status.ok()) status = OnAnswer(stream, *update, std::move(message.memory));
  if (status.ok()) return;
  std::shared_ptr<DataStream> cancelled;
  {
    MutexLock lock(mutex_);
    stream->malformed = absl::UnavailableError(
        absl::StrCat(Name(), " sent a malformed answer: ", status.message()));
    cancelled = stream->data;
  }
  if (cancelled != nullptr) cancelled->Cancel();
}

absl::Status ServerLink::OnAnswer(Stream* stream, const UpdateFrame& update,
                                  std::shared_ptr<const void> memory) {
  const UpdateHeader& header = update.header;
  const ChunkKey key{header.group, header.chunk, header.round};
  // Destroyed last, without the lock: releasing the message completes the chunk and wakes its
  // waiter.
  UnansweredContribution answered;
  Backoff before;
  {
    MutexLock lock(mutex_);
    if (!stream->malformed.ok()) return absl::OkStatus();
    switch (unanswered_.Answer(key, header, answered)) {
      case Unanswered::Outcome::kIgnored:
        return absl::OkStatus();
      case Unanswered::Outcome::kPostponed:
        trouble_ = header.error;
        timers_.After(slots_[stream->slot].backoff.Next(), [weak = weak_from_this(), key] {
          if (auto self = weak.lock()) self->Resume(key);
        });
        return absl::OkStatus();
      case Unanswered::Outcome::kAnswered:
        before = slots_[stream->slot].backoff;
        slots_[stream->slot].backoff.Reset();
        break;
    }
  }
  absl::Status status = options_.on_update(update, std::move(memory));
  if (!status.ok()) {
    // The contribution is sent again on another stream, later each time: this answer was none.
    MutexLock lock(mutex_);
    slots_[stream->slot].backoff = before;
    if (!stopped_) unanswered_.Restore(key, answered);
  }
  return status;
}

void ServerLink::OnClosed(Stream* stream, absl::Status status) {
  std::shared_ptr<Stream> self;  // destroyed last, without the lock
  std::shared_ptr<DataStream> data;
  std::optional<absl::Duration> retry;
  absl::Status lost;
  std::optional<PathReport> report;
  size_t taken;
  {
    MutexLock lock(mutex_);
    self = stream->shared_from_this();
    taken = std::exchange(stream->taken, 0);
    data = std::move(stream->data);
    stream->data = nullptr;
    std::shared_ptr<Stream>& of_slot = slots_[stream->slot].stream;
    if (of_slot == self) of_slot = nullptr;
    unanswered_.Requeue(stream->number, [](Unanswered::Message& message) {
      if (IsPlanted(PlantedBug::kResendEncodedAgain)) message = EncodeAgain(message);
    });
    if (!stopped_ && !lost_ && stream->slot < wanted_) {
      retry = AfterEnd(*stream, stream->malformed.ok() ? status : stream->malformed, lost);
      report = path_.TakeReport();
      lost_ = !lost.ok();
    }
  }
  Report(report);
  if (retry.has_value()) {
    timers_.After(*retry, [weak = weak_from_this(), slot = stream->slot] {
      if (auto link = weak.lock()) link->Connect(slot);
    });
  }
  options_.window->GiveBack(taken);
  if (!lost.ok()) options_.on_lost(lost);
  // Destroying the stream releases its connection and thus the messages that the connection holds.
  data = nullptr;
  Pump();
  MutexLock lock(mutex_);
  --open_streams_;
  changed_.NotifyAll();
}

std::optional<absl::Duration> ServerLink::AfterEnd(const Stream& stream, const absl::Status& status,
                                                   absl::Status& lost) {
  // A unix socket that belongs to another process may close a stream with any status, so only a
  // server that has sent a message can refuse this worker.
  const bool out_of_reach = !stream.socket.empty() && !stream.received;
  path_.OnClosed(stream.socket, out_of_reach ? std::optional<absl::Status>(status) : std::nullopt);
  trouble_ = status.ok() ? absl::UnavailableError("the server closed the stream") : status;
  if (!out_of_reach && !IsWorthAnotherAttempt(status)) {
    lost = absl::Status(status.code(),
                        absl::StrCat(Name(), " refused this worker: ", status.message()));
    return std::nullopt;
  }
  const absl::Time now = timers_.Now();
  const bool up = std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.stream != nullptr && slot.stream->up;
  });
  if (!up && down_since_ == absl::InfiniteFuture()) down_since_ = now;
  if (!up && now - down_since_ >= options_.server_timeout) {
    lost = absl::UnavailableError(
        absl::StrCat(Name(), " has been unreachable for ",
                     absl::FormatDuration(absl::Trunc(now - down_since_, absl::Milliseconds(1))),
                     ": ", trouble_.message()));
    return std::nullopt;
  }
  Backoff& backoff = slots_[stream.slot].backoff;
  if (stream.malformed.ok() && stream.up && now - stream.opened > Backoff::kLongest) {
    backoff.Reset();
  }
  return stream.replaced ? absl::ZeroDuration() : backoff.Next();
}

void ServerLink::Stop() {
  std::vector<Unanswered::Message> dropped;  // destroyed last, without the lock
  std::vector<std::shared_ptr<DataStream>> streams;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    dropped = unanswered_.Clear();
    for (const Slot& slot : slots_) {
      if (slot.stream != nullptr && slot.stream->data != nullptr) {
        streams.push_back(slot.stream->data);
      }
    }
  }
  for (const std::shared_ptr<DataStream>& stream : streams) stream->Cancel();
}

void ServerLink::AwaitStopped() {
  {
    MutexLock lock(mutex_);
    while (open_streams_ > 0) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
  }
  if (options_.memory != nullptr) options_.memory->Stop();
}

absl::Status ServerLink::Trouble() const {
  MutexLock lock(mutex_);
  return trouble_;
}

}  // namespace syncgrads::client
