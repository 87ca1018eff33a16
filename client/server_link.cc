#include "client/server_link.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace syncgrads::client {

// One attempt at a stream. What is not constant is guarded by the link's lock.
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
  const std::string socket;          // a unix socket, that it goes to; empty: TCP
  std::shared_ptr<DataStream> data;  // null once closed
  bool up = false;                   // the hello has been written
  bool writing = false;
  size_t taken = 0;    // of the window, by what is being written
  bool heard = false;  // something was received; for OnReceived and OnClosed, which take turns
  bool answered = false;
  bool replaced = false;   // by one that goes another way
  absl::Status malformed;  // why it was cancelled
};

ServerLink::ServerLink(Options options, Transport& transport, Timers& timers)
    : options_(std::move(options)),
      transport_(transport),
      timers_(timers),
      slots_(std::max(1, options_.connections)),
      wanted_(slots_.size()) {}

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
  // The server is told no host, and says nothing of ways.
  if (options_.hello.host_id.empty()) {
    OnRefused(options_.memory == nullptr && !options_.unix_socket
                  ? "this worker takes no other way"
                  : "this worker does not know which host it is on");
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
      // One that is still being closed opens again when it has been.
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
      socket.empty() ? options_.address : absl::StrCat("unix-abstract:", socket), stream);
  {
    MutexLock lock(mutex_);
    if (stopped_ || lost_) return;  // it has not been started, and goes away
    if (slot >= wanted_ || slots_[slot].stream != nullptr) return;
    stream->data = data;
    stream->writing = true;
    slots_[slot].stream = stream;
    ++open_streams_;
  }
  PushHeader header;
  header.hello = options_.hello;
  data->Start();
  data->Write(
      std::make_shared<const OutgoingMessage>(EncodeHeader(header, 0), Pieces(), nullptr, nullptr));
}

void ServerLink::EnqueueLocked(const ChunkKey& key, Entry& entry) {
  entry.stream = nullptr;
  queue_.emplace(Place(ToNumber(key.chunk), entry.sequence), key);
}

void ServerLink::Send(const ChunkKey& key, uint64_t made_in,
                      std::shared_ptr<const OutgoingMessage> message) {
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    Entry& entry = entries_[key];
    entry.message.swap(message);
    entry.made_in = made_in;
    entry.sequence = next_sequence_++;
    EnqueueLocked(key, entry);
  }
  Pump();
}

void ServerLink::Forget(const ChunkKey& key) {
  Entry forgotten;
  MutexLock lock(mutex_);
  auto found = entries_.find(key);
  if (found == entries_.end()) return;
  forgotten = std::move(found->second);
  queue_.erase(Place(ToNumber(key.chunk), forgotten.sequence));
  entries_.erase(found);
}

void ServerLink::Enqueue(const ChunkKey& key) {
  {
    MutexLock lock(mutex_);
    auto found = entries_.find(key);
    if (found == entries_.end() || found->second.stream != nullptr) return;
    EnqueueLocked(key, found->second);
  }
  Pump();
}

void ServerLink::Pump() {
  while (true) {
    std::shared_ptr<DataStream> data;
    std::shared_ptr<const OutgoingMessage> form;
    {
      MutexLock lock(mutex_);
      if (queue_.empty()) return;
      Stream* idle = nullptr;
      for (size_t slot = 0; slot < wanted_ && idle == nullptr; ++slot) {
        Stream* const stream = slots_[slot].stream.get();
        if (stream != nullptr && stream->up && !stream->writing && stream->malformed.ok()) {
          idle = stream;
        }
      }
      if (idle == nullptr) return;
      Entry& entry = entries_.at(queue_.begin()->second);
      form = FormOf(entry.message);
      const size_t bytes = TotalBytes(form->payload());
      if (!options_.window->Take(shared_from_this(), bytes)) return;
      queue_.erase(queue_.begin());
      entry.stream = idle;
      idle->writing = true;
      idle->taken = bytes;
      data = idle->data;
    }
    data->Write(std::move(form));
  }
}

std::shared_ptr<const OutgoingMessage> ServerLink::FormOf(
    std::shared_ptr<const OutgoingMessage> message) const {
  const std::optional<OutgoingMessage::ByReference>& reference = message->by_reference();
  if (options_.memory == nullptr || !reference.has_value()) return message;
  for (uint32_t region : reference->regions) {
    if (!options_.memory->Has(region)) return message;
  }
  // Holds the message as long as the transport holds the reference to it.
  return std::make_shared<const OutgoingMessage>(reference->header, Pieces(), nullptr,
                                                 [message] { (void)message; });
}

absl::Status ServerLink::Resolve(UpdateFrame& update, std::shared_ptr<const void>& memory) const {
  const SharedPiece& piece = *update.header.shared;
  std::shared_ptr<const PeerRegion> results;
  if (options_.memory != nullptr) results = options_.memory->Results(GroupId{piece.region});
  if (results == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a result of group ", piece.region, " in shared memory, which is not mapped"));
  }
  const size_t size = results->bytes().size();
  if (piece.offset > size || piece.length > size - piece.offset) {
    return absl::InvalidArgumentError(absl::StrCat("a result of ", piece.length, " bytes at ",
                                                   piece.offset, " of ", size, " shared bytes"));
  }
  update.payload.clear();
  update.payload.push_back(results->bytes().subspan(piece.offset, piece.length));
  memory = std::move(results);
  return absl::OkStatus();
}

void ServerLink::OnWelcome(const DataWelcome& welcome) {
  Change([&] { path_.OnNamed(options_.unix_socket ? welcome.stream : ""); });
  if (options_.memory != nullptr) {
    options_.memory->OnWelcome(welcome);
  } else {
    OnRefused("this worker shares no memory");
  }
}

void ServerLink::OnShared(const std::string& socket) {
  Change([&] { path_.OnShared(socket); });
}

void ServerLink::OnRefused(const std::string& reason) {
  Change([&] { path_.OnRefused(reason); });
}

void ServerLink::Change(absl::FunctionRef<void()> event) {
  std::optional<std::string> line;
  std::vector<std::shared_ptr<DataStream>> replaced;
  {
    MutexLock lock(mutex_);
    if (stopped_ || lost_) return;
    const bool was_shared = path_.is_shared();
    event();
    line = path_.TakeLine();
    // What was described, and has not been answered, is to be sent whole.
    const bool all = was_shared && !path_.is_shared();
    for (const Slot& slot : slots_) {
      Stream* const stream = slot.stream.get();
      if (stream == nullptr || (stream->socket == path_.socket() && !all)) continue;
      // What went out on it and has not been answered goes again on the next.
      stream->replaced = true;
      stream->malformed = absl::UnavailableError("payloads take another way from now on");
      replaced.push_back(stream->data);
    }
  }
  for (const std::shared_ptr<DataStream>& stream : replaced) stream->Cancel();
  Say(line);
}

void ServerLink::Say(const std::optional<std::string>& line) const {
  if (line.has_value() && options_.on_path) options_.on_path(*line);
}

void ServerLink::OnWritten(Stream* stream) {
  size_t taken;
  {
    MutexLock lock(mutex_);
    stream->writing = false;
    taken = std::exchange(stream->taken, 0);
    if (!stream->up) {
      stream->up = true;
      down_since_ = absl::InfiniteFuture();
      trouble_ = absl::OkStatus();
    }
  }
  // The others first, if they wait.
  options_.window->GiveBack(taken);
  Pump();
}

void ServerLink::OnReceived(Stream* stream, ReceivedMessage message) {
  absl::StatusOr<UpdateFrame> update = DecodeUpdate(message.bytes);
  absl::Status status = update.status();
  if (status.ok()) {
    if (!std::exchange(stream->heard, true)) Change([&] { path_.OnHeard(stream->socket); });
    if (update->header.welcome.has_value()) return OnWelcome(*update->header.welcome);
  }
  if (status.ok() && update->header.shared.has_value()) {
    status = Resolve(*update, message.memory);
  }
  std::shared_ptr<DataStream> cancelled;
  Entry entry;
  if (status.ok()) {
    const UpdateHeader& header = update->header;
    const ChunkKey key{header.group, header.chunk, header.round};
    {
      MutexLock lock(mutex_);
      stream->answered = true;
      if (!stream->malformed.ok()) return;
      auto found = entries_.find(key);
      // Answered before, on this stream or another; or of no interest any more.
      if (found == entries_.end()) return;
      // Said again, of an attempt before this one.
      if (!header.error.ok() && header.epoch > 0 && header.epoch < found->second.made_in) return;
      if (absl::IsUnavailable(header.error)) {
        if (found->second.stream == nullptr) return;
        found->second.stream = nullptr;
        trouble_ = header.error;
        timers_.After(slots_[stream->slot].backoff.Next(), [weak = weak_from_this(), key] {
          if (auto self = weak.lock()) self->Enqueue(key);
        });
        return;
      }
      slots_[stream->slot].backoff.Reset();
      queue_.erase(Place(ToNumber(key.chunk), found->second.sequence));
      entry = std::move(found->second);
      entries_.erase(found);
    }
    status = options_.on_update(*update, std::move(message.memory));
    if (!status.ok()) {
      // It goes back to where it was, and out again on another stream.
      MutexLock lock(mutex_);
      if (!stopped_) {
        EnqueueLocked(key, entry);
        std::swap(entries_[key], entry);
      }
    }
  }
  if (!status.ok()) {
    MutexLock lock(mutex_);
    stream->malformed = absl::UnavailableError(
        absl::StrCat("server ", ToNumber(options_.server), " at ", options_.address,
                     " sent what is no answer: ", status.message()));
    cancelled = stream->data;
  }
  if (cancelled != nullptr) cancelled->Cancel();
  // `entry` goes last: letting go of the contribution completes its chunk.
}

void ServerLink::OnClosed(Stream* stream, absl::Status status) {
  std::shared_ptr<Stream> self;  // the last thing to go, outside of the lock
  std::shared_ptr<DataStream> data;
  std::optional<absl::Duration> retry;
  absl::Status lost;
  std::optional<std::string> line;
  size_t taken;
  {
    MutexLock lock(mutex_);
    self = stream->shared_from_this();
    taken = std::exchange(stream->taken, 0);
    data = std::move(stream->data);
    stream->data = nullptr;
    Slot& slot = slots_[stream->slot];
    if (slot.stream == self) slot.stream = nullptr;
    for (auto& [key, entry] : entries_) {
      if (entry.stream == stream) EnqueueLocked(key, entry);
    }
    if (!stream->malformed.ok()) status = stream->malformed;
    const absl::Time now = timers_.Now();
    // A unix socket that is not the server's may say anything.
    const bool out_of_reach = !stream->socket.empty() && !stream->heard;
    const bool worth_it = out_of_reach || IsWorthAnotherAttempt(status);
    if (!stopped_ && !lost_ && stream->slot < wanted_) {
      path_.OnClosed(stream->socket,
                     out_of_reach ? std::optional<absl::Status>(status) : std::nullopt);
      line = path_.TakeLine();
      trouble_ = status.ok() ? absl::UnavailableError("the server closed the stream") : status;
      bool up = false;
      for (const Slot& other : slots_) up = up || (other.stream != nullptr && other.stream->up);
      if (!up && down_since_ == absl::InfiniteFuture()) down_since_ = now;
      const std::string name =
          absl::StrCat("server ", ToNumber(options_.server), " at ", options_.address);
      if (!worth_it) {
        lost = absl::Status(status.code(),
                            absl::StrCat(name, " refuses this worker: ", status.message()));
      } else if (!up && now - down_since_ >= options_.lease) {
        lost = absl::UnavailableError(absl::StrCat(
            name, " has been out of reach for ",
            absl::FormatDuration(absl::Trunc(now - down_since_, absl::Milliseconds(1))), ": ",
            trouble_.message()));
      } else {
        if (stream->malformed.ok() && stream->up && now - stream->opened > Backoff::kLongest) {
          slot.backoff.Reset();
        }
        retry = stream->replaced ? absl::ZeroDuration() : slot.backoff.Next();
      }
      lost_ = !lost.ok();
    }
  }
  Say(line);
  if (retry.has_value()) {
    timers_.After(*retry, [weak = weak_from_this(), slot = stream->slot] {
      if (auto link = weak.lock()) link->Connect(slot);
    });
  }
  options_.window->GiveBack(taken);
  if (!lost.ok()) options_.on_lost(lost);
  // With the stream its connection goes, and with that the messages it holds.
  data = nullptr;
  Pump();
  MutexLock lock(mutex_);
  --open_streams_;
  changed_.NotifyAll();
}

void ServerLink::Stop() {
  std::map<ChunkKey, Entry> entries;
  std::vector<std::shared_ptr<DataStream>> streams;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    entries.swap(entries_);
    queue_.clear();
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
