// The gRPC stream on which a worker receives its rows.

#ifndef SYNCGRADS_WORKER_DATA_SERVICE_ROW_STREAM_H_
#define SYNCGRADS_WORKER_DATA_SERVICE_ROW_STREAM_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/rpc/credentials.h"
#include "common/rpc/grpc_reaper.h"
#include "proto/served_data.pb.h"

namespace syncgrads {

// Sends requests in order and receives the answers in the same order. An answer is kept until
// Take. Errors name the server.
//
// The server need not be trusted. Besides the errors that the methods list, all of them return:
//   DataLoss           a message is malformed or compressed, has too many parts, or is out of order
//   ResourceExhausted  a message has more bytes than permitted
//
// Thread-safe.
class RowStream {
 public:
  // The maximum size of a received message: a batch of 256 MiB and the texts about rows that were
  // left out, or the targets and weights of 32 million rows.
  static constexpr int kMostReplyBytes = 512 << 20;

  // `timeout` limits each wait.
  RowStream(std::string address, absl::Duration timeout, const ChannelSecurity& security,
            int most_reply_bytes = kMostReplyBytes);
  // Ends the call. If all requests have been answered, waits a short time for the server's end
  // message; otherwise cancels the call.
  ~RowStream();

  // Opens the rows. Must be called once, before all other methods. Errors: those of
  // ServedRows::Take.
  absl::StatusOr<v1::OpenedServedData> Open(const v1::OpenServedData& request);

  // As in ServedRows: Ask sends a request and returns its number, counted from 0; Take waits for
  // the answer; Forget drops it.
  absl::StatusOr<uint64_t> Ask(v1::AskForRows ask);
  absl::StatusOr<v1::RowsAskedFor> Take(uint64_t number);
  void Forget(uint64_t number);

 private:
  class Call;

  // Handles a received message, on a thread of gRPC. Returns false if it is refused.
  bool OnReply(grpc::ByteBuffer& message);
  void OnOver(const grpc::Status& status);

  // Stores a received message. Returns false if it was not expected.
  bool Keep(v1::ServedDataReply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the error of a call that has ended.
  absl::Status Failure() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TimedOut(absl::string_view awaited) const;

  const std::string address_;
  const absl::Duration timeout_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::TemplatedGenericStub<v1::ServedDataRequest, grpc::ByteBuffer> stub_;

  Mutex mutex_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the end message has been received
  // Why a received message was refused.
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  std::optional<grpc::Status> done_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::OpenedServedData> opened_ ABSL_GUARDED_BY(mutex_);
  uint64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, v1::RowsAskedFor> answers_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> forgotten_ ABSL_GUARDED_BY(mutex_);
  // Null before Open.
  std::shared_ptr<Call> call_;
  // Destroyed first, because it waits for the end of the call, which uses all other members.
  GrpcReaper reaper_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SERVICE_ROW_STREAM_H_
