// The call that a DuplexStream belongs to: one of gRPC, or a local stream.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_STREAM_CALL_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_STREAM_CALL_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <memory>

namespace syncgrads::server {

// What is reported to the stream, without locks. Reports of one kind come one at a time; OnDone is
// the last one. None comes from within a call of StreamCall's functions.
class StreamCallEvents {
 public:
  virtual ~StreamCallEvents() = default;
  // A message was read. `ok` is false if there are no more.
  virtual void OnReadDone(bool ok) = 0;
  // A message was written. `ok` is false if it was not.
  virtual void OnWriteDone(bool ok) = 0;
  // The call is over.
  virtual void OnDone() = 0;
};

// Thread-safe, as far as gRPC's reactors are: one Read and one Write at a time.
class StreamCall {
 public:
  virtual ~StreamCall() = default;

  // Begins. The call keeps `events` until it is over. Call it once, first.
  virtual void Begin(std::shared_ptr<StreamCallEvents> events) = 0;
  // Reads the next message into `message`. OnReadDone follows.
  virtual void Read(grpc::ByteBuffer* message) = 0;
  // Writes `message`, which must stay valid until it is written. Returns true if it is written;
  // otherwise OnWriteDone follows.
  virtual bool Write(const grpc::ByteBuffer* message) = 0;
  // Ends the call with `status`, after the messages that were written. Call it once; the call is
  // over only after that, or after OnReadDone(false).
  virtual void Finish(const grpc::Status& status) = 0;
  // Ends the call at once; the peer receives `status`, unless the call has ended with another one.
  // May be called when the call is over.
  virtual void Cancel(const grpc::Status& status) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_STREAM_CALL_H_
