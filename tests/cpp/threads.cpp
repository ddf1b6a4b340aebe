// SPDX-License-Identifier: Apache-2.0
//
// Threads: the table is read while others replace it, buffers are made here and freed there, handles are copied everywhere.
// At the end every balance is zero and every resource is gone.

#include "check.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

using namespace tenure;

namespace {

constexpr int rounds = 300;

template <class Function>
void on_threads(int count, Function function)
{
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        function(i);
      } catch (std::exception const& error) {
        std::fprintf(stderr, "    on a thread: %s\n", error.what());
        ++failed;
      }
    });
  }
  for (auto& thread : threads) { thread.join(); }
  CHECK_EQ(failed, 0);
}

}  // namespace

TEST(allocating_through_get_while_others_set)
{
  auto const book           = std::make_shared<check::ledger>();
  mr::resource const before = mr::get_current_device_resource();
  std::atomic<int> made{0};
  on_threads(4, [&](int thread) {
    for (int i = 0; i < rounds; ++i) {
      if (thread == 0) {
        ++made;
        mr::resource const previous = mr::set_current_device_resource(check::make_counting(book));
        (void)previous;
      } else {
        device_buffer const buffer{static_cast<std::size_t>(1 + i), cuda_stream_legacy};
        mr::resource const maker = buffer.memory_resource();
        if (!maker.owns(buffer.data())) { throw std::runtime_error("the maker does not own its buffer"); }
      }
    }
  });
  mr::set_current_device_resource(before);
  CHECK_EQ(book->allocations, book->frees);
  CHECK_EQ(book->live_bytes, 0);
  CHECK_EQ(book->dropped, made);
}

TEST(buffers_are_freed_by_other_threads)
{
  auto const book = std::make_shared<check::ledger>();
  std::mutex lock;
  std::condition_variable ready;
  std::deque<device_buffer> queue;
  bool done = false;
  {
    mr::resource const upstream = check::make_counting(book);
    mr::statistics_resource_adaptor const resource{upstream};
    std::thread consumer([&] {
      std::unique_lock<std::mutex> guard(lock);
      while (!done || !queue.empty()) {
        if (queue.empty()) {
          ready.wait(guard);
          continue;
        }
        device_buffer mine = std::move(queue.front());
        queue.pop_front();
        guard.unlock();
        mine = device_buffer{};
        guard.lock();
      }
    });
    on_threads(3, [&](int) {
      cuda_stream const stream{cuda_stream::flags::non_blocking};
      for (int i = 0; i < rounds; ++i) {
        device_buffer buffer{100, stream, resource};
        std::lock_guard<std::mutex> const guard(lock);
        queue.push_back(std::move(buffer));
        ready.notify_one();
      }
    });
    {
      std::lock_guard<std::mutex> const guard(lock);
      done = true;
    }
    ready.notify_one();
    consumer.join();
    CHECK_EQ(resource.get_bytes_counter().value, 0);
    CHECK_EQ(resource.get_allocations_counter().total, 3 * rounds);
  }
  CHECK_EQ(book->dropped, 1);
}

TEST(handles_are_copied_and_dropped_everywhere)
{
  auto const book     = std::make_shared<check::ledger>();
  mr::resource shared = check::make_counting(book);
  on_threads(4, [copy = shared](int) {
    for (int i = 0; i < rounds; ++i) {
      mr::resource const mine  = copy;
      mr::resource const again = mine;
      if (again != copy) { throw std::runtime_error("a copy is another resource"); }
    }
  });
  CHECK_EQ(book->dropped, 0);
  shared.reset();
  CHECK_EQ(book->dropped, 1);
}

TEST(a_pool_serves_many_threads)
{
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, 0};
  on_threads(4, [&](int thread) {
    cuda_stream const stream{cuda_stream::flags::non_blocking};
    std::vector<device_buffer> held;
    for (int i = 0; i < rounds; ++i) {
      auto const bytes = static_cast<std::size_t>(64 + (i * 37 + thread * 101) % 5000);
      held.emplace_back(bytes, stream, pool);
      fill_async(held.back().data(), static_cast<std::uint8_t>(thread), bytes, stream);
      if (held.size() > 8) { held.erase(held.begin() + i % 8); }
    }
    for (auto const& buffer : held) {
      unsigned char byte = 0xFF;
      copy_async(&byte, buffer.data(), 1, stream);
      stream.synchronize();
      if (byte != thread) { throw std::runtime_error("another thread wrote into this buffer"); }
    }
  });
  CHECK_EQ(pool.info().live_bytes, 0);
  CHECK_EQ(pool.info().live_count, 0);
}

TEST(scopes_are_of_their_thread)
{
  on_threads(4, [](int) {
    mr::statistics_resource_adaptor const mine{mr::cuda_memory_resource{}};
    mr::using_resource const scope{mine};
    for (int i = 0; i < rounds; ++i) {
      device_buffer const buffer{10, cuda_stream_legacy};
      if (buffer.memory_resource() != mine) { throw std::runtime_error("the scope of another thread was used"); }
    }
    if (mine.get_allocations_counter().total != rounds) { throw std::runtime_error("an allocation went elsewhere"); }
  });
}

int main() { return check::run_all("threads.cpp"); }
