// SPDX-License-Identifier: Apache-2.0

// Memory of graphs, in every mode of capture, on whatever device there is: what a graph computes with memory that was made in
// its capture, while other threads use the same pool.

#include "check.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using namespace tenure;

namespace {

constexpr std::size_t bytes = 1 << 20;

/** A graph of the C interface. */
struct graph {
  tenure_graph handle{0};
  graph() = default;
  graph(graph const&)            = delete;
  graph& operator=(graph const&) = delete;
  ~graph()
  {
    if (handle != 0) { (void)TENURE_DETAIL_CALL(sim_graph_destroy)(handle); }
  }
  void launch(cuda_stream_view stream) const
  {
    detail::check(TENURE_DETAIL_CALL(sim_graph_launch)(handle, stream.native()));
  }
};

void begin(cuda_stream_view stream, std::uint32_t mode)
{
  detail::check(TENURE_DETAIL_CALL(sim_capture_begin)(stream.native(), mode));
}

void end(cuda_stream_view stream, graph& out)
{
  detail::check(TENURE_DETAIL_CALL(sim_capture_end)(stream.native(), &out.handle));
}

void fill(device_buffer const& buffer, unsigned char value, cuda_stream_view stream)
{
  detail::check(TENURE_DETAIL_CALL(fill_async)(const_cast<void*>(buffer.data()), value, buffer.size(), stream.native()));
}

/** Two temporaries, copied into one another and into the output, which is all `value` after a run. */
device_buffer record(cuda_stream_view stream, mr::resource_ref pool, unsigned char value, std::uint32_t mode, graph& out)
{
  begin(stream, mode);
  device_buffer output{bytes, stream, pool};
  {
    device_buffer const first{bytes, stream, pool};
    fill(first, value, stream);
    device_buffer const second{first, stream, pool};
    copy_async(output.data(), second.data(), bytes, stream);
  }
  {
    // In the memory of the temporaries.
    device_buffer const later{2 * bytes, stream, pool};
    fill(later, 0xee, stream);
  }
  end(stream, out);
  return output;
}

bool holds(device_buffer const& buffer, unsigned char value, cuda_stream_view stream)
{
  std::vector<unsigned char> back(buffer.size());
  copy_async(back.data(), buffer.data(), back.size(), stream);
  stream.synchronize();
  for (auto byte : back) {
    if (byte != value) { return false; }
  }
  return true;
}

/** Gives the driver time to tell that graphs are gone. */
bool empties(mr::pool_memory_resource& pool)
{
  for (int i = 0; i < 2000; ++i) {
    pool.trim();
    if (pool.graph_bytes() == 0) { return true; }
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  return false;
}

}  // namespace

TEST(a_graph_computes_while_others_use_the_pool)
{
  for (std::uint32_t mode = 0; mode < 3; ++mode) {
    mr::pool_memory_resource pool{mr::cuda_memory_resource{}, 0, 256u << 20};
    cuda_stream const stream{cuda_stream::flags::non_blocking};
    std::atomic<bool> stop{false};
    std::vector<std::thread> others;
    for (int i = 0; i < 3; ++i) {
      others.emplace_back([&, i] {
        cuda_stream const own{cuda_stream::flags::non_blocking};
        for (std::size_t round = 0; !stop; ++round) {
          device_buffer buffer{(round % 7 + 1) << 18, own, pool};
          fill(buffer, static_cast<unsigned char>(0x60 + i), own);
          if (round % 16 == 15) { pool.trim(); }
          if (round % 3 == 0) { buffer.set_stream(cuda_stream_per_thread); }
        }
      });
    }
    {
      graph one, two;
      auto first  = record(stream, pool, 0x11, mode, one);
      auto second = record(stream, pool, 0x22, mode, two);
      for (int run = 0; run < 5; ++run) {
        one.launch(stream);
        two.launch(stream);
        CHECK(holds(first, 0x11, stream));
        CHECK(holds(second, 0x22, stream));
      }
      CHECK(pool.graph_bytes() >= 2 * 3 * bytes);
      // Freed by eager work; the graph has it all the same.
      first.close(cuda_stream_per_thread);
      one.launch(stream);
      CHECK(holds(second, 0x22, stream));
    }
    stop = true;
    for (auto& other : others) { other.join(); }
    CHECK(empties(pool));
  }
}

TEST(graphs_share_an_arena)
{
  mr::pool_memory_resource pool{mr::cuda_memory_resource{}, 0};
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  {
    auto arena = shared_arena::make();
    graph graphs[4];
    std::vector<device_buffer> outputs;
    std::size_t after_one = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      capture_scope const scope{stream, arena};
      outputs.push_back(record(stream, pool, static_cast<unsigned char>(i + 1), 0, graphs[i]));
      if (i == 0) { after_one = pool.graph_bytes(); }
    }
    // Four outputs and the temporaries of one graph.
    CHECK(pool.graph_bytes() <= after_one + 3 * bytes + (2u << 20));
    for (auto const& each : graphs) { each.launch(stream); }
    for (std::size_t i = 0; i < 4; ++i) { CHECK(holds(outputs[i], static_cast<unsigned char>(i + 1), stream)); }
    auto moved = std::move(arena);
    CHECK(!arena && moved);
    CHECK_THROWS(capture_scope(stream, arena), logic_error, "empty");
  }
  CHECK(empties(pool));
}

TEST(the_per_thread_stream_is_announced)
{
  mr::pool_memory_resource pool{mr::cuda_memory_resource{}, 8u << 20};
  cuda_stream_view const stream = cuda_stream_per_thread;
  {
    graph made;
    capture_scope scope{stream};
    auto output = record(stream, pool, 0x33, 0, made);
    scope.exit();
    CHECK(pool.graph_bytes() > 0);
    made.launch(stream);
    CHECK(holds(output, 0x33, stream));
  }
  CHECK(empties(pool));
}

TEST(what_cannot_serve_refuses_and_the_capture_goes_on)
{
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  mr::pool_memory_resource pool{mr::cuda_memory_resource{}, 0};
  mr::statistics_resource_adaptor counted{mr::cuda_memory_resource{}};
  mr::pool_memory_resource over_chunks{counted, 0};
  device_buffer before{bytes, stream, pool};
  begin(stream, 0);
  CHECK_THROWS(device_buffer(10, stream, mr::cuda_memory_resource{}), unsupported, "capturing");
  CHECK_THROWS(device_buffer(10, stream, mr::managed_memory_resource{}), unsupported, "capturing");
  CHECK_THROWS(device_buffer(10, stream, mr::pinned_host_memory_resource{}), unsupported, "capturing");
  CHECK_THROWS(device_buffer(10, stream, over_chunks), unsupported, "capturing");
  CHECK_THROWS(before.resize(2 * bytes, stream), unsupported, "capturing");
  CHECK_THROWS(stream.synchronize(), unsupported, "capturing");
  {
    // What waits is refused before anything is recorded: the graph would use a value that is gone.
    device_uvector<int> numbers{4, stream, pool};
    CHECK_THROWS(numbers.element(0, stream), unsupported, "capturing");
    CHECK_THROWS(numbers.set_element(0, 1, stream), unsupported, "capturing");
  }
  graph made;
  end(stream, made);
  CHECK(made.handle != 0);
  made.launch(stream);
  stream.synchronize();
  CHECK(before.size() == bytes);
}

TEST(a_wait_for_the_device_ends_no_capture)
{
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  cuda_stream const other{cuda_stream::flags::non_blocking};
  mr::pool_memory_resource pool{mr::cuda_memory_resource{}, 0};
  for (std::uint32_t mode = 0; mode < 3; ++mode) {
    device_buffer beside{bytes, other, pool};
    graph made;
    begin(stream, mode);
    device_buffer output{bytes, stream, pool};
    fill(beside, 0x11, other);
    device_synchronize();
    std::thread([] { device_synchronize(); }).join();
    fill(output, static_cast<unsigned char>(0x40 + mode), stream);
    end(stream, made);
    CHECK(made.handle != 0);
    CHECK(holds(beside, 0x11, other));
    made.launch(stream);
    CHECK(holds(output, static_cast<unsigned char>(0x40 + mode), stream));
  }
}

int main() { return check::run_all("graphs.cpp"); }
