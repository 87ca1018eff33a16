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

// How many there are where none is kept.
uint32_t MostPollers();
// How many poll if 0 is asked for: one for each four processors, at least one.
uint32_t FewPollers();

// From here on `count` threads poll, or all; 0: FewPollers. No callback may then wait for
// another one. For the main functions of our programs; a library does not decide this for
// its host. Thread-safe.
void SetPollers(uint32_t count);

// Where SetPollers was last told 0, all of them poll again: payloads come over the
// network, and reading one takes longer than waking another thread. Thread-safe.
void UnparkPollers();

}  // namespace syncgrads

#endif  // SYNCGRADS_THIRD_PARTY_GRPC_POLLERS_H_
