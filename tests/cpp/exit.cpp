// SPDX-License-Identifier: Apache-2.0
//
// The end of the process with something still alive: each scene is a child process, which must exit with 0 and say nothing.
//
//     exit            every scene EXIT_REPEAT times (20), EXIT_PARALLEL children at a time (as many as there are cores)
//     exit SCENE      one scene, in this process
//
// The children share nothing, so that they run beside each other: on a GPU each of them starts the driver, which takes a
// second and more.

#include "check.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

using namespace tenure;

namespace {

mr::resource make_pool() { return mr::pool_memory_resource{mr::cuda_memory_resource{}, 1 << 20}; }

// What is alive at the end of the children. Empty in the parent.
device_buffer static_buffer;
mr::resource static_resource;
mr::using_resource static_scope;
mr::listener static_listener;
cuda_stream static_stream;
std::vector<device_buffer> static_buffers;
thread_local device_buffer thread_buffer;

void buffer_in_a_static() { static_buffer = device_buffer{1000, cuda_stream_legacy, make_pool()}; }

void buffer_of_the_plain_resource_in_a_static()
{
  static_buffer = device_buffer{1000, cuda_stream_legacy, mr::cuda_memory_resource{}};
}

void pool_current_and_buffer_in_a_static()
{
  mr::set_current_device_resource(make_pool());
  static_buffer = device_buffer{1000, cuda_stream_legacy};
}

void everything_in_statics()
{
  static_resource = make_pool();
  static_scope    = mr::using_resource{static_resource};
  static_listener = mr::listener{[](cuda_device_id, mr::resource, std::uint64_t) {}};
  static_stream   = cuda_stream{cuda_stream::flags::non_blocking};
  for (int i = 0; i < 50; ++i) { static_buffers.emplace_back(100, static_stream); }
  fill_async(static_buffers[0].data(), 1, 100, static_stream);
}

void buffer_in_a_thread_local() { thread_buffer = device_buffer{1000, cuda_stream_legacy, make_pool()}; }

void buffer_in_a_thread_local_of_a_live_thread()
{
  static std::mutex lock;
  static std::condition_variable ready;
  static bool there = false;
  std::thread([] {
    thread_buffer = device_buffer{1000, cuda_stream_per_thread, make_pool()};
    {
      std::lock_guard<std::mutex> const guard(lock);
      there = true;
    }
    ready.notify_one();
    for (;;) { ::pause(); }
  }).detach();
  std::unique_lock<std::mutex> guard(lock);
  ready.wait(guard, [] { return there; });
}

void buffer_freed_in_an_atexit_handler()
{
  static device_buffer* const buffer = new device_buffer{1000, cuda_stream_legacy, make_pool()};
  std::atexit([] { delete buffer; });
}

void atexit_handler_from_before_the_library()
{
  // Registered before the first call: it runs after the library has gone to its end.
  static device_buffer* buffer = nullptr;
  std::atexit([] { delete buffer; });
  buffer = new device_buffer{1000, cuda_stream_legacy, make_pool()};
}

void allocation_in_an_atexit_handler_is_an_error()
{
  std::atexit([] {
    try {
      device_buffer const late{1000, cuda_stream_legacy, mr::cuda_memory_resource{}};
      std::fprintf(stderr, "an allocation at the end of the process was served\n");
    } catch (tenure::error const& error) {
      if (error.status() != TENURE_ERROR_EXITING) { std::fprintf(stderr, "wrong error: %s\n", error.message().c_str()); }
    }
  });
  static_resource = make_pool();  // so that the handler runs after the library's
}

void buffer_that_nobody_frees()
{
  (void)new device_buffer{1000, cuda_stream_legacy, make_pool()};
  (void)device_buffer{1000, cuda_stream_legacy, make_pool()}.release();
}

void callback_resource_in_a_static()
{
  static_resource = check::make_counting(std::make_shared<check::ledger>());
  static_buffer   = device_buffer{1000, cuda_stream_legacy, static_resource};
}

void exit_from_another_thread()
{
  static_buffer = device_buffer{1000, cuda_stream_legacy, make_pool()};
  std::thread([] { std::exit(0); }).join();
}

void forked_child_frees_nothing_and_says_so()
{
  static_buffer    = device_buffer{1000, cuda_stream_legacy, make_pool()};
  pid_t const child = ::fork();
  if (child == 0) {
    try {
      device_buffer const more{1000, cuda_stream_legacy};
      std::fprintf(stderr, "an allocation in a forked child was served\n");
    } catch (tenure::error const& error) {
      if (error.status() != TENURE_ERROR_FORKED) { std::fprintf(stderr, "wrong error: %s\n", error.message().c_str()); }
    }
    static_buffer = device_buffer{};
    std::exit(0);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) { std::fprintf(stderr, "the child ended with %d\n", status); }
  device_buffer const more{1000, cuda_stream_legacy, static_buffer.memory_resource()};  // the parent goes on
}

std::map<std::string, void (*)()> const& scenes()
{
#define SCENE(name) {#name, &name}
  static std::map<std::string, void (*)()> const all{SCENE(buffer_in_a_static),
                                                     SCENE(buffer_of_the_plain_resource_in_a_static),
                                                     SCENE(pool_current_and_buffer_in_a_static),
                                                     SCENE(everything_in_statics),
                                                     SCENE(buffer_in_a_thread_local),
                                                     SCENE(buffer_in_a_thread_local_of_a_live_thread),
                                                     SCENE(buffer_freed_in_an_atexit_handler),
                                                     SCENE(atexit_handler_from_before_the_library),
                                                     SCENE(allocation_in_an_atexit_handler_is_an_error),
                                                     SCENE(buffer_that_nobody_frees),
                                                     SCENE(callback_resource_in_a_static),
                                                     SCENE(exit_from_another_thread),
                                                     SCENE(forked_child_frees_nothing_and_says_so)};
#undef SCENE
  return all;
}

/**
 * Runs a scene in a child; whether it ended with 0 and without a word. A child that hangs is killed after 60 seconds. May be
 * called on several threads at once.
 */
bool run_child(std::string const& scene)
{
  int pipe_ends[2];
  // Closed in every program that is started: a child of another thread would keep this one's end of the pipe open.
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) { return false; }
  pid_t const child = ::fork();
  if (child == 0) {
    ::dup2(pipe_ends[1], 1);
    ::dup2(pipe_ends[1], 2);
    ::alarm(60);
    ::execl("/proc/self/exe", "exit", scene.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(pipe_ends[1]);
  if (child < 0) {
    ::close(pipe_ends[0]);
    std::fprintf(stderr, "%s: no child can be made\n", scene.c_str());
    return false;
  }
  std::string said;
  char part[512];
  for (ssize_t got = 0; (got = ::read(pipe_ends[0], part, sizeof part)) > 0;) { said.append(part, static_cast<std::size_t>(got)); }
  ::close(pipe_ends[0]);
  int status = 0;
  bool const waited = ::waitpid(child, &status, 0) == child;
  if (!waited || status != 0 || !said.empty()) {
    std::fprintf(stderr, "%s: status %d, signal %d, said: %s\n", scene.c_str(), WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                 WIFSIGNALED(status) ? WTERMSIG(status) : 0, said.c_str());
    return false;
  }
  return true;
}

/** A number from the environment; `otherwise` where it is not there or none. */
int number(char const* name, int otherwise)
{
  char const* const text = std::getenv(name);
  int const value        = text != nullptr ? std::atoi(text) : 0;
  return value > 0 ? value : otherwise;
}

/** Runs every scene `repeat` times, `parallel` children at a time; gives the scenes that failed, each once. */
std::vector<std::string> run_all(int repeat, int parallel)
{
  std::vector<std::string> names;
  for (auto const& entry : scenes()) { names.push_back(entry.first); }
  // Round by round, so that what runs at the same time is different scenes. A scene that failed is not run again.
  std::vector<std::atomic<bool>> failed(names.size());
  std::atomic<std::size_t> next{0};
  std::size_t const count = names.size() * static_cast<std::size_t>(repeat);
  auto const work         = [&] {
    for (std::size_t i = 0; (i = next.fetch_add(1)) < count;) {
      std::size_t const at = i % names.size();
      if (!failed[at] && !run_child(names[at])) { failed[at] = true; }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < parallel; ++i) { threads.emplace_back(work); }
  for (auto& thread : threads) { thread.join(); }
  std::vector<std::string> bad;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (failed[i]) { bad.push_back(names[i]); }
  }
  return bad;
}

}  // namespace

int main(int argc, char** argv)
{
  if (argc == 2) {
    auto const scene = scenes().find(argv[1]);
    if (scene == scenes().end()) {
      std::fprintf(stderr, "exit: there is no scene %s\n", argv[1]);
      return 2;
    }
    scene->second();
    return 0;
  }
  int const cores    = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  auto const failed  = run_all(number("EXIT_REPEAT", 20), number("EXIT_PARALLEL", cores));
  auto const passed  = scenes().size() - failed.size();
  std::printf("exit.cpp: %zu passed, %zu failed\n", passed, failed.size());
  return failed.empty() ? 0 : 1;
}
