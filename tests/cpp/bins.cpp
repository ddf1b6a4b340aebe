// SPDX-License-Identifier: Apache-2.0
//
// Blocks of one size, bins, and the arena, as C++ makes and uses them.

#include "check.hpp"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <unistd.h>

using namespace tenure;
using check::ledger;
using check::make_counting;

static std::shared_ptr<ledger> book() { return std::make_shared<ledger>(); }

TEST(blocks_come_from_chunks_and_are_checked_when_they_go)
{
  auto const counts = book();
  {
    mr::fixed_size_memory_resource blocks{make_counting(counts), 4096, 4};
    CHECK_EQ(counts->allocations, 1);
    CHECK_EQ(blocks.get_block_size(), 4096);
    CHECK(blocks.kind() == "fixed_size" && blocks.get_upstream_resource().kind() == "counting");
    void* const ptr = blocks.allocate(cuda_stream_legacy, 1000);
    CHECK_EQ(counts->allocations, 1);
    CHECK_THROWS(blocks.allocate(cuda_stream_legacy, 4097), invalid_argument, "block_size is 4096");
    CHECK_THROWS(blocks.deallocate(cuda_stream_legacy, ptr, 4096), ownership_error, "1000 bytes");
    CHECK_THROWS(blocks.deallocate(cuda_stream_legacy, static_cast<char*>(ptr) + 256, 1000), ownership_error, "inside");
    blocks.deallocate(cuda_stream_legacy, ptr, 1000);
    CHECK_THROWS(blocks.deallocate(cuda_stream_legacy, ptr, 1000), ownership_error, "freed already");
    device_buffer const kept{100, cuda_stream_legacy, blocks};
    blocks.reset();
    CHECK_EQ(counts->dropped, 0);
  }
  CHECK_EQ(counts->dropped, 1);
  CHECK_EQ(counts->allocations, counts->frees);
  CHECK_EQ(counts->live_bytes, 0);
}

TEST(rmms_defaults)
{
  mr::fixed_size_memory_resource const blocks{mr::cuda_memory_resource{}};
  CHECK_EQ(blocks.get_block_size(), std::size_t{1} << 20);
  CHECK_EQ(blocks.info().reserved_bytes, std::uint64_t{128} << 20);
  CHECK_EQ(mr::fixed_size_memory_resource::default_block_size, blocks.get_block_size());
  mr::fixed_size_memory_resource const same{blocks};
  CHECK(same == blocks);
  mr::fixed_size_memory_resource const over{blocks, mr::fixed_size_options{4096, 1, {}}};
  CHECK(over != blocks && over.get_upstream_resource() == blocks);
  // The C interface without options, and with a zeroed structure.
  tenure_resource made = 0;
  CHECK_OK(tenure_fixed_size_create(mr::cuda_memory_resource{}.handle(), nullptr, &made));
  auto found = mr::resource::from_handle(made);
  CHECK_EQ(resource_cast<mr::fixed_size_memory_resource>(found)->get_block_size(), std::size_t{1} << 20);
  tenure_fixed_size_options zeros{};
  zeros.size = sizeof zeros;
  CHECK_OK(tenure_fixed_size_create(mr::cuda_memory_resource{}.handle(), &zeros, &made));
  found = mr::resource::from_handle(made);
  CHECK_EQ(found.info().reserved_bytes, 0);
  zeros.size = 3;
  CHECK_EQ(tenure_fixed_size_create(found.handle(), &zeros, &made), TENURE_ERROR_INVALID_ARGUMENT);
  // An older client knows less of the structure: what it does not know is as by default.
  zeros.size = offsetof(tenure_fixed_size_options, blocks_to_preallocate);
  zeros.block_size = 4096;
  zeros.blocks_to_preallocate = ~std::uint64_t{0};
  CHECK_OK(tenure_fixed_size_create(found.handle(), &zeros, &made));
  CHECK_EQ(mr::resource::from_handle(made).info().reserved_bytes, 0);
  CHECK_EQ(resource_cast<mr::fixed_size_memory_resource>(found)->get_block_size(), std::size_t{1} << 20);
}

TEST(bins_serve_by_size_and_blocks_go_home)
{
  auto const counts = book();
  mr::binning_memory_resource bins{make_counting(counts), 12, 14};
  CHECK_EQ(counts->allocations, 0);
  auto all = bins.bins();
  CHECK_EQ(all.size(), 3);
  CHECK_EQ(all[0].first, 4096);
  CHECK_EQ(all[2].first, 16384);
  CHECK(resource_cast<mr::fixed_size_memory_resource>(all[1].second)->get_block_size() == 8192);
  void* const large = bins.allocate(cuda_stream_legacy, 20000);
  CHECK_EQ(counts->live_bytes, 20000);
  void* const small = bins.allocate(cuda_stream_legacy, 5000);
  CHECK_EQ(all[1].second.info().live_count, 1);
  // A bin that comes later takes over neither.
  auto const own = book();
  bins.add_bin(6000, make_counting(own));
  bins.add_bin(1 << 15);
  bins.add_bin(1 << 15);
  CHECK_EQ(bins.bins().size(), 5);
  CHECK_EQ(bins.bins()[1].first, 6144);
  void* const other = bins.allocate(cuda_stream_legacy, 5000);
  CHECK_EQ(own->allocations, 1);
  CHECK_THROWS(bins.deallocate(cuda_stream_legacy, large, 5000), ownership_error, "20000 bytes");
  CHECK_EQ(bins.info().live_bytes, 30000);
  bins.deallocate(cuda_stream_legacy, small, 5000);
  bins.deallocate(cuda_stream_legacy, large, 20000);
  bins.deallocate(cuda_stream_legacy, other, 5000);
  CHECK_EQ(own->frees, 1);
  CHECK_EQ(bins.info().live_bytes, 0);
  CHECK(bins.trim() > 0);
  CHECK_EQ(counts->live_bytes, 0);
  all.clear();
  bins.reset();
  CHECK_EQ(own->dropped, 1);
  CHECK_EQ(counts->dropped, 1);
}

TEST(bins_that_make_no_sense_throw)
{
  mr::cuda_memory_resource const cuda;
  CHECK_THROWS(mr::binning_memory_resource(cuda, 20, 18), invalid_argument, "min_size_exponent (20)");
  CHECK_THROWS(mr::binning_memory_resource(cuda, 20, -1), invalid_argument, "max_size_exponent is -1");
  CHECK_THROWS(mr::binning_memory_resource(cuda, 20, 120), invalid_argument, "max_size_exponent is 120");
  CHECK(mr::binning_memory_resource(cuda, -1, -1).bins().empty());
  mr::binning_memory_resource bins{cuda};
  CHECK_THROWS(bins.add_bin(0), invalid_argument, "allocation_size is 0");
  CHECK_THROWS(bins.add_bin(1 << 20, bins), invalid_argument, "takes its memory from this");
  CHECK_THROWS(bins.add_bin(1 << 20, mr::fixed_size_memory_resource(cuda, 4096, 0)), invalid_argument, "4096");
  CHECK(bins.bins().empty());
  tenure_resource none = 1;
  CHECK_OK(tenure_binning_bin(bins.handle(), 0, nullptr, &none));
  CHECK(none == TENURE_RESOURCE_NULL);
  CHECK_EQ(tenure_binning_add_bin(cuda.handle(), 4096, TENURE_RESOURCE_NULL), TENURE_ERROR_UNSUPPORTED);
  CHECK_EQ(tenure_binning_bin(cuda.handle(), 0, nullptr, &none), TENURE_ERROR_UNSUPPORTED);
  CHECK_EQ(tenure_binning_add_bin(bins.handle(), 4096, TENURE_RESOURCE_CURRENT), TENURE_ERROR_BAD_HANDLE);
  CHECK_EQ(tenure_binning_bin(bins.handle(), 0, nullptr, nullptr), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_EQ(tenure_binning_create(cuda.handle(), nullptr, nullptr), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_EQ(tenure_fixed_size_create(TENURE_RESOURCE_NULL, nullptr, &none), TENURE_ERROR_BAD_HANDLE);
  CHECK_EQ(tenure_arena_create(12345, nullptr, &none), TENURE_ERROR_BAD_HANDLE);
  CHECK_THROWS(mr::fixed_size_memory_resource(cuda, 0), invalid_argument, "block_size is 0");
  CHECK_THROWS(mr::arena_memory_resource(cuda, 0), invalid_argument, "arena_size is 0");
  CHECK_THROWS(mr::arena_memory_resource(cuda, 100), invalid_argument, "arena_size is 100");
}

TEST(an_arena_has_its_size_and_no_more)
{
  auto const counts = book();
  {
    mr::arena_memory_resource arena{make_counting(counts), 1 << 20};
    CHECK_EQ(arena.arena_size(), 1 << 20);
    CHECK_EQ(counts->live_bytes, 1 << 20);
    device_buffer all{1 << 20, cuda_stream_legacy, arena};
    CHECK_THROWS(arena.allocate(cuda_stream_legacy, 256), out_of_memory, "arena > counting");
    all = device_buffer{};
    device_buffer const again{1 << 19, cuda_stream_legacy, arena};
    CHECK_EQ(counts->allocations, 1);
    CHECK_EQ(arena.info().live_bytes, 1 << 19);
  }
  CHECK_EQ(counts->frees, 1);
  mr::arena_memory_resource const half{mr::cuda_memory_resource{}};
  CHECK(half.arena_size() > (1 << 20) && half.kind() == "arena");
  CHECK(mr::arena_memory_resource{half} == half);
}

TEST(an_arena_leaves_its_state_in_a_file)
{
  std::string folder = (std::filesystem::temp_directory_path() / "tenure-arena-XXXXXX").string();
  CHECK(::mkdtemp(folder.data()) != nullptr && ::chdir(folder.c_str()) == 0);
  mr::arena_memory_resource quiet{mr::cuda_memory_resource{}, 1 << 21};
  CHECK_THROWS(quiet.allocate(cuda_stream_legacy, 1 << 22), out_of_memory, "");
  CHECK(::access("tenure_arena_memory_dump.log", F_OK) != 0);
  mr::arena_memory_resource arena{mr::cuda_memory_resource{}, 1 << 21, true};
  CHECK_THROWS(arena.allocate(cuda_stream_legacy, 1 << 22), out_of_memory, "arena > cuda");
  CHECK(::access("tenure_arena_memory_dump.log", R_OK) == 0);
  CHECK_EQ(std::remove("tenure_arena_memory_dump.log"), 0);
  CHECK(::chdir("/") == 0 && ::rmdir(folder.c_str()) == 0);
}

TEST(kinds_are_found_again)
{
  mr::cuda_memory_resource const cuda;
  mr::resource any = mr::binning_memory_resource(cuda);
  CHECK(resource_cast<mr::binning_memory_resource>(any).has_value());
  CHECK(!resource_cast<mr::arena_memory_resource>(any).has_value());
  any = mr::arena_memory_resource(cuda, 1 << 21);
  CHECK(resource_cast<mr::arena_memory_resource>(any).has_value());
  any = mr::cuda_async_memory_resource(std::nullopt);
  CHECK(resource_cast<mr::cuda_async_memory_resource>(any).has_value());
}

int main() { return check::run_all("bins.cpp"); }
