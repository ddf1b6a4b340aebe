// SPDX-License-Identifier: Apache-2.0
//
// tenure's resources below RMM's types, and RMM's below tenure's, with RMM's exceptions. Compiled against librmm's headers and
// linked with its library, which needs no GPU for any of this.

#include "../check.hpp"

#include <tenure/rmm.hpp>

#include <rmm/cuda_device.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/mr/callback_memory_resource.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

#include <cstdlib>
#include <stdexcept>
#include <typeinfo>
#include <utility>

namespace mr = tenure::mr;
using on_device = cuda::mr::device_accessible;
using on_host   = cuda::mr::host_accessible;

static_assert(cuda::mr::resource_with<mr::rmm_resource, on_device> && !cuda::mr::resource_with<mr::rmm_resource, on_host>);
static_assert(cuda::mr::resource_with<mr::rmm_host_resource, on_device, on_host>);
static_assert(sizeof(mr::rmm_resource) == sizeof(void*));
static_assert(std::is_constructible_v<rmm::device_async_resource_ref, mr::rmm_resource&>);
static_assert(std::is_constructible_v<rmm::host_device_async_resource_ref, mr::rmm_host_resource&>);

namespace {

cuda::stream_ref legacy() { return tenure::cuda_stream_legacy; }
mr::pool_memory_resource new_pool() { return mr::pool_memory_resource{mr::cuda_memory_resource{}, 0}; }

/** Whether `function` throws exactly a `Kind`, and none derived from it. */
template <class Kind, class Function>
bool throws_exactly(Function&& function)
{
  try {
    function();
  } catch (Kind const& thrown) {
    return typeid(thrown) == typeid(Kind);
  }
  return false;
}

}  // namespace

TEST(a_handle_asks_its_resource_and_not_the_current_one)
{
  auto const refuse = [](std::size_t, tenure::cuda_stream_view, void*) -> void* { throw std::runtime_error("it was asked"); };
  mr::callback_memory_resource const refusing{refuse, [](void*, std::size_t, tenure::cuda_stream_view, void*) {}};
  mr::using_resource const here{refusing};
  mr::rmm_resource named{new_pool()};
  named.deallocate(legacy(), named.allocate(legacy(), 100), 100);
  named.deallocate_sync(named.allocate_sync(100), 100);
  CHECK(throws_exactly<std::runtime_error>([] { (void)mr::rmm_resource{mr::resource_ref{}}.allocate(legacy(), 100); }));
}

TEST(rmms_buffers_own_a_pool)
{
  auto pool     = new_pool();
  auto const id = pool.id();
  rmm::device_buffer buffer(1000, legacy(), mr::rmm_resource{pool});
  CHECK(pool.info().live_count == 1 && pool.owns(buffer.data()));
  buffer.reserve(1000, legacy());
  pool.reset();
  CHECK(mr::resource::from_id(id));
  rmm::device_buffer moved = std::move(buffer);
  moved                    = rmm::device_buffer{};
  // The one that was moved from keeps RMM's handle of it.
  buffer = rmm::device_buffer{};
  CHECK(!mr::resource::from_id(id));
}

TEST(each_of_our_errors_arrives_as_exactly_theirs)
{
  mr::rmm_resource limited{mr::limiting_resource_adaptor{mr::cuda_memory_resource{}, 1 << 20}};
  CHECK(throws_exactly<rmm::out_of_memory>([&] { (void)limited.allocate(legacy(), 2 << 20, 256); }));
  CHECK(throws_exactly<rmm::out_of_memory>([&] { (void)limited.allocate_sync(2 << 20, 256); }));
  CHECK(throws_exactly<rmm::out_of_memory>([&] { rmm::device_buffer(2 << 20, legacy(), limited); }));
  mr::rmm_resource empty;
  CHECK(throws_exactly<rmm::logic_error>([&] { (void)empty.allocate(legacy(), 64, 256); }));
  CHECK(throws_exactly<rmm::invalid_argument>([&] { (void)limited.allocate(legacy(), 64, 3); }));
  CHECK(throws_exactly<rmm::invalid_argument>([] { mr::rmm_host_resource{mr::resource(mr::cuda_memory_resource{})}; }));

  auto const thrown = [](auto const& ours) {
    return [&] { tenure::with_rmm_exceptions([&] { throw ours; }); };
  };
  tenure::error_details details;
  details.message = "a sentence";
  CHECK(throws_exactly<rmm::cuda_error>(thrown(tenure::cuda_error(details))));
  CHECK(throws_exactly<rmm::bad_alloc>(thrown(tenure::bad_alloc(details))));
  CHECK(throws_exactly<rmm::out_of_range>(thrown(tenure::out_of_range(details))));
  CHECK(throws_exactly<rmm::logic_error>(thrown(tenure::ownership_error(details))));
  CHECK(throws_exactly<rmm::logic_error>(thrown(tenure::unsupported(details))));
  CHECK(throws_exactly<tenure::runtime_error>(thrown(tenure::runtime_error(details))));
  CHECK(throws_exactly<int>(thrown(7)));
  // The text is kept.
  std::string ours, theirs;
  try {
    (void)mr::resource(limited).allocate(tenure::cuda_stream_legacy, 2 << 20);
  } catch (tenure::out_of_memory const& error) {
    ours = error.message();
  }
  try {
    (void)limited.allocate(legacy(), 2 << 20, 256);
  } catch (rmm::bad_alloc const& error) {
    theirs = error.what();
  }
  CHECK(ours.size() > 20 && theirs.find(ours.substr(0, 20)) != std::string::npos);
  CHECK(tenure::with_rmm_exceptions([] { return 3; }) == 3);
}

TEST(rmms_failure_callback_answers_our_out_of_memory)
{
  int asked = 0;
  struct state {
    int* asked;
  } mine{&asked};
  rmm::mr::failure_callback_resource_adaptor<> adaptor{
    mr::rmm_resource{mr::limiting_resource_adaptor{mr::cuda_memory_resource{}, 1 << 20}},
    [](std::size_t, void* arg) { return ++*static_cast<state*>(arg)->asked < 3; },
    &mine};
  CHECK(throws_exactly<rmm::out_of_memory>([&] { (void)adaptor.allocate(legacy(), 2 << 20, 256); }));
  CHECK(asked == 3);
}

TEST(rmms_adaptors_and_table_take_our_handle)
{
  auto pool     = new_pool();
  auto const id = pool.id();
  {
    rmm::mr::statistics_resource_adaptor counted{mr::rmm_resource{pool}};
    auto before = rmm::mr::set_per_device_resource(rmm::cuda_device_id{0}, counted);
    {
      rmm::device_buffer buffer(4096, legacy(), rmm::mr::get_per_device_resource_ref(rmm::cuda_device_id{0}));
      CHECK(pool.owns(buffer.data()) && counted.get_bytes_counter().value == 4096);
      // Replaced while the buffer lives: it goes home all the same.
      (void)rmm::mr::set_per_device_resource(rmm::cuda_device_id{0}, before);
    }
    CHECK(pool.info().live_count == 0 && counted.get_bytes_counter().value == 0);
  }
  pool.reset();
  CHECK(!mr::resource::from_id(id));
}

TEST(a_resource_of_rmms_is_an_upstream_of_ours)
{
  int calls = 0;
  rmm::mr::callback_memory_resource theirs{
    [&](std::size_t bytes, auto, void*) -> void* {
      ++calls;
      if (bytes > (std::size_t{1} << 30)) { throw rmm::out_of_memory("theirs has no more"); }
      return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    },
    [&](void* ptr, std::size_t, auto, void*) {
      --calls;
      std::free(ptr);
    }};
  {
    auto const ours = mr::from_cccl(theirs, "rmm");
    mr::limiting_resource_adaptor limited{ours, std::size_t{1} << 40};
    tenure::device_buffer buffer{1000, tenure::cuda_stream_legacy, limited};
    CHECK(calls == 1 && ours.kind() == "rmm");
    // Their exception passes through ours and back.
    CHECK(throws_exactly<rmm::out_of_memory>([&] { (void)limited.allocate(tenure::cuda_stream_legacy, std::size_t{1} << 31); }));
    // And there and back again, through a buffer of theirs.
    rmm::device_buffer round(256, legacy(), mr::rmm_resource{limited});
    CHECK(limited.get_allocated_bytes() == 1256);
  }
  CHECK(calls == 1);  // the one that failed
  rmm::device_async_resource_ref ref{theirs};
  auto const copied = mr::from_cccl(ref);
  CHECK(copied.is_device_accessible());
}

TEST(their_streams_are_streams_for_us)
{
  tenure::cuda_stream stream{tenure::cuda_stream::flags::non_blocking};
  cuda::stream_ref const ref = stream;
  tenure::device_buffer const ours{64, ref};
  rmm::device_buffer const theirs(64, ours.stream(), mr::rmm_resource{new_pool()});
  CHECK(tenure::cuda_stream_view(theirs.stream()) == stream.view());
}

int main() { return check::run_all("rmm.cpp"); }
