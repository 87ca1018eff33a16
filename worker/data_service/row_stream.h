// The call by which a worker gets its rows.

#ifndef SYNCGRADS_WORKER_DATA_SERVICE_ROW_STREAM_H_
#define SYNCGRADS_WORKER_DATA_SERVICE_ROW_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/served_data.grpc.pb.h"

namespace syncgrads {

// Asks are sent in their order, and answers come in the same one; they are kept until
// they are taken. Errors name the server.
//
// Thread-safe.
class RowStream : public grpc::ClientBidiReactor<v1::ServedDataRequest, v1::ServedDataReply> {
 public:
  // `timeout` is for each wait.
  RowStream(std::string address, absl::Duration timeout);
  // Ends the call, as both sides want it unless it has failed.
  ~RowStream() override;

  // Once, first. Errors: as ServedRows::Take.
  absl::StatusOr<v1::OpenedServedData> Open(const v1::OpenServedData& request);

  // Numbers count from 0.
  absl::StatusOr<uint64_t> Ask(v1::AskForRows ask);
  absl::StatusOr<v1::RowsAskedFor> Take(uint64_t number);
  void Forget(uint64_t number);

 private:
  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  void Send(v1::ServedDataRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps an answer. False if it is none that was due.
  bool Keep(v1::ServedDataReply reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why there will be no more answers.
  absl::Status Failure() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TimedOut(absl::string_view awaited) const;

  const std::string address_;
  const absl::Duration timeout_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::ServedData::Stub> stub_;
  grpc::ClientContext context_;
  v1::ServedDataReply reply_;  // that is being read

  Mutex mutex_;
  CondVar changed_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  // Nothing more may be written: the hold on the call has been given up.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the server has said so
  std::optional<grpc::Status> done_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::ServedDataRequest> to_write_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::OpenedServedData> opened_ ABSL_GUARDED_BY(mutex_);
  uint64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, v1::RowsAskedFor> answers_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> forgotten_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_DATA_SERVICE_ROW_STREAM_H_
