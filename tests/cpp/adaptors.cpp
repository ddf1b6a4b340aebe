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

int main() { return check::run_all("adaptors"); }
