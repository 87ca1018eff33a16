/* What a trainer in C needs of the installed client library: joins a job and adds numbers up.
 *
 *   trainer HOST:PORT RANK WORLD_SIZE
 */

#include <stdio.h>
#include <stdlib.h>
#include <syncgrads.h>

static const double kTimeout = 60;

static void Check(int code, const char* message) {
  if (code == SG_OK) return;
  fprintf(stderr, "%s: %s\n", sg_code_name(code), message);
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  char options[512], why[SG_MESSAGE_SIZE];
  snprintf(options, sizeof options, "coordinator: '%s' job: 'c' rank: %s world_size: %s", argv[1],
           argv[2], argv[3]);
  sg_client* client;
  Check(sg_open(options, &client, why, sizeof why), why);
  Check(sg_join(client, kTimeout, why, sizeof why), why);
  float value = 1 + atoi(argv[2]), sum = 0;
  const sg_collective collective = {.size = sizeof collective,
                                    .operation = SG_ALL_REDUCE,
                                    .dtype = SG_F32,
                                    .reduction = SG_SUM,
                                    .name = "sum",
                                    .input = &value,
                                    .output = &sum,
                                    .elements = 1};
  Check(sg_run(client, &collective, kTimeout, NULL, why, sizeof why), why);
  Check(sg_leave(client, kTimeout, why, sizeof why), why);
  sg_close(client);
  printf("sum %g, syncgrads %s\n", sum, sg_version());
  return 0;
}
