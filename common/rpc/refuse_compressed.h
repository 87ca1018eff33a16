// Refuses compressed messages.

#ifndef SYNCGRADS_COMMON_RPC_REFUSE_COMPRESSED_H_
#define SYNCGRADS_COMMON_RPC_REFUSE_COMPRESSED_H_

#include <grpc/compression.h>
#include <grpcpp/server_builder.h>

namespace syncgrads {

// The server answers a compressed message with UNIMPLEMENTED before it is decompressed: a small
// message may become a very large one.
inline void RefuseCompressedMessages(grpc::ServerBuilder& builder) {
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
}

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_REFUSE_COMPRESSED_H_
