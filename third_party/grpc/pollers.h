// The threads that poll sockets for gRPC's callback API.
//
// There are half as many as processors, at least two, and each event that one of them
// takes wakes another one, which polls in its place. That costs more than a small message
// itself, and with as many processes as cores there is nobody for whom it would be worth it
// (docs/performance.md). gRPC has no setting for how many there are, so that those that are too
// many are kept in a callback.

#ifndef SYNCGRADS_THIRD_PARTY_GRPC_POLLERS_H_
#define SYNCGRADS_THIRD_PARTY_GRPC_POLLERS_H_

#include <cstdint>

namespace syncgrads {

// From here on at most `left` threads poll; 0: one for each four processors, at least one.
// For the main functions of our programs, once; a library does not decide this for its
// host. No callback may then wait for another one.
void ParkPollers(uint32_t left);

// Where the number was not given, all of them poll again, for good: payloads come over the
// network, and reading one takes longer than waking another thread. Thread-safe.
void UnparkPollers();

}  // namespace syncgrads

#endif  // SYNCGRADS_THIRD_PARTY_GRPC_POLLERS_H_
