// SPDX-License-Identifier: Apache-2.0
//
// The adaptors that list, ask, hint, align and take turns, as C++ and C make and use them.

#include "check.hpp"

#include <thread>

using namespace tenure;
using check::ledger;
using check::make_counting;

static std::shared_ptr<ledger> book() { return std::make_shared<ledger>(); }

TEST(what_is_out_is_listed_until_it_comes_back)
{
  auto const counts = book();
  mr::tracking_resource_adaptor tracked{make_counting(counts)};
  CHECK(tracked.kind() == "tracking" && tracked.get_outstanding_allocations_str().empty());
  void* const a = tracked.allocate(cuda_stream_legacy, 1000);
  void* const b = tracked.allocate(cuda_stream_legacy, 50);
  CHECK_EQ(tracked.get_allocated_bytes(), 1050);
  auto const all = tracked.get_outstanding_allocations();
  CHECK(all.size() == 2 && all.at(a).allocation_size == 1000 && all.at(b).allocation_size == 50 && all.at(a).strace.empty());
  char line[64];
  std::snprintf(line, sizeof line, "%p: 1000 B\n", a);
  CHECK(tracked.get_outstanding_allocations_str().find(line) != std::string::npos);
  // A wrong free changes nothing.
  CHECK_THROWS(tracked.deallocate(cuda_stream_legacy, a, 999), ownership_error, "size");
  CHECK_EQ(tracked.get_outstanding_allocations().size(), 2);
  tracked.deallocate(cuda_stream_legacy, a, 1000);
  CHECK_EQ(tracked.get_allocated_bytes(), 50);
  tracked.deallocate(cuda_stream_legacy, b, 50);
  CHECK(tracked.get_outstanding_allocations().empty() && tracked.get_outstanding_allocations_str().empty());
  auto const outer = mr::tracking_resource_adaptor::over(tracked);
  CHECK(outer != tracked && resource_cast<mr::tracking_resource_adaptor>(outer.get_upstream_resource()).has_value());
}

TEST(stacks_are_kept_where_they_are_wanted)
{
  mr::tracking_resource_adaptor const tracked{make_counting(book()), true};
  device_buffer const kept{100, cuda_stream_legacy, tracked};
  auto const all = tracked.get_outstanding_allocations();
  CHECK(all.size() == 1 && all.at(const_cast<void*>(kept.data())).strace.find("0x") != std::string::npos);
  CHECK(tracked.get_outstanding_allocations_str().find("callstack") != std::string::npos);
}

TEST(only_a_tracking_adaptor_has_a_list)
{
  auto const other = make_counting(book());
  tenure_text text{};
  CHECK_ERROR(tenure_tracking_text(other.handle(), &text), TENURE_ERROR_UNSUPPORTED);
  CHECK_ERROR(tenure_tracking_list(other.handle(), nullptr, nullptr), TENURE_ERROR_INVALID_ARGUMENT);
  tenure_resource made = 0;
  CHECK_ERROR(tenure_tracking_create(other.handle(), 0, nullptr), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_ERROR(tenure_tracking_create(TENURE_RESOURCE_NULL, 0, &made), TENURE_ERROR_BAD_HANDLE);
  CHECK_ERROR(tenure_failure_callback_create(other.handle(), nullptr, tenure_owner{}, &made), TENURE_ERROR_INVALID_ARGUMENT);
}

namespace {
struct own_exception : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace

TEST(a_failure_asks_and_the_answer_counts)
{
  mr::limiting_resource_adaptor const limited{make_counting(book()), 1000};
  std::vector<device_buffer> cache;
  cache.emplace_back(600, cuda_stream_legacy, limited);
  cache.emplace_back(400, cuda_stream_legacy, limited);
  std::vector<std::size_t> asked;
  auto const alive = std::make_shared<int>(0);
  int argument     = 0;
  mr::failure_callback_resource_adaptor asking{limited,
                                               [&, alive](std::size_t bytes, void* arg) {
                                                 CHECK(arg == &argument);
                                                 asked.push_back(bytes);
                                                 if (cache.empty()) { return false; }
                                                 cache.pop_back();
                                                 return true;
                                               },
                                               &argument};
  CHECK(asking.kind() == "failure_callback" && asking.get_upstream_resource() == limited);
  CHECK(resource_cast<mr::failure_callback_resource_adaptor<>>(asking).has_value());
  {
    device_buffer const got{900, cuda_stream_legacy, asking};
    CHECK(asked == (std::vector<std::size_t>{900, 900}) && cache.empty());
    CHECK_THROWS(asking.allocate(cuda_stream_legacy, 200), out_of_memory, "gave up");
    CHECK_EQ(asked.size(), 3);
    CHECK_EQ(alive.use_count(), 2);
    asking.reset();
    CHECK_EQ(alive.use_count(), 2);
  }
  CHECK_EQ(alive.use_count(), 1);
}

TEST(only_out_of_memory_asks)
{
  int asked = 0;
  auto const count = [&](std::size_t, void*) { return ++asked > 0; };
  struct broken {
    void* allocate(cuda_stream_view, std::size_t, std::size_t) { throw own_exception("broken"); }
    void deallocate(cuda_stream_view, void*, std::size_t, std::size_t) {}
  };
  mr::failure_callback_resource_adaptor asking{mr::make_resource(broken{}), count};
  CHECK_THROWS(asking.allocate(cuda_stream_legacy, 10), own_exception, "broken");
  CHECK_THROWS(asking.allocate(cuda_stream_legacy, 10, 3), invalid_argument, "alignment");
  CHECK_EQ(asked, 0);
}

TEST(again_and_again_has_an_end_and_what_is_thrown_comes_through)
{
  mr::limiting_resource_adaptor const limited{make_counting(book()), 1000};
  int asked = 0;
  mr::failure_callback_resource_adaptor endless{limited, [&](std::size_t, void*) { return ++asked > 0; }};
  CHECK_THROWS(endless.allocate(cuda_stream_legacy, 2000), out_of_memory, "again and again");
  CHECK_EQ(asked, 100);
  mr::failure_callback_resource_adaptor throwing{
    mr::tracking_resource_adaptor{limited}, [](std::size_t, void*) -> bool { throw own_exception("from the callback"); }};
  CHECK_THROWS(mr::statistics_resource_adaptor{throwing}.allocate(cuda_stream_legacy, 2000), own_exception, "from the callback");
  CHECK_THROWS((mr::failure_callback_resource_adaptor{limited, mr::failure_callback_t{}}), invalid_argument, "empty");
}

TEST(a_callback_may_fail_for_want_of_memory_itself)
{
  mr::limiting_resource_adaptor const limited{make_counting(book()), 1000};
  mr::resource self;
  int asked = 0;
  mr::failure_callback_resource_adaptor asking{limited, [&](std::size_t, void*) {
                                                       ++asked;
                                                       CHECK_THROWS(self.allocate(cuda_stream_legacy, 5000), out_of_memory, "not asked");
                                                       return false;
                                                     }};
  self = asking;
  std::thread([&] { CHECK_THROWS(asking.allocate(cuda_stream_legacy, 2000), out_of_memory, "gave up"); }).join();
  CHECK_EQ(asked, 1);
  self.reset();
}

TEST(a_hint_is_given_where_there_is_something_to_move)
{
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  mr::prefetch_resource_adaptor const plain{mr::cuda_memory_resource{}};
  device_buffer still{1000, stream, plain};
  CHECK(!still.prefetch(cuda_device_id{0}, stream) && !still.prefetch(host_device, stream));
  CHECK(!plain.hints() && plain.told() == 0);
  mr::prefetch_resource_adaptor const hinted{mr::managed_memory_resource{}};
  device_buffer moved{1000, stream, hinted};
  std::uint32_t simulated = 0;
  CHECK_OK(tenure_sim_active(&simulated));
  if (simulated != 0) {
    CHECK(hinted.hints() && hinted.told() == 1);
    CHECK(moved.prefetch(host_device, stream) && moved.prefetch(cuda_device_id{}, cuda_stream_legacy));
    CHECK(prefetch(moved.data(), 10, cuda_device_id{0}, stream));
  }
  CHECK(!prefetch(nullptr, 0, host_device, stream));
  CHECK_THROWS(moved.prefetch(cuda_device_id{77}, stream), invalid_argument, "no device 77");
  // Without a place for the answer, and in the order of the home.
  tenure_buffer raw = 0;
  auto const home   = static_cast<cuda_stream_view>(stream).native();
  CHECK_OK(tenure_buffer_create(100, 0, home, hinted.handle(), &raw));
  CHECK_OK(tenure_buffer_prefetch(raw, -1, nullptr, nullptr));
  CHECK_OK(tenure_buffer_destroy(raw));
  CHECK_ERROR(tenure_buffer_prefetch(raw, -1, nullptr, nullptr), TENURE_ERROR_BAD_HANDLE);
}

TEST(alignment_is_raised_from_the_threshold_on)
{
  auto const counts = book();
  mr::aligned_resource_adaptor aligned{make_counting(counts), 4096, 1000};
  CHECK_EQ(aligned.get_alignment(), 4096);
  CHECK_EQ(aligned.get_alignment_threshold(), 1000);
  for (std::size_t const bytes : {1, 999, 1000, 5000}) {
    void* const ptr = aligned.allocate(cuda_stream_legacy, bytes);
    CHECK(bytes < 1000 || reinterpret_cast<std::uintptr_t>(ptr) % 4096 == 0);
    CHECK_THROWS(aligned.deallocate(cuda_stream_legacy, ptr, bytes + 1), ownership_error, "size");
    aligned.deallocate(cuda_stream_legacy, ptr, bytes);
  }
  CHECK_EQ(counts->live_bytes, 0);
  CHECK_THROWS((mr::aligned_resource_adaptor{aligned, 3}), invalid_argument, "alignment is 3");
  CHECK_THROWS((mr::aligned_resource_adaptor{aligned, std::size_t{4} << 20}), invalid_argument, "power of two up to");
  CHECK_EQ((mr::aligned_resource_adaptor{aligned, 16, 0}).get_alignment(), 256);
}

namespace {
/** Counts how many calls are in it at a time. */
struct one_at_a_time {
  std::shared_ptr<std::atomic<int>> inside, most;
  void visit() const
  {
    int const now = ++*inside;
    for (int seen = *most; now > seen && !most->compare_exchange_weak(seen, now);) {}
    std::this_thread::yield();
    --*inside;
  }
  void* allocate(cuda_stream_view, std::size_t bytes, std::size_t alignment)
  {
    visit();
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  void deallocate(cuda_stream_view, void* ptr, std::size_t, std::size_t)
  {
    visit();
    std::free(ptr);
  }
};
}  // namespace

TEST(one_call_at_a_time)
{
  auto const inside = std::make_shared<std::atomic<int>>(0);
  auto const most   = std::make_shared<std::atomic<int>>(0);
  mr::thread_safe_resource_adaptor safe{mr::make_resource(one_at_a_time{inside, most})};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&safe] {
      mr::resource mine = safe;
      for (int round = 0; round < 200; ++round) {
        void* const ptr = mine.allocate(cuda_stream_legacy, 64);
        mine.deallocate(cuda_stream_legacy, ptr, 64);
      }
    });
  }
  for (auto& thread : threads) { thread.join(); }
  CHECK_EQ(most->load(), 1);
  CHECK(mr::thread_safe_resource_adaptor::over(safe).get_upstream_resource() == safe);
}

TEST(memory_with_headroom_and_managed_pools)
{
  mr::sam_headroom_memory_resource const sam{1 << 20};
  CHECK(sam.kind() == "sam_headroom" && sam.get_headroom() == (1 << 20));
  device_buffer const buffer{1000, cuda_stream_legacy, sam};
  CHECK(resource_cast<mr::sam_headroom_memory_resource>(sam).has_value());
  CHECK(!mr::cuda_async_managed_memory_resource{});
  try {
    mr::cuda_async_managed_memory_resource const managed{cuda_device_id{}};
    CHECK(managed.pool_handle() != nullptr && managed.kind() == "cuda_async_managed");
    cuda_stream const stream{cuda_stream::flags::non_blocking};
    device_buffer const moved{1000, stream, managed};
  } catch (unsupported const&) {
    // Before CUDA 13, or on a device without it.
  }
}

TEST(a_limit_of_nothing_is_refused)
{
  CHECK_THROWS((mr::limiting_resource_adaptor{mr::cuda_memory_resource{}, 0}), invalid_argument, "allocation_limit is 0");
}

int main() { return check::run_all("adaptors"); }
