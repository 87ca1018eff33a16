// Limits the number of threads that poll sockets for gRPC's callback API.
//
// gRPC starts half as many as there are processors, at least two and at most 16. Whenever one of
// them takes an event, it wakes another one, which polls in its place. For a small message, this
// costs more than the message itself, and if there are as many processes as cores, no core is free
// to gain from it (docs/performance.md). gRPC has no setting for the number of these threads. The
// surplus threads are therefore parked: each is blocked in a callback.

#ifndef SYNCGRADS_THIRD_PARTY_GRPC_POLLERS_H_
#define SYNCGRADS_THIRD_PARTY_GRPC_POLLERS_H_

#include <cstdint>

namespace syncgrads {

// Returns the number of polling threads of a machine with `processors` if none is parked.
uint32_t MostPollers(uint32_t processors);
// Returns the number of threads that poll after SetPollers(0): one for each four processors, at
// least one, at most MostPollers.
uint32_t FewPollers(uint32_t processors);
// The same for this machine.
uint32_t MostPollers();
uint32_t FewPollers();

// From now on, `count` threads poll, but at most MostPollers(); 0 stands for FewPollers().
// Callbacks must then not wait for other callbacks. This function is for the main functions of our
// programs: a library must not make this decision for its host program. Thread-safe.
void SetPollers(uint32_t count);

// If the last call of SetPollers had the count 0, unparks all threads; otherwise does nothing.
// Called when payloads arrive over the network, because reading one takes longer than waking a
// thread. Thread-safe.
void UnparkPollers();

// Unparks all threads until ParkPollers is called. For the time in which one peer may keep a thread
// busy, because the other peers would wait for that thread. Does nothing if the last call of
// SetPollers had another count than 0, or UnparkPollers was called since. Thread-safe.
void UnparkPollersForNow();
// Parks the threads that UnparkPollersForNow has unparked, under the same conditions. Thread-safe.
void ParkPollers();

}  // namespace syncgrads

#endif  // SYNCGRADS_THIRD_PARTY_GRPC_POLLERS_H_
