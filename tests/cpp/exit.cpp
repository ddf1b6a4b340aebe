// SPDX-License-Identifier: Apache-2.0
//
// The end of the process with something still alive: each scene is a child process, which must exit with 0 and say nothing.
//
//     exit            every scene EXIT_REPEAT times (20)
//     exit SCENE      one scene, in this process

#include "check.hpp"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

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

/** Runs a scene in a child; whether it ended with 0 and without a word. A child that hangs is killed after 60 seconds. */
bool run_child(std::string const& scene)
{
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) { return false; }
  pid_t const child = ::fork();
  if (child == 0) {
    ::dup2(pipe_ends[1], 1);
    ::dup2(pipe_ends[1], 2);
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
    ::alarm(60);
    ::execl("/proc/self/exe", "exit", scene.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(pipe_ends[1]);
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
  char const* const wanted = std::getenv("EXIT_REPEAT");
  int const repeat         = wanted != nullptr ? std::atoi(wanted) : 20;
  int passed = 0, failed = 0;
  for (auto const& [name, scene] : scenes()) {
    (void)scene;
    bool good = true;
    for (int i = 0; good && i < repeat; ++i) { good = run_child(name); }
    ++(good ? passed : failed);
  }
  std::printf("exit.cpp: %d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
