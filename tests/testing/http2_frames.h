// Frames of HTTP/2 (RFC 9113) as no library would send them.

#ifndef SYNCGRADS_TESTS_TESTING_HTTP2_FRAMES_H_
#define SYNCGRADS_TESTS_TESTING_HTTP2_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace syncgrads::testing {

// Section 4.1.
inline std::string Http2Frame(char type, char flags, uint32_t stream, const std::string& payload) {
  const auto byte = [](size_t number, int shift) { return static_cast<char>(number >> shift); };
  return std::string{byte(payload.size(), 16),
                     byte(payload.size(), 8),
                     byte(payload.size(), 0),
                     type,
                     flags,
                     byte(stream, 24),
                     byte(stream, 16),
                     byte(stream, 8),
                     byte(stream, 0)} +
         payload;
}

// Begins a connection. The server's settings, such as its limit of streams, bind a peer only when
// it has acknowledged them.
inline std::string Http2Preface() {
  constexpr char kSettings = 4;
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Http2Frame(kSettings, 0, 0, "");
}

// Begins a call of gRPC. All calls of a connection have the same path. The first, stream 1, adds
// the fields to the table that the peers share, and the others name its entries, so that they are
// short (RFC 7541, sections 6.1 and 6.2.1 and appendix A).
inline std::string Http2Call(uint32_t stream, const std::string& path) {
  constexpr char kHeaders = 1, kEndHeaders = 4;
  const auto text = [](const std::string& value) {
    return static_cast<char>(value.size()) + value;
  };
  const std::string post_over_http = "\x83\x86";
  const std::string first = "\x44" + text(path) + "\x41" + text("server") + "\x5f" +
                            text("application/grpc") + "\x40" + text("te") + text("trailers");
  const std::string later = "\xc1\xc0\xbf\xbe";
  return Http2Frame(kHeaders, kEndHeaders, stream, post_over_http + (stream == 1 ? first : later));
}

inline std::string Http2Reset(uint32_t stream) {
  constexpr char kReset = 3;
  const std::string cancel("\0\0\0\x08", 4);
  return Http2Frame(kReset, 0, stream, cancel);
}

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_HTTP2_FRAMES_H_
