// Stands in for ps-server and ps-worker in the tests of ps-launch. It prints its arguments to
// stderr and then does what they request:
//
//    --index=K  a server: prints that it listens, and waits for SIGTERM or SIGUSR1
//    --rank=R   a worker: ends with exit code 0
//    --act=WHO:ACTION[:NUMBER]  server "sK" or worker "wR" does this instead:
//      exit:N         ends with exit code N; a server does not listen first
//      raise:N        kills itself with signal N
//      raise_once:N   kills itself with signal N; after a restart (--only_running) ends with 0
//      wait           prints its pid and waits for a signal
//      wait_for:N     waits for a signal, and ends with exit code N on SIGTERM or SIGUSR1
//      stubborn       prints its pid and waits, but ignores SIGTERM
//      draw           draws the same line several times with \r, and ends it
//      unfinished     ends without a newline after its last line

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

namespace {

// Returns the rest of the first argument that starts with `flag`, or "" if there is none.
std::string Find(int argc, char** argv, const std::string& flag) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind(flag, 0) == 0) return arg.substr(flag.size());
  }
  return "";
}

int exit_code_on_signal = 0;

void WaitForSignal() {
  for (const int number : {SIGTERM, SIGUSR1}) {
    signal(number, [](int) { _exit(exit_code_on_signal); });
  }
  printf("waits, pid %d\n", getpid());
  for (;;) pause();
}

int Act(const std::string& action, int number) {
  if (action == "exit") return number;
  if (action == "raise") return raise(number);
  exit_code_on_signal = number;
  if (action == "wait" || action == "wait_for") WaitForSignal();
  if (action == "stubborn") {
    signal(SIGTERM, SIG_IGN);
    printf("waits, pid %d\n", getpid());
    for (;;) pause();
  }
  if (action == "draw") {
    for (int step = 1; step <= 3; ++step) {
      printf("\r%s step %d\x1b[K", isatty(1) ? "bar" : "pipe", step);
    }
    printf("\n");
  }
  if (action == "unfinished") printf("no line end");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IONBF, 0);
  const std::string index = Find(argc, argv, "--index=");
  const std::string who = index.empty() ? "w" + Find(argc, argv, "--rank=") : "s" + index;
  std::string all;
  for (int i = 1; i < argc; ++i) all += std::string(" ") + argv[i];
  fprintf(stderr, "arguments:%s\n", all.c_str());

  const std::string act = Find(argc, argv, "--act=" + who + ":");
  const bool fails_to_start = !index.empty() && act.rfind("exit", 0) == 0;
  if (!index.empty() && !fails_to_start) {
    printf("ps-server %s listening on 0.0.0.0:%d\n", index.c_str(), 4000 + atoi(index.c_str()));
  }
  if (act.empty()) {
    if (!index.empty()) WaitForSignal();
    return 0;
  }
  if (act.rfind("raise_once", 0) == 0) {
    bool again = false;
    for (int i = 1; i < argc; ++i) again = again || argv[i] == std::string("--only_running");
    if (again) return 0;
    raise(atoi(act.substr(act.find(':') + 1).c_str()));
  }
  const size_t colon = act.find(':');
  return Act(act.substr(0, colon),
             colon == std::string::npos ? 0 : atoi(act.substr(colon + 1).c_str()));
}
