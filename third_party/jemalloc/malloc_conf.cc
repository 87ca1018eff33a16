// The settings of jemalloc, which reads this variable when the program starts.
//
// Freed memory stays with the process for a while, because the next round's messages need it again.
// What is not used goes back to the kernel within ten seconds, little by little, also in a process
// that does nothing then: after a job, or after peers that have opened many streams. glibc's
// allocator cannot do that: malloc_trim leaves up to 64 MiB in each of its arenas, of which it has
// eight for each processor. After the misbehaviours of tests/fault, mimalloc 2.0 has kept four
// times as much as jemalloc.
//
// A thread keeps at most 2 to 8 small pieces of each size for itself, in place of 20 to 200: gRPC's
// threads keep theirs until they allocate again, also if they only wait from now on, and a single
// piece holds a whole slab. //tests/fault:misbehaviour_rows_test checks what a server keeps, and
// `./dev bench allreduce` shows no difference.
//
// The last two settings keep what large messages have freed: without them, pieces that have grown
// together to more than 8 MiB go back at once, and pieces of more than 64 times a request's size
// are not used for it.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf =
    "background_thread:true,dirty_decay_ms:10000,muzzy_decay_ms:0,"
    "tcache_nslots_small_min:2,tcache_nslots_small_max:8,"
    "oversize_threshold:0,lg_extent_max_active_fit:20";
}
