// The settings of jemalloc, which reads this variable when the program starts.
//
// Freed memory stays with the process for a while, because the next round's messages need it again.
// What was not used for five seconds goes back to the kernel, also in a process that does nothing
// then: after a job, or after peers that have opened many streams. glibc's allocator cannot do that:
// malloc_trim leaves up to 64 MiB in each of its arenas, of which it has eight for each processor.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "background_thread:true,dirty_decay_ms:5000,muzzy_decay_ms:0";
}
