// SPDX-License-Identifier: Apache-2.0
//
// The shapes of the C++ types: empty by default, moved without throwing, compared, held by optionals and containers. Using an
// empty one is a sentence, not a crash.

#include "check.hpp"

#include <any>
#include <map>
#include <optional>
#include <set>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <variant>

using namespace tenure;

template <class T>
constexpr bool holds_anywhere = std::is_nothrow_default_constructible_v<T> && std::is_nothrow_move_constructible_v<T> &&
                                std::is_nothrow_move_assignable_v<T> && std::is_nothrow_destructible_v<T>;

static_assert(holds_anywhere<device_buffer>);
static_assert(holds_anywhere<device_uvector<int>>);
static_assert(holds_anywhere<device_scalar<double>>);
static_assert(holds_anywhere<cuda_stream>);
static_assert(holds_anywhere<cuda_stream_view>);
static_assert(holds_anywhere<mr::resource>);
static_assert(holds_anywhere<mr::cuda_memory_resource>);
static_assert(holds_anywhere<mr::managed_memory_resource>);
static_assert(holds_anywhere<mr::pinned_host_memory_resource>);
static_assert(holds_anywhere<mr::system_memory_resource>);
static_assert(holds_anywhere<mr::cuda_async_memory_resource>);
static_assert(holds_anywhere<mr::cuda_async_view_memory_resource>);
static_assert(holds_anywhere<mr::pool_memory_resource>);
static_assert(holds_anywhere<mr::limiting_resource_adaptor>);
static_assert(holds_anywhere<mr::statistics_resource_adaptor>);
static_assert(holds_anywhere<mr::callback_memory_resource>);
static_assert(holds_anywhere<mr::using_resource>);
static_assert(holds_anywhere<shared_arena>);
static_assert(holds_anywhere<capture_scope>);
static_assert(holds_anywhere<mr::listener>);
static_assert(holds_anywhere<ownership>);

// A handle may be copied; a buffer needs a stream for that.
static_assert(std::is_copy_constructible_v<mr::resource> && std::is_copy_constructible_v<mr::pool_memory_resource>);
static_assert(std::is_copy_constructible_v<cuda_stream>);
static_assert(!std::is_copy_constructible_v<device_buffer> && !std::is_copy_constructible_v<device_uvector<int>>);
static_assert(std::is_trivially_copyable_v<cuda_stream_view>);
static_assert(sizeof(device_buffer) == sizeof(tenure_buffer) && sizeof(mr::resource) <= 24);
// A literal 0 is no stream, an int is no resource.
static_assert(!std::is_constructible_v<cuda_stream_view, int> && !std::is_constructible_v<cuda_stream_view, std::nullptr_t>);
static_assert(!std::is_convertible_v<std::uint64_t, mr::resource_ref>);
// What RMM's users catch.
static_assert(std::is_base_of_v<std::bad_alloc, bad_alloc> && std::is_base_of_v<bad_alloc, out_of_memory>);
static_assert(std::is_base_of_v<std::runtime_error, cuda_error> && std::is_base_of_v<std::logic_error, ownership_error>);
static_assert(std::is_base_of_v<error, out_of_memory> && std::is_base_of_v<error, invalid_argument>);
static_assert(std::is_nothrow_copy_constructible_v<error>);

TEST(an_empty_buffer_has_no_bytes_and_says_so)
{
  device_buffer buffer;
  CHECK(!buffer && buffer.data() == nullptr && buffer.size() == 0 && buffer.is_empty() && buffer.capacity() == 0);
  CHECK_THROWS(buffer.stream(), logic_error, "empty");
  CHECK_THROWS(buffer.memory_resource(), logic_error, "empty");
  CHECK_THROWS(buffer.resize(10, cuda_stream_legacy), logic_error, "empty");
  CHECK_THROWS(buffer.reserve(10, cuda_stream_legacy), logic_error, "empty");
  CHECK_THROWS(buffer.shrink_to_fit(cuda_stream_legacy), logic_error, "empty");
  CHECK_THROWS(buffer.set_stream(cuda_stream_legacy), logic_error, "empty");
  CHECK_THROWS(buffer.record_stream(cuda_stream_legacy), logic_error, "empty");
  CHECK_THROWS(buffer.detach(), logic_error, "empty");
  CHECK_THROWS(buffer.handle(), logic_error, "empty");
  CHECK_THROWS(buffer.view(), logic_error, "empty");
  CHECK_THROWS(device_buffer(buffer, cuda_stream_legacy), logic_error, "empty");
  buffer.close();
  CHECK(buffer.release() == 0);
}

TEST(an_empty_resource_says_so)
{
  mr::resource resource;
  mr::pool_memory_resource pool;
  CHECK(!resource && !pool && resource == pool);
  CHECK_THROWS(resource.allocate(cuda_stream_legacy, 10), logic_error, "empty");
  CHECK_THROWS(resource.id(), logic_error, "empty");
  CHECK_THROWS(resource.kind(), logic_error, "empty");
  CHECK_THROWS(resource.info(), logic_error, "empty");
  CHECK_THROWS(resource.release(), logic_error, "empty");
  CHECK_THROWS(pool.pool_size(), logic_error, "empty");
  CHECK_THROWS(device_buffer(10, cuda_stream_legacy, pool), logic_error, "empty");
  CHECK_THROWS(mr::set_current_device_resource(resource), logic_error, "empty");
  CHECK_THROWS(mr::using_resource(pool), logic_error, "empty");
  CHECK_THROWS(capture_scope(cuda_stream_per_thread, shared_arena{}), logic_error, "empty");
  mr::resource copy = resource;
  CHECK(!copy);
}

TEST(an_empty_stream_vector_and_scalar_say_so)
{
  cuda_stream stream;
  CHECK(!stream.is_valid());
  CHECK_THROWS(stream.view(), logic_error, "empty");
  CHECK_THROWS(stream.synchronize(), logic_error, "empty");
  CHECK_THROWS(device_buffer(10, stream), logic_error, "empty");
  device_uvector<int> vector;
  CHECK(vector.size() == 0 && vector.is_empty() && vector.data() == nullptr && vector.begin() == vector.end());
  CHECK_THROWS(vector.resize(3, cuda_stream_legacy), logic_error, "empty");
  CHECK_THROWS(vector.front_element(cuda_stream_legacy), out_of_range, "element 0 of a vector of 0");
  device_scalar<int> scalar;
  CHECK(scalar.size() == 0 && scalar.data() == nullptr);
  CHECK_THROWS(scalar.value(cuda_stream_legacy), out_of_range, "element 0");
}

TEST(moved_from_objects_are_empty)
{
  mr::pool_memory_resource pool{mr::cuda_memory_resource{}, 0};
  device_buffer first{100, cuda_stream_legacy, pool};
  void* const data = first.data();
  device_buffer second{std::move(first)};
  CHECK(!first && second.data() == data);
  device_buffer third;
  third = std::move(second);
  CHECK(!second && third.data() == data);
  auto& alias = third;
  third       = std::move(alias);
  CHECK(third.data() == data);
  mr::pool_memory_resource moved{std::move(pool)};
  CHECK(!pool && moved.kind() == "pool");
  pool = moved;
  CHECK(pool == moved && pool.id() == moved.id());
  cuda_stream stream{cuda_stream::flags::non_blocking};
  cuda_stream other{std::move(stream)};
  CHECK(!stream && other.is_valid());
}

TEST(containers_and_optionals_hold_them)
{
  mr::resource const plain = mr::cuda_memory_resource{};
  mr::pool_memory_resource const pool{plain, 0};
  std::vector<device_buffer> buffers;
  for (std::size_t i = 1; i <= 20; ++i) { buffers.emplace_back(i, cuda_stream_legacy, pool); }
  buffers.erase(buffers.begin());
  CHECK_EQ(buffers.size(), 19);
  CHECK_EQ(pool.info().live_count, 19);
  std::optional<device_buffer> maybe;
  maybe = std::move(buffers.back());
  buffers.clear();
  CHECK_EQ(pool.info().live_count, 1);
  maybe.reset();
  CHECK_EQ(pool.info().live_count, 0);
  std::variant<std::monostate, device_buffer, mr::resource> either = plain;
  either                                                           = device_buffer{3, cuda_stream_legacy, pool};
  std::any anything                                                = mr::resource{pool};
  CHECK(std::any_cast<mr::resource>(anything) == pool);
  std::unordered_set<mr::resource> set{plain, pool, pool, mr::resource{}};
  CHECK_EQ(set.size(), 3);
  CHECK(set.count(mr::resource{pool}) == 1);
  std::unordered_map<device_buffer, int> by_buffer;
  by_buffer.emplace(device_buffer{5, cuda_stream_legacy, pool}, 5);
  CHECK_EQ(by_buffer.begin()->first.size(), 5);
  std::shared_ptr<device_buffer> const shared = std::make_shared<device_buffer>(7, cuda_stream_legacy, pool);
  std::unique_ptr<device_buffer> const unique = std::make_unique<device_buffer>(7, cuda_stream_legacy, pool);
  CHECK(*shared != *unique);
}

TEST(resources_compare_by_who_they_are)
{
  mr::cuda_memory_resource const one, two;
  CHECK(one == two && one.id() == two.id());
  mr::managed_memory_resource const managed;
  CHECK(one != managed);
  mr::pool_memory_resource const pool{one, 0}, other{one, 0};
  CHECK(pool != other && pool == mr::resource{pool});
  CHECK(pool.get_upstream_resource() == one);
  CHECK(mr::resource::from_id(pool.id()) == pool);
  CHECK(!mr::resource::from_id(0));
}

TEST(process_wide_resources_are_ready_even_after_a_move)
{
  mr::cuda_memory_resource cuda;
  mr::resource const moved = std::move(cuda);
  device_buffer const buffer{10, cuda_stream_legacy, cuda};
  CHECK(buffer.memory_resource() == moved);
  tenure_resource const handle = cuda.release();
  CHECK(mr::resource::from_handle(handle) == moved);
}

TEST(resource_cast_finds_the_concrete_class)
{
  mr::resource const pool       = mr::pool_memory_resource{mr::cuda_memory_resource{}, 1 << 20};
  mr::resource const limiting   = mr::limiting_resource_adaptor{pool, 4096};
  mr::resource const statistics = mr::statistics_resource_adaptor{limiting};
  auto const found              = resource_cast<mr::pool_memory_resource>(pool);
  CHECK(found.has_value() && found->pool_size() >= 1 << 20 && *found == pool);
  CHECK(!resource_cast<mr::pool_memory_resource>(limiting));
  CHECK(!resource_cast<mr::pool_memory_resource>(mr::resource{}));
  CHECK(resource_cast<mr::limiting_resource_adaptor>(limiting)->get_allocation_limit() == 4096);
  CHECK(resource_cast<mr::statistics_resource_adaptor>(statistics)->get_bytes_counter().value == 0);
  CHECK(resource_cast<mr::cuda_memory_resource>(pool.get_upstream_resource()).has_value());
  CHECK(!resource_cast<mr::managed_memory_resource>(pool.get_upstream_resource()).has_value());
  CHECK(resource_cast<check::counting>(pool) == nullptr);
  auto const book          = std::make_shared<check::ledger>();
  mr::resource const mine  = check::make_counting(book);
  check::counting* const object = resource_cast<check::counting>(mine);
  CHECK(object != nullptr && mine.kind() == "counting");
  CHECK(!resource_cast<mr::callback_memory_resource>(mine));
}

TEST(streams_compare_and_know_their_defaults)
{
  cuda_stream_view const view{};
  CHECK(view == cuda_stream_default && view.is_default() && !view.is_per_thread_default());
  CHECK(cuda_stream_view(cudaStream_t{}) == cuda_stream_legacy);
  CHECK(cuda_stream_per_thread != cuda_stream_legacy && cuda_stream_per_thread.is_per_thread_default());
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  cuda_stream const copy = stream;
  CHECK(copy == stream && stream.view() == copy.view() && stream.view() != view);
  CHECK(cuda_stream_view(stream.value()) == stream.view());
  CHECK(stream.device() == get_current_cuda_device());
  stream.synchronize();
  CHECK(stream.view().query());
  stream.view().wait(view);
}

TEST(vectors_hold_elements)
{
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  device_uvector<std::int64_t> vector{10, stream};
  CHECK(vector.size() == 10 && vector.ssize() == 10 && vector.end() - vector.begin() == 10);
  for (std::size_t i = 0; i < 10; ++i) { vector.set_element(i, static_cast<std::int64_t>(i * i), stream); }
  CHECK(vector.element(3, stream) == 9 && vector.front_element(stream) == 0 && vector.back_element(stream) == 81);
  vector.set_element_to_zero_async(3, stream);
  CHECK(vector.element(3, stream) == 0);
  std::int64_t const value = -5;
  vector.set_element_async(3, value, stream);
  CHECK(vector.element(3, stream) == -5);
  vector.resize(1000, stream);
  CHECK(vector.element(9, stream) == 81);
  device_uvector<std::int64_t> const copy{vector, stream};
  CHECK(copy.size() == 1000 && copy.element(9, stream) == 81 && copy != vector);
  CHECK_THROWS(vector.element(1000, stream), out_of_range, "element 1000 of a vector of 1000");
  CHECK_THROWS(device_uvector<std::int64_t>(static_cast<std::size_t>(-1) / 4, stream), invalid_argument, "elements of 8 bytes");
  CHECK_THROWS(vector.resize(static_cast<std::size_t>(-1) / 2, stream), invalid_argument, "elements of 8 bytes");
  CHECK(vector.size() == 1000);
  device_buffer storage = vector.release();
  CHECK(!vector && storage.size() == 8000);
  storage.resize(7999, stream);
  CHECK_THROWS(device_uvector<std::int64_t>(std::move(storage)), invalid_argument, "no whole number");
  CHECK(storage.size() == 7999);
  device_uvector<char> const none{0, stream};
  CHECK(none && none.is_empty() && none.data() == nullptr);
}

TEST(scalars_hold_a_value)
{
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  device_scalar<double> scalar{2.5, stream};
  CHECK(scalar.value(stream) == 2.5);
  double const next = 4.5;
  scalar.set_value_async(next, stream);
  CHECK(scalar.value(stream) == 4.5);
  device_scalar<double> const copy{scalar, stream};
  scalar.set_value_to_zero_async(stream);
  CHECK(scalar.value(stream) == 0.0 && copy.value(stream) == 4.5);
}

TEST(the_library_says_what_it_is)
{
  CHECK(!version().empty());
  CHECK(describe().find('{') == 0);
  CHECK(get_num_cuda_devices() >= 1);
  auto const [available, total] = available_device_memory();
  CHECK(total > 0 && available <= total);
  CHECK(std::string(device_info().name).size() > 0);
  CHECK_THROWS(set_current_cuda_device(cuda_device_id{77}), invalid_argument, "77");
  cuda_set_device_raii const same{get_current_cuda_device()};
}

TEST(a_foreign_handle_is_reported_by_the_destructor)
{
  std::string said;
  set_misuse_handler([&said](std::string_view message) { said = message; });
  {
    device_buffer const buffer = device_buffer::from_handle(12345);
    CHECK(buffer && buffer.size() == 0 && buffer.data() == nullptr);
    CHECK_THROWS(buffer.view(), bad_handle, "");
  }
  CHECK(!said.empty());
  said.clear();
  {
    mr::resource resource = mr::resource::from_handle(12345);
    CHECK_THROWS(resource.id(), bad_handle, "");
    CHECK_THROWS(mr::resource(resource), bad_handle, "");
    CHECK_THROWS(device_buffer(10, cuda_stream_legacy, resource), bad_handle, "");
  }
  CHECK(!said.empty());
  CHECK_EQ(misuse_count(), 2);
  set_misuse_handler({});
}

int main() { return check::run_all("types.cpp", 2); }
