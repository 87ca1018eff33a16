#include "server/service/calls/request_call.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"

namespace syncgrads::server {

RequestCall::RequestCall(grpc::CallbackServerContext* context, OpenConnections& connections,
                         StreamDeadlines& deadlines, const Answer& answer)
    : context_(*context), call_(context, connections), deadlines_(deadlines), answer_(answer) {}

RequestCall* RequestCall::Begin(grpc::CallbackServerContext* context, OpenConnections& connections,
                                StreamDeadlines& deadlines, const Answer& answer) {
  const std::shared_ptr<RequestCall> call(new RequestCall(context, connections, deadlines, answer));
  call->self_ = call;
  call->deadline_ = deadlines.AddWithoutHello(call);
  call->StartRead(&call->incoming_);
  return call.get();
}

void RequestCall::SetEvents(std::shared_ptr<Events> events) {
  {
    MutexLock lock(mutex_);
    events_ = events;
    if (!is_cancelled_) return;
  }
  events->OnCancel();
}

void RequestCall::OnReadDone(bool ok) {
  state_ = State::kAnswers;
  deadlines_.Remove(this, deadline_);
  if (ok) return answer_(*this, incoming_);
  End(absl::InvalidArgumentError("the call ended without a request"));
}

void RequestCall::OnTimeout(absl::Duration time) {
  switch (state_) {
    case State::kAwaitsRequest:
      return Cancel(
          {grpc::StatusCode::DEADLINE_EXCEEDED,
           absl::StrCat("no complete request has arrived within ", absl::FormatDuration(time))});
    case State::kAnswers:
      return;
    case State::kAnswered:
      return Cancel({grpc::StatusCode::DEADLINE_EXCEEDED,
                     absl::StrCat("the answer was not read within ", absl::FormatDuration(time))});
  }
}

void RequestCall::Serialize(const google::protobuf::MessageLite& answer) {
  using Writer = grpc::ProtoBufferWriter;
  outgoing_.Clear();
  bool own_buffer;
  const grpc::Status made = grpc::GenericSerialize<Writer, google::protobuf::MessageLite>(
      answer, &outgoing_, &own_buffer);
  if (made.ok()) return;
  Cancel(made);
  const grpc::Slice nothing;
  outgoing_ = grpc::ByteBuffer(&nothing, 1);
}

void RequestCall::Write(const google::protobuf::MessageLite& answer) {
  Serialize(answer);
  StartWrite(&outgoing_);
}

void RequestCall::EndWith(const google::protobuf::MessageLite& answer) {
  state_ = State::kAnswered;
  deadline_ = deadlines_.Add(shared_from_this());
  Serialize(answer);
  StartWriteAndFinish(&outgoing_, {}, grpc::Status::OK);
}

void RequestCall::End(const absl::Status& status) { Finish(ToGrpc(status)); }

void RequestCall::OnWriteDone(bool ok) {
  if (const std::shared_ptr<Events> events = TheEvents()) events->OnWriteDone(ok);
}

void RequestCall::OnCancel() {
  std::shared_ptr<Events> events;
  {
    MutexLock lock(mutex_);
    is_cancelled_ = true;
    events = events_;
  }
  if (events != nullptr) events->OnCancel();
}

void RequestCall::OnDone() {
  call_.Done();
  deadlines_.Remove(this, deadline_);
  // Destroyed last, and without the lock.
  const std::shared_ptr<RequestCall> self = std::move(self_);
  const std::shared_ptr<const void> kept = std::move(kept_);
  std::shared_ptr<Events> events;
  {
    MutexLock lock(mutex_);
    events = std::move(events_);
    events_ = nullptr;
  }
  if (events != nullptr) events->OnDone();
}

std::shared_ptr<RequestCall::Events> RequestCall::TheEvents() {
  MutexLock lock(mutex_);
  return events_;
}

}  // namespace syncgrads::server
