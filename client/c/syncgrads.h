/* The client library for C, and for every language that calls C.
 *
 *   sg_client* client;
 *   sg_group* group;
 *   char why[SG_MESSAGE_SIZE];
 *   sg_open("coordinator: 'host:7000' job: 'line' rank: 0 world_size: 2", &client,
 *           why, sizeof why);
 *   sg_join(client, 60, why, sizeof why);
 *   sg_register(client, "name: 'model' rule { reduction: AVERAGE } "
 *                       "tensors { name: 'w' dtype: F32 shape: [3, 4] }",
 *               60, &group, why, sizeof why);
 *   for each step:
 *     sg_push(group, 0, gradient, sizeof gradient, mean, why, sizeof why);
 *     sg_wait_step(group, 60, NULL, 0, why, sizeof why);
 *   sg_end(group, 60, why, sizeof why);
 *   sg_leave(client, 60, why, sizeof why);
 *   sg_close(client);
 *
 * This header offers what client/client.h and client/api/group.h offer in C++. They describe each
 * operation in full, with its errors; here is what differs.
 *
 * Descriptions. The options of a client and the description of a group are texts in the protobuf
 * text format: of syncgrads.v1.ClientOptions (proto/client.proto) and syncgrads.v1.GroupSpec
 * (proto/types.proto). There are some forty fields, most callers set four, and a later version can
 * have more of them without a change of the functions and structs here. Text that cannot be parsed
 * is SG_INVALID_ARGUMENT, and the message has the position.
 *
 * Errors. A function that can fail returns an sg_code, SG_OK or an error, and writes the error's
 * message to `message`: at most `message_size` bytes with the terminating 0; a longer message is
 * cut. After SG_OK the message is empty. `message` may be NULL. The codes are those of gRPC, and
 * docs/errors.md describes what to do after each. Output parameters are written only with SG_OK,
 * unless the comment says otherwise. Pointers to outputs may be NULL, except those to handles.
 *
 * Waits. `timeout` is in seconds: not NaN; 0 or less polls; INFINITY waits without a deadline.
 * After SG_DEADLINE_EXCEEDED, a wait can be repeated.
 *
 * Memory. Handles belong to the library. Everything else belongs to the caller; the library keeps
 * no pointer to a text or to a struct after a call has returned. A buffer of elements that was
 * given to sg_push or sg_skip is in use until a wait for its tensor returns SG_OK, sg_restart_step
 * returns SG_OK, or sg_abandon has returned; one that was given to sg_start, until sg_finish
 * returns anything but SG_DEADLINE_EXCEEDED, or sg_abandon has returned; the state of
 * sg_register_state, until sg_close.
 *
 * Threads. All functions can be called on any thread, several at a time. Calls for one tensor in
 * one step must come from one thread. sg_close must be the last call for a client.
 *
 * The host program. The library changes nothing in its process: no signal handlers or masks, no
 * environment variables, no settings of malloc. It starts no thread before sg_open, and its threads
 * block all signals; some of gRPC's threads stay after the last sg_close. It prints nothing; only
 * gRPC may write a line to stderr. After fork, the child must not use the parent's clients: the
 * functions return SG_FAILED_PRECONDITION there, and sg_close does nothing.
 *
 * Versions. Symbols have the version SYNCGRADS_1. Within it, functions are only added, and structs
 * with a field `size` may grow at their end: the caller sets `size` to the struct's size as it was
 * compiled. Other structs never change.
 */

#ifndef SYNCGRADS_CLIENT_C_SYNCGRADS_H_
#define SYNCGRADS_CLIENT_C_SYNCGRADS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SG_API __attribute__((visibility("default")))
#else
#define SG_API
#endif

/* A size that is sufficient for most messages. */
#define SG_MESSAGE_SIZE 1024

/* One worker's membership in a job: syncgrads::Client. */
typedef struct sg_client sg_client;
/* A registered set of tensors that go through rounds together: syncgrads::Group. Valid as long as
 * its client. A tensor's id is its position in the group's description, from 0. */
typedef struct sg_group sg_group;
/* A collective operation in progress: syncgrads::Pending. */
typedef struct sg_pending sg_pending;
/* A snapshot of the state of an optimizer on the servers: syncgrads::OptimizerSnapshot. */
typedef struct sg_snapshot sg_snapshot;

typedef enum sg_code {
  SG_OK = 0,
  SG_CANCELLED = 1,
  SG_UNKNOWN = 2,
  SG_INVALID_ARGUMENT = 3,
  SG_DEADLINE_EXCEEDED = 4,
  SG_NOT_FOUND = 5,
  SG_ALREADY_EXISTS = 6,
  SG_PERMISSION_DENIED = 7,
  SG_RESOURCE_EXHAUSTED = 8,
  SG_FAILED_PRECONDITION = 9,
  SG_ABORTED = 10,
  SG_OUT_OF_RANGE = 11,
  SG_UNIMPLEMENTED = 12,
  SG_INTERNAL = 13,
  SG_UNAVAILABLE = 14,
  SG_DATA_LOSS = 15,
  SG_UNAUTHENTICATED = 16
} sg_code;

/* The numbers are those of syncgrads.v1.DType. */
typedef enum sg_dtype {
  SG_F64 = 1,
  SG_F32 = 2,
  SG_F16 = 3,
  SG_BF16 = 4,
  SG_I64 = 5,
  SG_I32 = 6
} sg_dtype;

/* The numbers are those of syncgrads.v1.Reduction. */
typedef enum sg_reduction {
  SG_AVERAGE = 1,
  SG_SUM = 2,
  SG_MIN = 3,
  SG_MAX = 4,
  SG_PRODUCT = 5
} sg_reduction;

/* How many members contributed to a tensor: syncgrads::Contributors. */
typedef struct sg_contributors {
  uint32_t least;
  uint32_t most;
  uint32_t left_out; /* 1: a part of this worker's contribution was not counted */
} sg_contributors;

/* An array with a name. `shape` has `axes` numbers; a scalar has none. */
typedef struct sg_tensor {
  const char* name;
  int32_t dtype; /* an sg_dtype */
  uint32_t axes;
  const int64_t* shape;
  void* data;
} sg_tensor;

/* --- Library ---------------------------------------------------------------------------------- */

/* The version of the library, such as "0.1.0". */
SG_API const char* sg_version(void);

/* The name of a code, such as "DEADLINE_EXCEEDED". "UNKNOWN" for other numbers. */
SG_API const char* sg_code_name(int code);

/* What a launcher has set in this process's environment: torchrun, mpirun, Slurm, Kubernetes
 * (client/placement/placement.h). -1: not known. `launcher` is "" if there is none. */
typedef struct sg_placement {
  size_t size;
  int64_t rank;
  int64_t world_size;
  int64_t local_rank;
  char launcher[32];
} sg_placement;
SG_API int sg_find_placement(sg_placement* placement, char* message, size_t message_size);

/* --- Membership ------------------------------------------------------------------------------- */

/* Makes a client. Does not connect. */
SG_API int sg_open(const char* options, sg_client** client, char* message, size_t message_size);

/* Joins the job, and waits until it has all its members. */
SG_API int sg_join(sg_client* client, double timeout, char* message, size_t message_size);

/* Leaves the job. Idempotent. */
SG_API int sg_leave(sg_client* client, double timeout, char* message, size_t message_size);

/* Aborts everything in progress, and returns when no buffer is in use. Waits in progress return
 * SG_CANCELLED; later calls fail. */
SG_API void sg_abandon(sg_client* client);

/* Abandons and frees the client, its groups, and the memory of sg_allocate_gradients. No other call
 * for the client may be in progress. Pending operations and snapshots must have been freed.
 * `client` may be NULL. */
SG_API void sg_close(sg_client* client);

/* SG_OK while the client is a member, or has not joined; otherwise why the membership is over. */
SG_API int sg_status(const sg_client* client, char* message, size_t message_size);

typedef struct sg_member {
  size_t size;
  uint32_t rank;
  uint32_t world_size;
  uint32_t newcomer; /* 1: it joined an elastic job that was running */
  char name[256];
} sg_member;
/* This worker in the newest epoch. */
SG_API int sg_get_member(const sg_client* client, sg_member* member, char* message,
                         size_t message_size);

/* Takes the next notice: a line of text about the transport of payloads, about autotune, or about a
 * codec that was replaced. At most 256 are kept; older ones are dropped. SG_NOT_FOUND if there is
 * none. A longer notice than `size` is cut. */
SG_API int sg_take_notice(sg_client* client, char* notice, size_t size);

/* 1 if a checkpoint has been requested since the last call, else 0. */
SG_API int sg_take_checkpoint_request(sg_client* client);

/* Reports the checkpoint that this worker has written after `step`. `code` is SG_OK, and `text` its
 * path; or `code` is the error, and `text` its message. Does not wait. */
SG_API int sg_report_checkpoint(sg_client* client, uint64_t step, int code, const char* text,
                                char* message, size_t message_size);

/* Reports what this worker has to show of its training, for `psctl status` and the servers' page.
 * `figures` is the text of a syncgrads.v1.TrainingFigures, and replaces the one before. Does not
 * wait. */
SG_API int sg_report_figures(sg_client* client, const char* figures, char* message,
                             size_t message_size);

/* Sets the factor by which the learning rates of the job are multiplied, as psctl set
 * learning-rate-factor does. Returns when every server uses it. One worker calls it, for all. */
SG_API int sg_set_learning_rate_factor(sg_client* client, double factor, double timeout,
                                       char* message, size_t message_size);

/* Allocates memory for gradients that servers on this host read in place. It is aligned to a page,
 * filled with zeros, and valid until sg_close. */
SG_API int sg_allocate_gradients(sg_client* client, size_t bytes, void** memory, char* message,
                                 size_t message_size);

/* --- Groups ----------------------------------------------------------------------------------- */

/* Registers a group. `spec` is the text of a syncgrads.v1.GroupSpec. A name that this client has
 * registered gives the same group. */
SG_API int sg_register(sg_client* client, const char* spec, double timeout, sg_group** group,
                       char* message, size_t message_size);

/* The id of a tensor. SG_NOT_FOUND if there is none of this name. */
SG_API int sg_find_tensor(const sg_group* group, const char* name, uint32_t* tensor, char* message,
                          size_t message_size);

/* The current step, and the number of steps that a quorum has closed without this worker. */
SG_API uint64_t sg_step(const sg_group* group);
SG_API uint64_t sg_steps_behind(const sg_group* group);

/* The factor by which the job's learning rates are multiplied in the step of the newest result that
 * sg_wait or sg_wait_step has returned; 1 before the first one. The same on all workers. If the
 * group has members_scale_rate, multiply the learning rate with which you apply the result. */
SG_API double sg_learning_rate_factor(const sg_group* group);

SG_API int sg_set_weight(sg_group* group, double weight, char* message, size_t message_size);
SG_API int sg_send_uncompressed(sg_group* group, char* message, size_t message_size);

/* In place of a result buffer: the result is not copied. sg_get_result and sg_use_results return
 * its address. */
#define SG_IN_PLACE ((void*)1)

/* Contributes `values` to this step and requests the result: in `result`, in place, or not at all
 * (NULL). `bytes` must be the size of the tensor. Does not wait. */
SG_API int sg_push(sg_group* group, uint32_t tensor, const void* values, size_t bytes, void* result,
                   char* message, size_t message_size);

/* Contributes nothing, and requests the result. */
SG_API int sg_skip(sg_group* group, uint32_t tensor, void* result, char* message,
                   size_t message_size);

/* Pushes or skips `count` tensors, in this order. values[i] is as large as tensor tensors[i]; NULL
 * skips it. `results` may be NULL, which requests no result. Stops at the first error: *done, which
 * may be NULL, is always set to the number of tensors that have been pushed or skipped. */
SG_API int sg_push_many(sg_group* group, const uint32_t* tensors, const void* const* values,
                        void* const* results, size_t count, size_t* done, char* message,
                        size_t message_size);

/* As sg_push_many, but first copies each tensor to `memory`, which is usually memory of
 * sg_allocate_gradients. values[i] is copied to memory[i], pushed from there, and replaced there by
 * the result. It is not used after the call, and may be memory[i]; NULL skips the tensor, whose
 * result is then written to memory[i]. A tensor that cannot be pushed is not copied. If `in_place`
 * is not 0, the results of tensors that are pushed are not written to `memory`, as with
 * SG_IN_PLACE. syncgrads::Group::CopyAndPush. */
SG_API int sg_copy_and_push_many(sg_group* group, const uint32_t* tensors,
                                 const void* const* values, void* const* memory, int in_place,
                                 size_t count, size_t* done, char* message, size_t message_size);

/* Waits until the tensor's result is in its buffer. */
SG_API int sg_wait(sg_group* group, uint32_t tensor, double timeout, sg_contributors* contributors,
                   char* message, size_t message_size);

/* Waits until the result of any tensor that was pushed or skipped in this step is in its buffer.
 * Reports each tensor once in a step, as soon as its result is there. *tensor is also set if the
 * tensor has failed: the error is then that of sg_wait, and sg_wait may be called for it.
 *
 * Errors:
 *   SG_DEADLINE_EXCEEDED  no result has arrived; *tensor is UINT32_MAX
 *   SG_NOT_FOUND          every tensor that was pushed or skipped has been reported; *tensor is
 *                         UINT32_MAX */
SG_API int sg_next_completion(sg_group* group, double timeout, uint32_t* tensor,
                              sg_contributors* contributors, char* message, size_t message_size);

/* Waits until every tensor of this step has its result, and begins the next step. `contributors` is
 * NULL, or has `count` elements, as many as the group has tensors. SG_OUT_OF_RANGE, only after
 * sg_end: no member has data left. */
SG_API int sg_wait_step(sg_group* group, double timeout, sg_contributors* contributors,
                        size_t count, char* message, size_t message_size);

/* 1 if sg_wait_step need not wait for answers, else 0. */
SG_API int sg_is_step_answered(const sg_group* group);

typedef struct sg_piece {
  const void* data;
  size_t bytes;
} sg_piece;
/* The newest result of a tensor that was pushed or skipped with SG_IN_PLACE. It is valid from a
 * wait for the tensor until it is pushed or skipped again. Sets *count to the number of pieces, and
 * writes the first `capacity` of them to `pieces`. */
SG_API int sg_get_result(const sg_group* group, uint32_t tensor, sg_piece* pieces, size_t capacity,
                         size_t* count, char* message, size_t message_size);

/* Lets the caller change the newest results of `count` tensors that were pushed or skipped with
 * SG_IN_PLACE. places[i] is memory as large as tensor tensors[i]. If the result lies in one piece
 * in memory shared with a server, places[i] becomes the address of that piece: a page that the
 * caller writes becomes its own copy. Otherwise the result is copied to places[i]; if nobody
 * contributed, nothing is. A result at its own address is valid until the tensor is pushed or
 * skipped again or the client leaves, and the address until sg_close. Each call takes back what
 * earlier calls have returned: changes of those results are lost. Call it once in a step, for all
 * tensors, after sg_wait_step. syncgrads::Group::UseResults. */
SG_API int sg_use_results(sg_group* group, const uint32_t* tensors, void** places, size_t count,
                          char* message, size_t message_size);

/* Declares that this worker has no more data. */
SG_API int sg_end(sg_group* group, double timeout, char* message, size_t message_size);

/* --- Elastic jobs, and groups of one epoch ---------------------------------------------------- */

/* Registers the state that newcomers need, which consists of `count` tensors. Sets *received to 1
 * if this worker is a newcomer and the state is now that of the others, else to 0. */
SG_API int sg_register_state(sg_group* group, const sg_tensor* state, size_t count, double timeout,
                             int* received, char* message, size_t message_size);

typedef struct sg_step_members {
  uint64_t epoch;
  uint32_t rank;
  uint32_t world_size;
} sg_step_members;
/* The members of the current step. */
SG_API int sg_begin_step(sg_group* group, sg_step_members* members, char* message,
                         size_t message_size);

/* Begins the current step again, with nothing pushed. */
SG_API int sg_restart_step(sg_group* group, double timeout, char* message, size_t message_size);

typedef struct sg_outcome {
  size_t size;
  uint64_t step;
  uint64_t epoch;
  uint32_t world_size;   /* the number of members of the step */
  uint32_t contributors; /* the number of ranks that were counted */
  uint32_t whole;        /* 1: each of them was counted in every chunk */
  /* The caller's arrays, or NULL with the capacity 0. `ranks` receives the ranks that were counted,
   * at most ranks_capacity of them. `names` receives the members' names in rank order, each
   * terminated by 0, as many as fit. */
  uint32_t ranks_capacity;
  uint32_t* ranks;
  char* names;
  size_t names_capacity;
} sg_outcome;
/* The outcome of the step that sg_wait_step ended last. */
SG_API int sg_last_step(const sg_group* group, double timeout, sg_outcome* outcome, char* message,
                        size_t message_size);

/* --- Optimizer on the servers ----------------------------------------------------------------- */

/* The state of the optimizer. `tensors` is the number of the group's tensors, and `slots` the
 * number of the optimizer's slots. values[t * slots + s] is slot s of tensor t, as large as the
 * tensor. updates[t] is the number of updates of tensor t. */
typedef struct sg_optimizer_state {
  size_t size;
  uint32_t tensors;
  uint32_t slots;
  void* const* values;
  uint64_t* updates;
} sg_optimizer_state;

/* The number of slots of the group's optimizer; 0 if it has none on the servers. */
SG_API uint32_t sg_optimizer_slots(const sg_group* group);

/* Takes a snapshot after the step that sg_wait_step ended last. `timeout` covers this call and
 * sg_read_snapshot together. A server discards a snapshot if none of it is read for 10 s (ps-server
 * --hello_timeout). The caller frees the snapshot. */
SG_API int sg_take_snapshot(sg_group* group, double timeout, sg_snapshot** snapshot, char* message,
                            size_t message_size);
/* Reads the snapshot into the buffers of `state`. May be called once. */
SG_API int sg_read_snapshot(sg_snapshot* snapshot, const sg_optimizer_state* state, char* message,
                            size_t message_size);
/* `snapshot` may be NULL. */
SG_API void sg_free_snapshot(sg_snapshot* snapshot);

/* Sets the initial parameters. `tensors` has one pointer for each tensor: the root's values become
 * the parameters, and every member receives them. The optimizer continues from the root's `state`,
 * which is copied; NULL: from zeros. The other members' `state` is ignored. */
SG_API int sg_broadcast_parameters(sg_group* group, uint32_t root, void* const* tensors,
                                   size_t count, const sg_optimizer_state* state, double timeout,
                                   char* message, size_t message_size);

/* --- Collectives ------------------------------------------------------------------------------ */

typedef enum sg_operation {
  SG_ALL_REDUCE = 1, /* input, output, elements, reduction; without an input: contributes nothing */
  SG_REDUCE = 2,     /* input, output at the root, elements, reduction, root */
  SG_BROADCAST = 3,  /* output, elements, root */
  SG_ALL_GATHER = 4, /* input, elements, output, output_elements */
  SG_BARRIER = 5     /* only the name */
} sg_operation;

/* A collective, with the fields that its operation uses. All members start it with the same name,
 * dtype and number of elements. For an all-reduce with another function, gather, and fold the
 * contributions in their order, which is that of the ranks. */
typedef struct sg_collective {
  size_t size;
  int32_t operation; /* an sg_operation */
  int32_t dtype;     /* an sg_dtype */
  int32_t reduction; /* an sg_reduction */
  uint32_t root;
  const char* name;
  const void* input;
  void* output;
  uint64_t elements;
  /* All-gather: the elements of the output. If these are fewer than world_size * elements, because
   * the world size has grown since the caller made the output: SG_INVALID_ARGUMENT. 0: as many. */
  uint64_t output_elements;
} sg_collective;

/* Starts an operation. The caller frees *pending. */
SG_API int sg_start(sg_client* client, const sg_collective* collective, sg_pending** pending,
                    char* message, size_t message_size);
/* 1 if sg_finish would return at once, else 0. */
SG_API int sg_is_ready(const sg_pending* pending);
/* Waits for the operation. Sets *contributors to the number of members that contributed. */
SG_API int sg_finish(sg_pending* pending, double timeout, uint32_t* contributors, char* message,
                     size_t message_size);
/* Frees the handle. An operation that is in progress continues. `pending` may be NULL. */
SG_API void sg_free_pending(sg_pending* pending);

/* Starts an operation and waits for it. After SG_DEADLINE_EXCEEDED the operation continues, and its
 * buffers are in use until sg_abandon has returned. */
SG_API int sg_run(sg_client* client, const sg_collective* collective, double timeout,
                  uint32_t* contributors, char* message, size_t message_size);

/* Starts a broadcast of several tensors in one operation. The caller frees *pending. */
SG_API int sg_start_broadcast_all(sg_client* client, const char* name, const sg_tensor* tensors,
                                  size_t count, uint32_t root, sg_pending** pending, char* message,
                                  size_t message_size);

/* Starts it and waits for it. The same holds after SG_DEADLINE_EXCEEDED as for sg_run. */
SG_API int sg_broadcast_all(sg_client* client, const char* name, const sg_tensor* tensors,
                            size_t count, uint32_t root, double timeout, char* message,
                            size_t message_size);

#ifdef __cplusplus
}
#endif

#endif /* SYNCGRADS_CLIENT_C_SYNCGRADS_H_ */
