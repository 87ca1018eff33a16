// One connection of the HTTP server. Used by http_server.cc only.

#ifndef SYNCGRADS_COMMON_HTTP_HTTP_CONNECTION_H_
#define SYNCGRADS_COMMON_HTTP_HTTP_CONNECTION_H_

#include <httplib.h>
#include <openssl/ssl.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/file_descriptor.h"

namespace syncgrads {

struct TlsDeleter {
  void operator()(SSL* connection) const { SSL_free(connection); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using TlsConnection = std::unique_ptr<SSL, TlsDeleter>;
using TlsContext = std::unique_ptr<SSL_CTX, TlsDeleter>;

// A connection from its acceptance to its end. At first its request arrives, and no call blocks:
// Receive is called each time that the socket is ready. Then the library reads the request from
// memory, and writes its answer, which blocks.
//
// Not thread-safe.
class HttpConnection : public httplib::Stream {
 public:
  enum class Arrival {
    kGoesOn,  // more has to arrive
    kEnded,   // the library can answer: the request is complete, is too long, or was cut off
    kFailed,  // nothing can be answered
  };

  // `socket` must be non-blocking. Plain text if `tls` is null. `deadline` is that of the request.
  HttpConnection(FileDescriptor socket, TlsConnection tls, absl::Time deadline);
  // Ends the connection.
  ~HttpConnection() override;
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Receives what is there of the TLS handshake and of the request.
  Arrival Receive();
  // Whether Receive may have to compute for the TLS handshake.
  bool is_handshaking() const { return tls_ != nullptr && SSL_in_init(tls_.get()) != 0; }
  // The network of the peer; see NetworkOf.
  const std::string& network() const { return network_; }
  // What Receive waits for, an event of poll().
  short awaited() const { return awaited_; }
  // When the request must have arrived.
  absl::Time deadline() const { return deadline_; }
  // The path in the first line of a request that has arrived, as it was sent, without a query.
  // Empty if the method is neither GET nor HEAD. Valid until this object is destroyed.
  absl::string_view path() const;

  // Sets when the answer must have been written.
  void SetAnswerDeadline(absl::Time deadline) { answer_deadline_ = deadline; }
  // Null for plain text.
  const SSL* tls() const { return tls_.get(); }

  // Of httplib::Stream. Reading ends after what has been received. Writing fails if the peer takes
  // no byte for two seconds, and after the deadline of the answer.
  bool is_readable() const override { return read_ < received_.size(); }
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_.get(); }

 private:
  // Read and write without blocking. Return the number of bytes, which is 0 at the end of the
  // connection and after an error; nullopt, and set awaited_, if the socket is not ready.
  std::optional<size_t> ReadReady(char* data, size_t size);
  std::optional<size_t> WriteReady(const char* data, size_t size);
  // Returns until when the peer must take a byte.
  absl::Time WriteDeadline() const;
  // Returns whether `result` of a function of OpenSSL means that the socket is not ready.
  bool IsNotReady(int result);
  // Returns whether the request is complete. The first `known` bytes were not a complete request.
  bool IsComplete(size_t known);
  // Called when all lines before `end` have arrived. Returns the size of the body that is waited
  // for, and hides headers from the library that it does not handle safely.
  size_t PrepareHead(size_t end);

  const FileDescriptor socket_;
  const std::string network_;
  const TlsConnection tls_;
  const absl::Time deadline_;
  absl::Time answer_deadline_ = absl::InfiniteFuture();
  short awaited_;
  std::string received_;
  // The size of the whole request; nullopt until its head is complete.
  std::optional<size_t> request_size_;
  // The number of bytes that the library has read.
  size_t read_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_HTTP_HTTP_CONNECTION_H_
