// What a test tells the doubles to do wrong, and what they tell the test.
//
// DDPSTEP_DOUBLE_FAULT is a list of faults separated by semicolons, each a list of key=value separated by commas:
//
//     rank=1,call=ncclAllReduce,nth=3,do=hang
//
//   rank   the rank that fails; without it, every rank. A process knows its rank from DDPSTEP_DOUBLE_RANK or from its
//          launcher's variable; a call on a communicator is of that communicator's rank.
//   call   the function, as it is exported
//   nth    the which-th call of it in this process, from 1 on; "nth=3+" is the third and all later ones; without it,
//          every call
//   do     code:N    return N without doing anything         oom     the same with the code for out of memory, 2
//          hang      the work that the call starts never ends (of a call that starts none: it never returns)
//          block     the call itself never returns            delay:N sleep N milliseconds first
//          async:N   (NCCL) the work never ends, and the communicator reports N as its asynchronous error
//          lie       (NCCL) one bit of this rank's result is wrong
//          kill, stop, exit:N   the process gets SIGKILL or SIGSTOP, or ends with N
//
// DDPSTEP_DOUBLE_LOG names a file to which each line of note() is appended at once, so that it survives a kill.
#ifndef DDPSTEP_DOUBLE_FAULT_H
#define DDPSTEP_DOUBLE_FAULT_H

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace ddpstep {

inline int env_int(const char *name, int otherwise) {
  const char *s = getenv(name);
  return s && *s ? atoi(s) : otherwise;
}

inline int process_rank() {
  for (const char *name : {"DDPSTEP_DOUBLE_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (int r = env_int(name, -1); r >= 0) return r;
  }
  return -1;
}

inline void note(const char *format, ...) {
  const char *path = getenv("DDPSTEP_DOUBLE_LOG");
  if (!path || !*path) return;
  char line[512];
  int n = snprintf(line, sizeof line, "pid=%d ", getpid());
  va_list args;
  va_start(args, format);
  n += vsnprintf(line + n, sizeof line - n - 2, format, args);
  va_end(args);
  if (n > (int)sizeof line - 2) n = sizeof line - 2;
  line[n++] = '\n';
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, line, n) != n) perror(path);
  if (fd >= 0) close(fd);
}

[[noreturn]] inline void forever() {
  for (;;) pause();
}

struct Fault {
  std::string todo;  // "", "code", "hang", "async" or "lie": what the caller has to see to
  int value = 0;
};

struct Rule {
  int rank = -1, nth = 0;
  bool onwards = false;
  std::string call;
  Fault fault;
};

inline const std::vector<Rule> &rules() {
  static const std::vector<Rule> *all = [] {
    auto *list = new std::vector<Rule>;
    const char *env = getenv("DDPSTEP_DOUBLE_FAULT");
    std::stringstream text(env ? env : "");
    for (std::string item; std::getline(text, item, ';');) {
      if (item.empty()) continue;
      Rule rule;
      std::stringstream fields(item);
      for (std::string field; std::getline(fields, field, ',');) {
        size_t eq = field.find('=');
        std::string key = field.substr(0, eq), value = eq == std::string::npos ? "" : field.substr(eq + 1);
        if (key == "rank") {
          rule.rank = std::stoi(value);
        } else if (key == "call") {
          rule.call = value;
        } else if (key == "nth") {
          rule.onwards = value.back() == '+';
          rule.nth = std::stoi(value);
        } else if (key == "do") {
          size_t colon = value.find(':');
          rule.fault.todo = value.substr(0, colon);
          if (colon != std::string::npos) rule.fault.value = std::stoi(value.substr(colon + 1));
        } else {
          fprintf(stderr, "DDPSTEP_DOUBLE_FAULT: unknown key in %s\n", item.c_str());
          abort();
        }
      }
      list->push_back(rule);
    }
    return list;
  }();
  return *all;
}

// Counts the call, and does at once what kills, stops, delays or blocks; the rest is left to the caller.
inline Fault enter(const char *call, int rank = process_rank()) {
  static std::mutex *mutex = new std::mutex;
  static auto *counts = new std::map<std::string, int>;
  if (rules().empty()) return {};
  int count;
  {
    std::lock_guard<std::mutex> lock(*mutex);
    count = ++(*counts)[call];
  }
  for (const Rule &r : rules()) {
    if (r.call != call || (r.rank >= 0 && r.rank != rank)) continue;
    if (r.nth != 0 && !(count == r.nth || (r.onwards && count > r.nth))) continue;
    Fault f = r.fault;
    note("rank=%d call=%s fault=%s", rank, call, f.todo.c_str());
    if (f.todo == "kill") kill(getpid(), SIGKILL);
    if (f.todo == "stop") kill(getpid(), SIGSTOP);
    if (f.todo == "exit") _exit(f.value);
    if (f.todo == "block") forever();
    if (f.todo == "delay") usleep(1000 * f.value);
    if (f.todo == "oom") f = {"code", 2};
    if (f.todo == "code" || f.todo == "hang" || f.todo == "async" || f.todo == "lie") return f;
  }
  return {};
}

// For a call that starts no work: a hang is a block. Returns the code to return, 0 to go on.
inline int refused(const char *call, int rank = process_rank()) {
  Fault f = enter(call, rank);
  if (f.todo == "hang") forever();
  return f.todo == "code" ? f.value : 0;
}

}  // namespace ddpstep

#endif
