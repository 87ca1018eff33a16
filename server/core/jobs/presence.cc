#include "server/core/jobs/presence.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace syncgrads::server {

absl::Status Presence::AddStream(const std::shared_ptr<MemberStream>& stream) {
  MutexLock lock(mutex_);
  if (!closed_.ok()) return closed_;
  if (streams_.size() >= kMaxStreams) {
    return absl::ResourceExhaustedError(absl::StrCat("the member has ", streams_.size(),
                                                     " data streams to this server, the limit is ",
                                                     kMaxStreams));
  }
  streams_[stream.get()] = stream;
  return absl::OkStatus();
}

void Presence::RemoveStream(const MemberStream* stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
}

bool Presence::has_streams() const {
  MutexLock lock(mutex_);
  return !streams_.empty();
}

std::vector<std::shared_ptr<MemberStream>> Presence::Close(const absl::Status& reason) {
  std::vector<std::shared_ptr<MemberStream>> streams;
  MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = reason;
  for (const auto& [address, weak] : streams_) {
    if (std::shared_ptr<MemberStream> stream = weak.lock()) streams.push_back(std::move(stream));
  }
  streams_.clear();
  return streams;
}

void Presence::CutStreams(const absl::Status& reason) {
  for (const std::shared_ptr<MemberStream>& stream : Close(reason)) stream->Cut(reason);
}

void Presence::EndStreams(const absl::Status& reason) {
  for (const std::shared_ptr<MemberStream>& stream : Close(reason)) stream->End(reason);
}

}  // namespace syncgrads::server
