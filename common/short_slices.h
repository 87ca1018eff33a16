// Threads that others wait for.

#ifndef SYNCGRADS_COMMON_SHORT_SLICES_H_
#define SYNCGRADS_COMMON_SHORT_SLICES_H_

namespace syncgrads {

// Asks for short time slices for the calling thread. Linux (since 6.12) then lets it run as soon as
// it wakes, in place of a thread with longer slices, which may otherwise go on for milliseconds.
// Its share of processor time and its priority stay the same. For threads that handle a message and
// sleep again. Has no effect if the system does not support it or does not permit it, or on threads
// that are not scheduled by the default policy (SCHED_OTHER).
void AskForShortSlices();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SHORT_SLICES_H_
