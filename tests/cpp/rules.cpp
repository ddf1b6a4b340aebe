// SPDX-License-Identifier: Apache-2.0
//
// The rules of ownership in C++. The upstreams count what they are asked for and their own end.

#include "check.hpp"

#include <cstring>
#include <new>
#include <thread>

using namespace tenure;
using check::ledger;
using check::make_counting;

static std::shared_ptr<ledger> book() { return std::make_shared<ledger>(); }

TEST(a_buffer_outlives_its_resource_in_any_order)
{
  auto const counts = book();
  device_buffer buffer;
  {
    mr::pool_memory_resource const pool{make_counting(counts), 0};
    buffer = device_buffer{1 << 12, cuda_stream_legacy, pool};
  }
  CHECK_EQ(counts->dropped, 0);
  copy_async(buffer.data(), &counts, sizeof counts, buffer.stream());
  buffer.stream().synchronize();
  mr::resource again = buffer.memory_resource();
  CHECK(again.kind() == "pool");
  buffer = device_buffer{};
  CHECK_EQ(counts->dropped, 0);
  again.reset();
  CHECK_EQ(counts->dropped, 1);
  CHECK_EQ(counts->allocations, counts->frees);
}

TEST(adaptors_keep_their_upstreams)
{
  auto const counts = book();
  mr::resource top;
  {
    mr::resource const upstream = make_counting(counts);
    mr::limiting_resource_adaptor const limiting{upstream, 1 << 20};
    top = mr::statistics_resource_adaptor{limiting};
  }
  CHECK_EQ(counts->dropped, 0);
  CHECK(top.get_upstream_resource().get_upstream_resource().kind() == "counting");
  top = mr::resource{};
  CHECK_EQ(counts->dropped, 1);
}

TEST(a_wrong_free_throws_and_changes_nothing)
{
  auto const mine = book(), theirs = book();
  mr::resource owner = make_counting(mine), other = make_counting(theirs);
  void* const ptr = owner.allocate(cuda_stream_legacy, 1000);
  CHECK_THROWS(other.deallocate(cuda_stream_legacy, ptr, 1000), ownership_error, "");
  CHECK_THROWS(owner.deallocate(cuda_stream_legacy, ptr, 4000), ownership_error, "");
  CHECK_THROWS(owner.deallocate(cuda_stream_legacy, static_cast<char*>(ptr) + 256, 1000), ownership_error, "");
  CHECK_THROWS(owner.deallocate(cuda_stream_legacy, &owner, 1000), ownership_error, "");
  try {
    other.deallocate(cuda_stream_legacy, ptr, 1000);
  } catch (ownership_error const& error) {
    CHECK(error.status() == TENURE_ERROR_OWNERSHIP);
    CHECK_EQ(error.details().ptr, reinterpret_cast<std::uintptr_t>(ptr));
    CHECK_EQ(error.details().bytes, 1000);
    CHECK_EQ(error.details().asked, other.id());
  }
  CHECK_EQ(mine->frees + theirs->frees, 0);
  CHECK(owner.owns(ptr) && !other.owns(ptr));
  owner.deallocate(cuda_stream_legacy, ptr, 1000);
  CHECK_THROWS(owner.deallocate(cuda_stream_legacy, ptr, 1000), ownership_error, "");
  CHECK_EQ(mine->frees, 1);
}

TEST(a_wrong_free_that_cannot_throw_is_reported)
{
  auto const counts  = book();
  mr::resource owner = make_counting(counts);
  std::string said;
  auto const before = misuse_count();
  set_misuse_handler([&said](std::string_view message) { said = message; });
  owner.deallocate_or_report(cuda_stream_legacy, &said, 8);
  CHECK_EQ(misuse_count(), before + 1);
  CHECK(!said.empty());
  // A handler that throws does no harm.
  set_misuse_handler([](std::string_view) { throw std::runtime_error("handlers must not throw"); });
  owner.deallocate_or_report(cuda_stream_legacy, &said, 8);
  CHECK_EQ(misuse_count(), before + 2);
  set_misuse_handler([](std::string_view) {});
}

TEST(adoption_is_refused_for_pointers_of_others)
{
  auto const mine = book(), theirs = book();
  mr::resource owner = make_counting(mine), other = make_counting(theirs);
  void* const ptr = owner.allocate(cuda_stream_legacy, 500);
  int foreign     = 0;
  CHECK_THROWS(device_buffer::adopt(&foreign, 4, cuda_stream_legacy, owner), ownership_error, "");
  CHECK_THROWS(device_buffer::adopt(ptr, 500, cuda_stream_legacy, other), ownership_error, "");
  CHECK_THROWS(device_buffer::adopt(ptr, 5000, cuda_stream_legacy, owner), ownership_error, "");
  CHECK_EQ(mine->frees, 0);
  {
    device_buffer const adopted = device_buffer::adopt(ptr, 500, cuda_stream_legacy, owner);
    CHECK(adopted.data() == ptr && adopted.memory_resource() == owner);
  }
  CHECK_EQ(mine->frees, 1);
}

TEST(detaching_and_adopting_are_inverse)
{
  auto const counts = book();
  cuda_stream stream{cuda_stream::flags::non_blocking};
  device_buffer buffer{300, stream, make_counting(counts)};
  cudaStream_t const raw     = stream.value();
  stream                     = cuda_stream{};
  detached_allocation detail = buffer.detach();
  CHECK(buffer && buffer.data() == nullptr && buffer.is_empty());
  buffer = device_buffer{};
  CHECK_EQ(counts->frees, 0);
  CHECK(detail.bytes == 300 && detail.stream.value() == raw && detail.stream_owner.is_valid());
  detail.stream.synchronize();
  buffer = device_buffer::adopt(detail.ptr, detail.capacity, detail.stream, detail.resource, detail.alignment);
  detail = detached_allocation{};
  CHECK(buffer.stream().value() == raw);
  buffer = device_buffer{};
  CHECK_EQ(counts->frees, 1);
  CHECK_EQ(counts->dropped, 1);
}

TEST(foreign_memory_keeps_its_owner)
{
  auto const memory = std::make_shared<std::vector<char>>(64);
  {
    device_buffer const buffer =
      device_buffer::adopt_with_owner(memory->data(), 64, cuda_device_id{-1}, cuda_stream_legacy, memory);
    CHECK_EQ(memory.use_count(), 2);
    CHECK(buffer.data() == memory->data() && !buffer.memory_resource());
  }
  CHECK_EQ(memory.use_count(), 1);
  int freed = 0;
  {
    device_buffer const buffer = device_buffer::adopt_with_free(
      memory->data(), 64, cuda_device_id{-1}, cuda_stream_legacy, [&freed, memory](void* ptr, std::size_t bytes, cuda_stream_view) {
        CHECK(ptr == memory->data() && bytes == 64);
        ++freed;
      });
    CHECK_EQ(memory.use_count(), 2);
  }
  CHECK_EQ(freed, 1);
  CHECK_EQ(memory.use_count(), 1);
  CHECK_THROWS(device_buffer::adopt_with_free(memory->data(), 64, cuda_device_id{-1}, cuda_stream_legacy, {}), invalid_argument, "empty");
}

TEST(a_buffer_crosses_as_its_handle)
{
  auto const counts = book();
  tenure_buffer crossing;
  {
    device_buffer buffer{128, cuda_stream_legacy, make_counting(counts)};
    crossing = buffer.release();
    CHECK(!buffer);
  }
  CHECK_EQ(counts->frees, 0);
  device_buffer const taken = device_buffer::from_handle(crossing);
  CHECK(taken.size() == 128 && taken.memory_resource().kind() == "counting");
}

static device_buffer column_of_a_library(std::size_t bytes) { return device_buffer{bytes, cuda_stream_legacy}; }

// The scene of cudf#14229: the maker's resource is current, the entry is replaced and dropped, another thread frees.
TEST(the_maker_gets_its_memory_back_once)
{
  auto const counts     = book();
  mr::resource previous = mr::set_current_device_resource(make_counting(counts));
  std::unique_ptr<device_buffer> made = std::make_unique<device_buffer>(column_of_a_library(1000));
  {
    mr::resource const mine = mr::set_current_device_resource(previous);
    CHECK(mine == made->memory_resource());
  }
  CHECK_EQ(counts->dropped, 0);
  std::thread([buffer = std::move(made)]() mutable { buffer.reset(); }).join();
  CHECK_EQ(counts->allocations, 1);
  CHECK_EQ(counts->frees, 1);
  CHECK_EQ(counts->dropped, 1);
  CHECK(mr::get_current_device_resource() == previous);
}

TEST(set_get_and_reset_own_what_they_return)
{
  auto const counts           = book();
  mr::resource const before   = mr::get_current_device_resource();
  mr::resource const previous = mr::set_per_device_resource(get_current_cuda_device(), make_counting(counts));
  CHECK(previous == before);
  mr::resource mine = mr::get_per_device_resource(get_current_cuda_device());
  CHECK(mine.kind() == "counting" && mine == mr::get_current_device_resource());
  mr::resource const replaced = mr::reset_current_device_resource();
  CHECK(replaced == mine);
  CHECK(mr::get_current_device_resource() == mr::cuda_memory_resource{});
  void* const ptr = mine.allocate(cuda_stream_legacy, 10);  // what was got works on
  mine.deallocate(cuda_stream_legacy, ptr, 10);
  mr::set_current_device_resource(before);
}

TEST(a_scope_is_undone_by_an_exception)
{
  auto const counts         = book();
  mr::resource const before = mr::get_current_device_resource();
  try {
    mr::using_resource const scope{make_counting(counts)};
    device_buffer const buffer = column_of_a_library(50);
    CHECK(buffer.memory_resource().kind() == "counting");
    throw std::runtime_error("out of the scope");
  } catch (std::runtime_error const&) {
  }
  CHECK(mr::get_current_device_resource() == before);
  CHECK_EQ(counts->frees, 1);
  CHECK_EQ(counts->dropped, 1);
}

TEST(scopes_belong_to_their_thread_and_end_anywhere)
{
  mr::resource const before = mr::get_current_device_resource();
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, 0};
  mr::using_resource scope{pool};
  CHECK(mr::get_current_device_resource() == pool);
  std::thread([&] { CHECK(mr::get_current_device_resource() == before); }).join();
  // A set within a scope changes the binding of the scope, not the entry of the process.
  mr::statistics_resource_adaptor const other{before};
  mr::resource const replaced = mr::set_current_device_resource(other);
  CHECK(replaced == pool && mr::get_current_device_resource() == other);
  std::thread([&] { CHECK(mr::get_current_device_resource() == before); }).join();
  mr::using_resource moved = std::move(scope);
  CHECK(!scope && moved);
  std::thread([ended = std::move(moved)] {}).join();
  CHECK(mr::get_current_device_resource() == before);
}

TEST(a_buffer_keeps_its_stream_alive)
{
  auto const owner = std::make_shared<int>(1);
  cuda_stream own{cuda_stream::flags::non_blocking};
  device_buffer buffer;
  {
    cuda_stream const wrapped = cuda_stream::wrap(own.value(), owner);
    buffer                    = device_buffer{64, wrapped};
  }
  CHECK_EQ(owner.use_count(), 2);
  buffer.stream().synchronize();
  buffer = device_buffer{};
  CHECK_EQ(owner.use_count(), 1);
  device_buffer last{64, own};
  own = cuda_stream{};
  fill_async(last.data(), 3, last.size(), last.stream());
  last.set_stream(cuda_stream_legacy);
  last.record_stream(cuda_stream_per_thread);
  CHECK(last.stream() == cuda_stream_legacy);
}

TEST(out_of_memory_has_its_figures)
{
  mr::limiting_resource_adaptor limiting{mr::cuda_memory_resource{}, 1000};
  device_buffer buffer{600, cuda_stream_legacy, limiting};
  try {
    buffer.resize(5000, cuda_stream_legacy);
    CHECK(!"a resize beyond the limit throws");
  } catch (out_of_memory const& error) {
    CHECK_EQ(error.details().requested, 5000);
    CHECK_EQ(error.details().limit, 1000);
    CHECK(std::string(error.what()) == error.message() && !error.message().empty());
  }
  CHECK(buffer.size() == 600 && limiting.get_allocated_bytes() >= 600);
  CHECK_THROWS(limiting.allocate(cuda_stream_legacy, 2000), std::bad_alloc, "");
  CHECK_THROWS(device_buffer(static_cast<std::size_t>(-1), cuda_stream_legacy, limiting), tenure::error, "");
  CHECK(buffer.size() == 600);
}

TEST(owner_of_names_the_resource_that_was_asked)
{
  mr::statistics_resource_adaptor const outer{mr::cuda_memory_resource{}};
  device_buffer const buffer{256, cuda_stream_legacy, outer};
  ownership const found = owner_of(static_cast<char const*>(buffer.data()) + 17);
  CHECK(found && found.owner == outer && found.base == buffer.data() && found.bytes >= 256);
  CHECK(!owner_of(&found));
}

TEST(no_bytes_call_nobody)
{
  auto const counts = book();
  device_buffer buffer{0, cuda_stream_per_thread, make_counting(counts)};
  CHECK(buffer && buffer.data() == nullptr && buffer.is_empty());
  CHECK(buffer.stream() == cuda_stream_per_thread && buffer.memory_resource().kind() == "counting");
  device_buffer const copy{buffer, cuda_stream_legacy, buffer.memory_resource()};
  device_buffer const from_null{nullptr, 0, cuda_stream_legacy};
  CHECK(copy.is_empty() && from_null.is_empty());
  CHECK_EQ(counts->allocations, 0);
  CHECK_THROWS(device_buffer(nullptr, 5, cuda_stream_legacy), invalid_argument, "null pointer");
}

TEST(many_blocks_come_and_go_in_one_call)
{
  auto const counts = book();
  mr::resource resource = make_counting(counts);
  std::vector<std::size_t> const sizes{1000, 0, 300, 70};
  auto ptrs = resource.allocate_many(cuda_stream_legacy, sizes);
  CHECK(ptrs.size() == 4 && ptrs[0] != nullptr && ptrs[1] == nullptr && ptrs[3] != nullptr);
  CHECK_EQ(counts->allocations, 3);
  CHECK_THROWS(resource.deallocate_many(cuda_stream_legacy, ptrs, {1000, 0}), invalid_argument, "4 pointers and 2 sizes");
  CHECK_EQ(counts->frees, 0);
  void* const right = std::exchange(ptrs[2], static_cast<char*>(ptrs[2]) + 256);
  CHECK_THROWS(resource.deallocate_many(cuda_stream_legacy, ptrs, sizes), ownership_error, "block 2 of 4");
  CHECK_EQ(counts->frees, 2);
  std::size_t wrong = 7;
  resource.deallocate_many(cuda_stream_legacy, &right, &sizes[2], 1, CUDA_ALLOCATION_ALIGNMENT, &wrong);
  CHECK(wrong == 1 && counts->frees == 3);
  CHECK(resource.allocate_many(cuda_stream_legacy, std::vector<std::size_t>{}).empty());
  mr::limiting_resource_adaptor limit{resource, 2000};
  CHECK_THROWS((void)limit.allocate_many(cuda_stream_legacy, {1500, 1500}), out_of_memory, "");
  CHECK_EQ(counts->allocations, counts->frees);
  cuda_stream_legacy.note_sync();
  cuda_stream{cuda_stream::flags::non_blocking}.note_sync();
  cuda_stream{cuda_stream::flags::non_blocking}.note_wait(cuda_stream_legacy);
  cuda_stream_legacy.note_wait(cuda_stream{cuda_stream::flags::non_blocking});
}

TEST(statistics_nest)
{
  mr::statistics_resource_adaptor statistics{mr::cuda_memory_resource{}};
  device_buffer const outer{100, cuda_stream_legacy, statistics};
  CHECK(statistics.get_bytes_counter().value == 100 && statistics.get_allocations_counter().value == 1);
  statistics.push_counters();
  {
    device_buffer const inner{50, cuda_stream_legacy, statistics};
  }
  auto const [bytes, blocks] = statistics.pop_counters();
  CHECK(bytes.peak == 50 && bytes.value == 0 && blocks.total == 1);
  CHECK(statistics.get_bytes_counter().peak == 150 && statistics.get_bytes_counter().total == 150);
  CHECK_THROWS(statistics.pop_counters(), tenure::error, "");
}

TEST(a_buffer_is_closed_in_order_and_may_be_used_again)
{
  auto const counts = book();
  device_buffer buffer{100, cuda_stream_legacy, make_counting(counts)};
  buffer.close();
  CHECK_EQ(counts->frees, 1);
  CHECK(buffer && buffer.is_empty());
  buffer.close(cuda_stream_per_thread);
  buffer.resize(20, cuda_stream_legacy);
  CHECK_EQ(counts->allocations, 2);
}

TEST(bytes_survive_growth_and_copies)
{
  std::vector<unsigned char> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i) { bytes[i] = static_cast<unsigned char>(i * 13); }
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, 0};
  device_buffer buffer{bytes.data(), bytes.size(), cuda_stream_legacy, pool};
  buffer.resize(1 << 20, cuda_stream_legacy);
  device_buffer const copy{buffer, cuda_stream_legacy, mr::managed_memory_resource{}};
  CHECK(copy.memory_resource() == mr::managed_memory_resource{});
  std::vector<unsigned char> back(bytes.size());
  copy_async(back.data(), copy.data(), back.size(), cuda_stream_legacy);
  cuda_stream_legacy.synchronize();
  CHECK(std::memcmp(bytes.data(), back.data(), back.size()) == 0);
}

// Two wrong frees were made on purpose.
int main() { return check::run_all("rules.cpp", 2); }
