/* A worker of a job, in C11: what tests/client/c/c_test.cc runs as one rank of several.
 *
 *   worker SCENARIO COORDINATOR JOB RANK WORLD_SIZE
 *
 * Exits with 0 if everything was as expected. Otherwise prints the line and the error, and exits
 * with 1. */

#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/c/syncgrads.h"

/* The timeout of every wait that is expected to end, in seconds. */
static const double kTimeout = 120;

static char why[SG_MESSAGE_SIZE];
#define WHY why, sizeof why

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "%s:%d: %s is false; message: %s\n", __FILE__, __LINE__, #condition, \
              why);                                                                        \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)
#define OK(call)                                                                              \
  do {                                                                                        \
    const int returned = (call);                                                              \
    if (returned != SG_OK) {                                                                  \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, sg_code_name(returned), \
              why);                                                                           \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)

static const char* coordinator;
static const char* job;
static uint32_t rank, world_size;

static sg_client* Open(const char* more) {
  char options[1024];
  snprintf(options, sizeof options,
           "coordinator: '%s' job: '%s' name: 'w%u' rank: %u world_size: %u %s", coordinator, job,
           rank, rank, world_size, more);
  sg_client* client = NULL;
  OK(sg_open(options, &client, WHY));
  return client;
}

static sg_client* Join(const char* more) {
  sg_client* client = Open(more);
  OK(sg_join(client, kTimeout, WHY));
  return client;
}

static sg_group* Register(sg_client* client, const char* spec) {
  sg_group* group = NULL;
  OK(sg_register(client, spec, kTimeout, &group, WHY));
  return group;
}

static const char kTwoTensors[] =
    "name: 'model' rule { reduction: SUM } chunk_bytes: 8"
    " tensors { name: 'v' dtype: F32 shape: 2 } tensors { name: 'w' dtype: F32 shape: [1, 2] }";

/* Pushes, skips, completions, results in place, weights, the outcome of a step, the end of data. */
static void Steps(void) {
  sg_client* client = Join("");
  sg_member member = {.size = sizeof member};
  OK(sg_get_member(client, &member, WHY));
  char name[16];
  snprintf(name, sizeof name, "w%u", rank);
  CHECK(member.rank == rank && member.world_size == world_size && !member.newcomer);
  CHECK(strcmp(member.name, name) == 0);
  OK(sg_status(client, WHY));

  sg_group* group = Register(client, kTwoTensors);
  CHECK(Register(client, kTwoTensors) == group);
  uint32_t w = 9;
  OK(sg_find_tensor(group, "w", &w, WHY));
  CHECK(w == 1);
  CHECK(sg_step(group) == 1 && sg_steps_behind(group) == 0 && sg_learning_rate_factor(group) == 1);
  CHECK(sg_optimizer_slots(group) == 0);

  /* Step 1: two tensors in memory that servers read in place. */
  void* memory = NULL;
  OK(sg_allocate_gradients(client, 4 * sizeof(float), &memory, WHY));
  float* gradients = memory;
  CHECK(gradients[3] == 0);
  for (int i = 0; i < 4; ++i) gradients[i] = (float)(i + 1) * (float)(rank + 1);
  const uint32_t ids[] = {1, 0};
  const void* const values[] = {gradients + 2, gradients};
  float v_sum[2] = {0}, w_sum[2] = {0};
  void* const results[] = {w_sum, v_sum};
  size_t done = 0;
  OK(sg_push_many(group, ids, values, results, 2, &done, WHY));
  CHECK(done == 2);
  int reported[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    uint32_t tensor = 9;
    sg_contributors counted = {0};
    OK(sg_next_completion(group, kTimeout, &tensor, &counted, WHY));
    CHECK(tensor < 2 && counted.least == world_size && counted.most == world_size);
    ++reported[tensor];
  }
  CHECK(reported[0] == 1 && reported[1] == 1);
  uint32_t none = 0;
  CHECK(sg_next_completion(group, 0, &none, NULL, WHY) == SG_NOT_FOUND && none == UINT32_MAX);
  CHECK(sg_is_step_answered(group) == 1);
  const float ranks = (float)(world_size * (world_size + 1) / 2); /* 1 + 2 + … */
  CHECK(v_sum[0] == 1 * ranks && v_sum[1] == 2 * ranks);
  CHECK(w_sum[0] == 3 * ranks && w_sum[1] == 4 * ranks);
  sg_contributors counted[2];
  OK(sg_wait_step(group, kTimeout, counted, 2, WHY));
  CHECK(counted[1].most == world_size && !counted[1].left_out);

  uint32_t who[8];
  char names[256];
  sg_outcome outcome = {.size = sizeof outcome,
                        .ranks = who,
                        .ranks_capacity = 8,
                        .names = names,
                        .names_capacity = sizeof names};
  OK(sg_last_step(group, kTimeout, &outcome, WHY));
  CHECK(outcome.step == 1 && outcome.world_size == world_size && outcome.whole);
  CHECK(outcome.contributors == world_size && who[1] == 1);
  CHECK(strcmp(names, "w0") == 0 && strcmp(names + 3, "w1") == 0);

  /* Step 2: only rank 0 contributes; the result stays where it arrived. */
  OK(sg_set_weight(group, 2, WHY));
  const void* const some[] = {rank == 0 ? gradients + 2 : NULL, rank == 0 ? gradients : NULL};
  void* const in_place[] = {SG_IN_PLACE, SG_IN_PLACE};
  OK(sg_push_many(group, ids, some, in_place, 2, NULL, WHY));
  sg_contributors one = {0};
  OK(sg_wait(group, 0, kTimeout, &one, WHY));
  CHECK(one.most == 1);
  sg_piece pieces[2];
  size_t count = 0;
  OK(sg_get_result(group, 0, pieces, 2, &count, WHY));
  CHECK(count == 1 && pieces[0].bytes == 8 && ((const float*)pieces[0].data)[1] == 2);
  OK(sg_wait_step(group, kTimeout, NULL, 0, WHY));
  CHECK(sg_step(group) == 3);

  /* Step 3: the tensors are copied, so that they can be changed; not if they have been pushed. */
  const sg_collective pushed = {.size = sizeof pushed, .operation = SG_BARRIER, .name = "pushed"};
  if (rank != 0) OK(sg_run(client, &pushed, kTimeout, NULL, WHY));
  float own[4] = {1, 2, 3, 4};
  const void* const sources[] = {own + 2, own};
  void* const copies[] = {gradients + 2, gradients};
  OK(sg_copy_and_push_many(group, ids, sources, copies, 0, 2, &done, WHY));
  CHECK(done == 2);
  for (int i = 0; i < 4; ++i) own[i] = -1;
  CHECK(sg_copy_and_push_many(group, ids, sources, copies, 0, 2, &done, WHY) ==
        SG_FAILED_PRECONDITION);
  CHECK(done == 0 && strstr(why, "\"w\" has been pushed"));
  if (rank == 0) {
    CHECK(gradients[0] == 1 && gradients[3] == 4);
    OK(sg_run(client, &pushed, kTimeout, NULL, WHY));
  }
  OK(sg_wait_step(group, kTimeout, NULL, 0, WHY));
  for (int i = 0; i < 4; ++i) CHECK(gradients[i] == (float)((i + 1) * (int)world_size));

  /* Step 4: a tensor that is copied already, and one that rank 0 skips. */
  gradients[0] = 5;
  const void* const parts[] = {rank == 0 ? NULL : own, gradients};
  OK(sg_copy_and_push_many(group, ids, parts, copies, 0, 2, NULL, WHY));
  OK(sg_wait_step(group, kTimeout, NULL, 0, WHY));
  CHECK(gradients[0] == 5 * (float)world_size && gradients[2] == -(float)(world_size - 1));

  /* Step 5: results that are changed where they are. They are the caller's own. */
  const void* const again[] = {own, own + 2};
  OK(sg_copy_and_push_many(group, ids, again, copies, 1, 2, NULL, WHY));
  OK(sg_wait_step(group, kTimeout, NULL, 0, WHY));
  void* places[] = {w_sum, v_sum};
  OK(sg_use_results(group, ids, places, 2, WHY));
  for (int i = 0; i < 2; ++i) {
    float* const used = places[i];
    CHECK(used[0] == -(float)world_size && used[1] == -(float)world_size);
    used[1] = 7;
    CHECK(used[1] == 7);
  }
  CHECK(gradients[0] == -1 && gradients[3] == -1);
  places[1] = NULL;
  CHECK(sg_use_results(group, ids, places, 2, WHY) == SG_INVALID_ARGUMENT && strstr(why, "\"v\""));

  /* All ends: the next step does not exist. */
  OK(sg_end(group, kTimeout, WHY));
  OK(sg_skip(group, 0, NULL, WHY));
  OK(sg_skip(group, 1, NULL, WHY));
  CHECK(sg_wait_step(group, kTimeout, NULL, 0, WHY) == SG_OUT_OF_RANGE);
  OK(sg_leave(client, kTimeout, WHY));
  OK(sg_leave(client, kTimeout, WHY));
  sg_close(client);
}

/* Every error has its code, and a message that names what is wrong. */
static void Errors(void) {
  sg_client* client = NULL;
  CHECK(sg_open("coordinator: 'x' wrold_size: 2", &client, WHY) == SG_INVALID_ARGUMENT);
  CHECK(strstr(why, "1:28: ") && strstr(why, "wrold_size"));
  CHECK(sg_open("coordinator: 'x'", &client, WHY) == SG_INVALID_ARGUMENT && strstr(why, "job"));
  CHECK(sg_open(NULL, &client, WHY) == SG_INVALID_ARGUMENT);
  CHECK(sg_open("coordinator: 'x' job: 'j'", NULL, NULL, 0) == SG_INVALID_ARGUMENT);
  CHECK(sg_join(NULL, 1, WHY) == SG_INVALID_ARGUMENT);
  char small[8];
  CHECK(sg_open("", &client, small, sizeof small) == SG_INVALID_ARGUMENT);
  CHECK(strcmp(small, "the opt") == 0);
  CHECK(strcmp(sg_code_name(SG_DATA_LOSS), "DATA_LOSS") == 0);
  CHECK(strcmp(sg_code_name(99), "UNKNOWN") == 0);
  CHECK(sg_version()[0] != 0);

  client = Open("");
  sg_group* group = NULL;
  CHECK(sg_register(client, kTwoTensors, 1, &group, WHY) == SG_FAILED_PRECONDITION);
  CHECK(sg_join(client, (double)NAN, WHY) == SG_INVALID_ARGUMENT);
  OK(sg_join(client, INFINITY, WHY));
  CHECK(why[0] == 0);
  CHECK(sg_join(client, 1, WHY) == SG_FAILED_PRECONDITION);
  CHECK(sg_register(client, "name: 'm' tensors { dtype: F23 }", 1, &group, WHY) ==
        SG_INVALID_ARGUMENT);
  CHECK(strstr(why, "F23"));
  CHECK(sg_register(client, "name: 'm'", 1, &group, WHY) == SG_INVALID_ARGUMENT);

  group = Register(client, kTwoTensors);
  float values[2] = {1, 2};
  CHECK(sg_push(group, 0, values, 4, NULL, WHY) == SG_INVALID_ARGUMENT && strstr(why, "\"v\""));
  CHECK(sg_push(group, 7, values, 8, NULL, WHY) == SG_INVALID_ARGUMENT);
  CHECK(sg_push(group, 0, NULL, 8, NULL, WHY) == SG_INVALID_ARGUMENT);
  const uint32_t ids[] = {0, 2};
  const void* const pointers[] = {values, values};
  size_t done = 9;
  CHECK(sg_push_many(group, ids, pointers, NULL, 2, &done, WHY) == SG_INVALID_ARGUMENT);
  CHECK(done == 1 && strstr(why, "tensor 2"));
  CHECK(sg_push(group, 0, values, 8, NULL, WHY) == SG_FAILED_PRECONDITION);
  CHECK(sg_copy_and_push_many(group, ids + 1, pointers, NULL, 0, 1, &done, WHY) ==
        SG_INVALID_ARGUMENT);
  CHECK(done == 0 && strstr(why, "memory"));
  sg_contributors counted[1];
  CHECK(sg_wait_step(group, 0, counted, 1, WHY) == SG_INVALID_ARGUMENT);
  CHECK(sg_wait_step(group, 1, NULL, 0, WHY) == SG_FAILED_PRECONDITION && strstr(why, "\"w\""));
  uint32_t tensor = 0;
  CHECK(sg_find_tensor(group, "x", &tensor, WHY) == SG_NOT_FOUND);
  sg_snapshot* snapshot = NULL;
  CHECK(sg_take_snapshot(group, 1, &snapshot, WHY) == SG_INVALID_ARGUMENT);

  /* Only this rank contributes, so the wait names the others. */
  sg_collective reduce = {.size = sizeof reduce, .operation = SG_ALL_REDUCE, .name = "x",
                          .dtype = 99};
  CHECK(sg_run(client, &reduce, 1, NULL, WHY) == SG_INVALID_ARGUMENT && strstr(why, "99"));
  reduce.size = 0;
  CHECK(sg_run(client, &reduce, 1, NULL, WHY) == SG_INVALID_ARGUMENT);
  sg_member member = {.size = 0};
  CHECK(sg_get_member(client, &member, WHY) == SG_INVALID_ARGUMENT);

  sg_abandon(client);
  CHECK(sg_push(group, 1, values, 8, NULL, WHY) != SG_OK);
  sg_close(client);
  sg_close(NULL);
}

static sg_collective Collective(sg_operation operation, const char* name, const double* input,
                                double* output, uint64_t elements) {
  sg_collective collective = {.size = sizeof collective,
                              .operation = operation,
                              .dtype = SG_F64,
                              .reduction = SG_SUM,
                              .root = 1,
                              .name = name,
                              .input = input,
                              .output = output,
                              .elements = elements};
  return collective;
}

static void Collectives(void) {
  sg_client* client = Join("shared_memory: false unix_socket: false");
  double in[2] = {rank + 1.0, 10}, out[8] = {0};
  uint32_t count = 0;
  sg_collective all_reduce = Collective(SG_ALL_REDUCE, "sum", in, out, 2);
  OK(sg_run(client, &all_reduce, kTimeout, &count, WHY));
  CHECK(count == world_size && out[0] == world_size * (world_size + 1) / 2.0);
  all_reduce.input = rank == 0 ? in : NULL;
  OK(sg_run(client, &all_reduce, kTimeout, &count, WHY));
  CHECK(count == 1 && out[0] == 1);

  sg_collective reduce = Collective(SG_REDUCE, "to 1", in, rank == 1 ? out : NULL, 2);
  reduce.reduction = SG_MAX;
  OK(sg_run(client, &reduce, kTimeout, NULL, WHY));
  CHECK(out[0] == (rank == 1 ? world_size : 1));

  out[0] = rank;
  const sg_collective broadcast = Collective(SG_BROADCAST, "one", NULL, out, 1);
  OK(sg_run(client, &broadcast, kTimeout, NULL, WHY));
  CHECK(out[0] == 1);

  /* A gather and a barrier at the same time. */
  sg_collective gather = Collective(SG_ALL_GATHER, "all", in, out, 2);
  const sg_collective barrier = Collective(SG_BARRIER, "here", NULL, NULL, 0);
  sg_pending *gathers = NULL, *meets = NULL;
  gather.output_elements = 2 * world_size - 1;
  CHECK(sg_start(client, &gather, &gathers, WHY) == SG_INVALID_ARGUMENT);
  gather.output_elements = 2 * world_size;
  OK(sg_start(client, &gather, &gathers, WHY));
  OK(sg_start(client, &barrier, &meets, WHY));
  OK(sg_finish(gathers, kTimeout, &count, WHY));
  CHECK(count == world_size && out[0] == 1 && out[2] == 2 && out[3] == 10);
  OK(sg_finish(meets, kTimeout, NULL, WHY));
  CHECK(sg_is_ready(meets) == 1);
  sg_free_pending(gathers);
  sg_free_pending(meets);
  sg_free_pending(NULL);

  float weights[3] = {rank + 0.5f, 1, 2};
  int64_t step = rank;
  const int64_t shape[] = {3};
  const sg_tensor tensors[] = {{"w", SG_F32, 1, shape, weights}, {"step", SG_I64, 0, NULL, &step}};
  OK(sg_broadcast_all(client, "initial", tensors, 2, 0, kTimeout, WHY));
  CHECK(weights[0] == 0.5f && step == 0);
  step = rank;
  sg_pending* copies = NULL;
  OK(sg_start_broadcast_all(client, "later", tensors, 2, 1, &copies, WHY));
  OK(sg_finish(copies, kTimeout, NULL, WHY));
  CHECK(step == 1);
  sg_free_pending(copies);
  CHECK(sg_start_broadcast_all(client, NULL, tensors, 2, 1, &copies, WHY) == SG_INVALID_ARGUMENT);

  int notices = 0;
  char line[512];
  while (sg_take_notice(client, line, sizeof line) == SG_OK) {
    CHECK(strstr(line, "TCP"));
    ++notices;
  }
  CHECK(notices > 0);
  CHECK(sg_take_checkpoint_request(client) == 0);
  OK(sg_report_checkpoint(client, 3, SG_OK, "/tmp/checkpoint", WHY));
  OK(sg_report_figures(client, "step: 3 loss: 0.5 device: 'cpu' times { wait_us: 1500 }", WHY));
  OK(sg_leave(client, kTimeout, WHY));
  sg_close(client);
}

/* Momentum on the servers: the state is read, and restored in a second job. */
static void Optimizer(void) {
  static const char kSpec[] =
      "name: 'model' rule { optimizer { momentum { learning_rate: 0.5 momentum: 0.5 } } }"
      " tensors { name: 'w' dtype: F32 shape: 2 }";
  sg_client* client = Join("");
  sg_group* group = Register(client, kSpec);
  CHECK(sg_optimizer_slots(group) == 1);
  float w[2] = {rank == 0 ? 8.0f : -1.0f, 0};
  void* const parameters[] = {w};
  OK(sg_broadcast_parameters(group, 0, parameters, 1, NULL, kTimeout, WHY));
  CHECK(w[0] == 8);
  const float gradient[2] = {2, 4};
  OK(sg_push(group, 0, gradient, sizeof gradient, w, WHY));
  OK(sg_wait_step(group, kTimeout, NULL, 0, WHY));
  CHECK(w[0] == 7 && w[1] == -2);

  sg_snapshot* snapshot = NULL;
  OK(sg_take_snapshot(group, kTimeout, &snapshot, WHY));
  float velocity[2] = {0};
  void* const slots[] = {velocity};
  uint64_t updates[1] = {0};
  sg_optimizer_state state = {sizeof state, 1, 1, slots, updates};
  OK(sg_read_snapshot(snapshot, &state, WHY));
  sg_free_snapshot(snapshot);
  CHECK(velocity[1] == 0.5f * 4 && updates[0] == 1);
  OK(sg_leave(client, kTimeout, WHY));
  sg_close(client);

  job = "resumed";
  client = Join("");
  group = Register(client, kSpec);
  state.slots = 2;
  CHECK(sg_broadcast_parameters(group, 0, parameters, 1, &state, 1, WHY) == SG_INVALID_ARGUMENT);
  state.slots = 1;
  OK(sg_broadcast_parameters(group, 0, parameters, 1, rank == 0 ? &state : NULL, kTimeout, WHY));
  OK(sg_push(group, 0, gradient, sizeof gradient, w, WHY));
  OK(sg_wait_step(group, kTimeout, NULL, 0, WHY));
  CHECK(w[0] == 7 - 0.5f * 3); /* the velocity was 0.5 * 2 */

  CHECK(sg_set_learning_rate_factor(client, 0, kTimeout, WHY) == SG_INVALID_ARGUMENT);
  if (rank == 0) OK(sg_set_learning_rate_factor(client, 2, kTimeout, WHY));
  const sg_collective barrier = Collective(SG_BARRIER, "the factor is set", NULL, NULL, 0);
  OK(sg_run(client, &barrier, kTimeout, NULL, WHY));
  OK(sg_push(group, 0, gradient, sizeof gradient, w, WHY));
  OK(sg_wait_step(group, kTimeout, NULL, 0, WHY));
  CHECK(w[0] == 5.5f - (0.5f * 1.5f + 2 * 0.5f * 2) && sg_learning_rate_factor(group) == 2);
  OK(sg_leave(client, kTimeout, WHY));
  sg_close(client);
}

/* Rank 0 begins an elastic job; the other ranks join it while it runs. */
static void Elastic(void) {
  static const char kSpec[] =
      "name: 'model' rule { reduction: SUM } one_epoch: true"
      " tensors { name: 'w' dtype: F32 }";
  const uint32_t members = world_size;
  world_size = 1;
  sg_client* client = Join("max_workers: 4");
  sg_group* group = Register(client, kSpec);
  float w = 0;
  int64_t steps = 0;
  const sg_tensor state[] = {{"w", SG_F32, 0, NULL, &w}, {"steps", SG_I64, 0, NULL, &steps}};
  int received = -1;
  OK(sg_register_state(group, state, 2, kTimeout, &received, WHY));
  sg_member member = {.size = sizeof member};
  OK(sg_get_member(client, &member, WHY));
  CHECK(received == (int)member.newcomer);
  CHECK(received == (rank == 0 ? 0 : 1));
  CHECK((uint64_t)steps + 1 == sg_step(group));
  printf("rank %u has begun\n", rank);
  fflush(stdout);

  /* One more step after all are members. */
  for (int together = 0; together < 2;) {
    sg_step_members step = {0};
    OK(sg_begin_step(group, &step, WHY));
    const float one = 1;
    float sum = 0;
    OK(sg_push(group, 0, &one, sizeof one, &sum, WHY));
    const int code = sg_wait_step(group, kTimeout, NULL, 0, WHY);
    if (code == SG_ABORTED) {
      OK(sg_restart_step(group, kTimeout, WHY));
      continue;
    }
    OK(code);
    CHECK(sum == step.world_size);
    w += sum;
    ++steps;
    if (step.world_size == members) ++together;
  }
  printf("w %.0f after %lld steps\n", w, (long long)steps);
  fflush(stdout);
  OK(sg_end(group, kTimeout, WHY));
  OK(sg_leave(client, kTimeout, WHY));
  sg_close(client);
}

static void OnSignal(int number) { (void)number; }

static int OpenDescriptors(void) {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) ++count;
  }
  return count;
}

/* gRPC closes the descriptors of a closed connection a moment later, on its own threads. */
static void AwaitDescriptors(int most) {
  time_t deadline = time(NULL) + (time_t)kTimeout;
  const struct timespec pause = {.tv_nsec = 1000000};
  while (OpenDescriptors() > most && time(NULL) < deadline) nanosleep(&pause, NULL);
  CHECK(OpenDescriptors() <= most);
}

/* The number of other threads of this process. Each of them blocks SIGTERM. */
static int OtherThreads(void) {
  int threads = 0;
  DIR* tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  for (struct dirent* task; (task = readdir(tasks)) != NULL;) {
    if (task->d_name[0] == '.' || atoi(task->d_name) == getpid()) continue;
    char path[300], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
    FILE* status = fopen(path, "r");
    if (status == NULL) continue; /* the thread has ended */
    unsigned long long blocked = 0;
    int of_process = 0;
    while (fgets(line, sizeof line, status) != NULL) {
      if (strncmp(line, "Threads:", 8) == 0) of_process = atoi(line + 8);
      if (strncmp(line, "SigBlk:", 7) == 0) blocked = strtoull(line + 7, NULL, 16);
    }
    fclose(status);
    /* The kernel writes zeros if the thread has ended since its status was opened. */
    if (of_process == 0) continue;
    CHECK(blocked & (1ull << (SIGTERM - 1)));
    ++threads;
  }
  closedir(tasks);
  return threads;
}

static void* Wait(void* group) {
  char reason[SG_MESSAGE_SIZE];
  const int code = sg_wait_step(group, kTimeout, NULL, 0, reason, sizeof reason);
  return (void*)(intptr_t)code;
}

/* The library leaves its process as it was. */
static void Host(void) {
  struct sigaction action = {.sa_handler = OnSignal}, actions[32] = {0}, now;
  CHECK(sigaction(SIGPIPE, &action, NULL) == 0);
  for (int number = 1; number < 32; ++number) sigaction(number, NULL, &actions[number]);
  sigset_t mask, mask_now;
  CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0);
  static char jobs[5][32];
  int before = 0;
  for (int round = 0; round < 5; ++round) {
    sg_client* client = Join("");
    sg_group* group = Register(client, kTwoTensors);
    float values[2] = {1, 2};
    OK(sg_push(group, 0, values, 8, values, WHY));
    OK(sg_push(group, 1, values, 8, NULL, WHY));
    OK(sg_wait_step(group, kTimeout, NULL, 0, WHY));

    CHECK(OtherThreads() > 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      char reason[SG_MESSAGE_SIZE] = "";
      const int code = sg_push(group, 0, values, 8, NULL, reason, sizeof reason);
      sg_close(client);
      _exit(code == SG_FAILED_PRECONDITION && strstr(reason, "forked") ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    /* The last client abandons a wait in progress; the others leave. */
    if (round == 4) {
      OK(sg_push(group, 0, values, 8, NULL, WHY));
      if (rank == 0) OK(sg_skip(group, 1, NULL, WHY));
      pthread_t waiting;
      if (rank == 0) CHECK(pthread_create(&waiting, NULL, Wait, group) == 0);
      sg_abandon(client);
      void* code = NULL;
      if (rank == 0) CHECK(pthread_join(waiting, &code) == 0 && (intptr_t)code != SG_OK);
    } else {
      OK(sg_leave(client, kTimeout, WHY));
    }
    sg_close(client);
    if (round == 1) before = OpenDescriptors();
    if (round == 3) AwaitDescriptors(before);
    snprintf(jobs[round], sizeof jobs[round], "%s%d", job, round);
    job = jobs[round];
  }
  for (int number = 1; number < 32; ++number) {
    CHECK(sigaction(number, NULL, &now) == 0 && now.sa_handler == actions[number].sa_handler);
  }
  CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask_now) == 0);
  for (int number = 1; number < 32; ++number) {
    CHECK(sigismember(&mask, number) == sigismember(&mask_now, number));
  }
}

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  coordinator = argv[2];
  job = argv[3];
  rank = (uint32_t)atoi(argv[4]);
  world_size = (uint32_t)atoi(argv[5]);
  static const struct {
    const char* name;
    void (*run)(void);
  } kScenarios[] = {{"steps", Steps},         {"errors", Errors},   {"collectives", Collectives},
                    {"optimizer", Optimizer}, {"elastic", Elastic}, {"host", Host}};
  for (size_t s = 0; s < sizeof kScenarios / sizeof kScenarios[0]; ++s) {
    if (strcmp(argv[1], kScenarios[s].name) != 0) continue;
    kScenarios[s].run();
    return 0;
  }
  return 2;
}
