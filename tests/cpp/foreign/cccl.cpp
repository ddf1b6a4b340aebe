// SPDX-License-Identifier: Apache-2.0
//
// tenure's resources as CCCL's, and CCCL's as tenure's, on whatever device there is. Compiled against CCCL's headers.

#include "../check.hpp"

#include <tenure/cccl.hpp>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

using namespace tenure;
using on_device = ::cuda::mr::device_accessible;
using on_host   = ::cuda::mr::host_accessible;
using any       = ::cuda::mr::any_resource<on_device>;

// What a type promises.
static_assert(::cuda::mr::resource_with<mr::resource, on_device>);
static_assert(::cuda::mr::resource_with<mr::pool_memory_resource, on_device>);
static_assert(::cuda::mr::resource_with<mr::cuda_memory_resource, on_device>);
static_assert(::cuda::mr::resource_with<mr::pinned_host_memory_resource, on_device, on_host>);
static_assert(::cuda::mr::resource_with<mr::managed_memory_resource, on_device, on_host>);
static_assert(::cuda::mr::resource_with<mr::system_memory_resource, on_device, on_host>);
static_assert(::cuda::mr::resource_with<mr::cuda_async_managed_memory_resource, on_device, on_host>);
static_assert(::cuda::mr::resource_with<mr::resource_with<on_host>, on_device, on_host>);
static_assert(!::cuda::mr::resource_with<mr::resource, on_host> && !::cuda::mr::resource_with<mr::pool_memory_resource, on_host>);
static_assert(!::cuda::mr::resource_with<mr::resource_with<on_device>, on_host>);
static_assert(!::cuda::mr::resource_with<mr::resource_ref, on_device>, "a parameter owns nothing: no any_resource may keep it");
// One word, so that CCCL keeps it inline: it does so for three words that move without throwing.
static_assert(sizeof(mr::resource) == sizeof(void*) && sizeof(mr::pool_memory_resource) == sizeof(void*));
static_assert(sizeof(mr::resource_with<on_host>) == sizeof(void*));
static_assert(std::is_nothrow_move_constructible_v<mr::resource> && alignof(mr::resource) <= alignof(void*));
// Streams go both ways, and a literal is still none.
static_assert(std::is_convertible_v<::cuda::stream_ref, cuda_stream_view> && std::is_convertible_v<cuda_stream_view, ::cuda::stream_ref>);
static_assert(std::is_convertible_v<cuda_stream, ::cuda::stream_ref> && std::is_convertible_v<cuda_stream, cuda_stream_view>);
static_assert(!std::is_constructible_v<cuda_stream_view, int> && !std::is_constructible_v<cuda_stream_view, std::nullptr_t>);

namespace {

mr::pool_memory_resource new_pool() { return mr::pool_memory_resource{mr::cuda_memory_resource{}, 0}; }

/** A resource of somebody's own for CCCL, which counts. */
struct counters {
  std::atomic<int> allocations{0}, frees{0}, synchronous{0};
  std::size_t alignment{0};
};
struct foreign {
  std::shared_ptr<counters> count{std::make_shared<counters>()};
  mr::resource below{mr::cuda_memory_resource{}};

  void* allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment)
  {
    ++count->allocations;
    count->alignment = alignment;
    if (bytes > (std::size_t{1} << 40)) { throw std::bad_alloc(); }
    return below.allocate(stream, bytes, alignment);
  }
  void deallocate(::cuda::stream_ref stream, void* ptr, std::size_t bytes, std::size_t alignment) noexcept
  {
    ++count->frees;
    below.deallocate(stream, ptr, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) { return below.allocate_sync(bytes, alignment); }
  void deallocate_sync(void* ptr, std::size_t bytes, std::size_t alignment) noexcept
  {
    below.deallocate_sync(ptr, bytes, alignment);
  }
  bool operator==(foreign const& other) const noexcept { return count == other.count; }
  bool operator!=(foreign const& other) const noexcept { return !(*this == other); }
  friend void get_property(foreign const&, on_device) noexcept {}
};
static_assert(::cuda::mr::resource_with<foreign, on_device>);

/** One that knows no streams. */
struct synchronous_only {
  std::shared_ptr<counters> count{std::make_shared<counters>()};

  void* allocate_sync(std::size_t bytes, std::size_t alignment)
  {
    ++count->synchronous;
    return mr::pinned_host_memory_resource{}.allocate_sync(bytes, alignment);
  }
  void deallocate_sync(void* ptr, std::size_t bytes, std::size_t alignment) noexcept
  {
    ++count->frees;
    mr::pinned_host_memory_resource{}.deallocate_sync(ptr, bytes, alignment);
  }
  bool operator==(synchronous_only const& other) const noexcept { return count == other.count; }
  bool operator!=(synchronous_only const& other) const noexcept { return !(*this == other); }
  friend void get_property(synchronous_only const&, on_device) noexcept {}
  friend void get_property(synchronous_only const&, on_host) noexcept {}
};
static_assert(!::cuda::mr::resource<synchronous_only>);

}  // namespace

TEST(an_any_resource_owns_a_pool)
{
  cuda_stream stream{cuda_stream::flags::non_blocking};
  mr::resource watch;
  any held;
  {
    auto pool = new_pool();
    watch     = pool;
    held      = pool;
  }
  ::cuda::stream_ref const order = stream;
  void* const p                  = held.allocate(order, 1000, 256);
  CHECK(p != nullptr && watch.info().live_count == 1 && watch.owns(p));
  any copy = held;
  held.reset();
  copy.deallocate(order, p, 1000, 256);
  CHECK(watch.info().live_count == 0);
  void* const q = copy.allocate_sync(64, 256);
  copy.deallocate_sync(q, 64, 256);
  auto const id = watch.id();
  watch.reset();
  CHECK(mr::resource::from_id(id));
  copy.reset();
  CHECK(!mr::resource::from_id(id));
}

TEST(the_handle_lies_inside_of_the_any_resource)
{
  auto pool = new_pool();
  any held  = mr::resource(pool);
  auto const* const begin = reinterpret_cast<char const*>(&held);
  // The very word of the handle: a heap object would leave none of the handle's bits in here.
  bool found = false;
  mr::resource copy = pool;
  any again         = copy;
  for (std::size_t at = 0; at + sizeof(void*) <= sizeof held; at += sizeof(void*)) {
    tenure_resource word = 0;
    std::memcpy(&word, begin + at, sizeof word);
    std::uint32_t same = 0;
    // Only something that looks like one of ours is asked about.
    if (word != 0 && (word & ~std::uint64_t{15}) == (copy.handle() & ~std::uint64_t{15}) &&
        ::tenure_resource_same(word, copy.handle(), &same) == TENURE_OK && same != 0) {
      found = true;
    }
  }
  CHECK(found);
}

TEST(erased_resources_compare_as_their_handles_do)
{
  auto const pool = new_pool();
  any a = mr::resource(pool), b = mr::resource(pool), c = mr::resource(new_pool());
  CHECK(a == b && !(a == c));
}

TEST(out_of_memory_arrives_with_its_figures)
{
  any held = mr::limiting_resource_adaptor{mr::cuda_memory_resource{}, 1 << 20};
  try {
    (void)held.allocate(::cuda::stream_ref(cuda_stream_default), 2 << 20, 256);
    CHECK(!"an exception");
  } catch (out_of_memory const& thrown) {
    CHECK(thrown.details().requested >= (2 << 20) && thrown.details().limit == 1 << 20);
  }
  bool standard = false;
  try {
    (void)held.allocate_sync(2 << 20, 256);
  } catch (std::bad_alloc const&) {
    standard = true;
  }
  CHECK(standard);
}

TEST(an_empty_handle_in_an_any_resource_says_so)
{
  any held = mr::resource{};
  CHECK_THROWS(held.allocate(::cuda::stream_ref(cuda_stream_default), 16, 256), logic_error, "empty");
}

TEST(a_wrong_free_through_an_erased_type_is_reported_and_changes_nothing)
{
  auto pool  = new_pool();
  auto other = new_pool();
  std::vector<std::string> said;
  set_misuse_handler([&](std::string_view text) { said.emplace_back(text); });
  auto const before = misuse_count();
  any right = pool, wrong = other;
  ::cuda::stream_ref const order = cuda_stream_default;
  void* const p                  = right.allocate(order, 512, 256);
  wrong.deallocate(order, p, 512, 256);
  wrong.deallocate_sync(p, 512, 256);
  CHECK(said.size() == 2 && said[0].find("named to resource") != std::string::npos);
  CHECK(misuse_count() == before + 2 && pool.info().live_count == 1);
  right.deallocate(order, p, 512, 256);
  CHECK(pool.info().live_count == 0);
  // Named directly, a free throws as ever.
  void* const q = pool.allocate(cuda_stream_default, 64);
  CHECK_THROWS(other.deallocate(cuda_stream_default, q, 64), ownership_error, "named to resource");
  pool.deallocate(cuda_stream_default, q, 64);
  set_misuse_handler(nullptr);
}

TEST(a_type_that_promises_the_host_asks)
{
  mr::resource_with<on_host> const pinned{mr::pinned_host_memory_resource{}};
  ::cuda::mr::any_resource<on_device, on_host> both = pinned;
  void* const p = both.allocate_sync(64, 64);
  *static_cast<int*>(p) = 7;
  both.deallocate_sync(p, 64, 64);
  CHECK_THROWS(mr::resource_with<on_host>(mr::resource(mr::cuda_memory_resource{})), invalid_argument, "cannot be used by the host");
  CHECK_THROWS(mr::resource_with<on_host>(mr::resource{}), logic_error, "empty");
  CHECK_THROWS(host_resource_ref(mr::cuda_memory_resource{}), invalid_argument, "pinned, managed or system");
  CHECK(host_device_async_resource_ref(mr::pinned_host_memory_resource{}).handle() != 0);
  // A resource of user code for the host alone is no device's.
  mr::resource_traits traits;
  traits.properties = TENURE_HOST_ACCESSIBLE;
  mr::callback_memory_resource const host{[](std::size_t n, cuda_stream_view, void*) { return std::malloc(n); },
                                          [](void* block, std::size_t, cuda_stream_view, void*) { std::free(block); },
                                          nullptr,
                                          nullptr,
                                          traits};
  CHECK_THROWS(mr::resource_with<on_device>(host), invalid_argument, "cannot be used by a device");
}

TEST(a_reference_of_theirs_names_a_handle_of_ours)
{
  auto pool = new_pool();
  ::cuda::mr::resource_ref<on_device> ref{pool};
  void* const p = ref.allocate(::cuda::stream_ref(cuda_stream_default), 100, 256);
  CHECK(pool.info().live_count == 1);
  ref.deallocate(::cuda::stream_ref(cuda_stream_default), p, 100, 256);
  // What it refers to is copied, and owned.
  any owned{ref};
  auto const id = pool.id();
  pool.reset();
  CHECK(mr::resource::from_id(id));
  owned.reset();
  CHECK(!mr::resource::from_id(id));
}

TEST(a_resource_of_theirs_is_an_upstream_of_ours)
{
  foreign theirs;
  auto const count = theirs.count;
  cuda_stream stream{cuda_stream::flags::non_blocking};
  {
    auto const made = mr::from_cccl(any(theirs), "theirs");
    CHECK(made.kind() == "theirs" && made.is_device_accessible() && !made.is_host_accessible());
    CHECK((made.properties() & TENURE_STREAM_ORDERED) != 0);
    mr::pool_options options;
    options.plain_chunks = true;
    mr::pool_memory_resource pool{made, options};
    device_buffer buffer{4096, stream, pool};
    CHECK(count->allocations >= 1 && count->frees == 0 && count->alignment >= 256);
    CHECK(pool.get_upstream_resource() == made);
    // The buffer is what keeps all of it alive.
    pool.reset();
    buffer.resize(64 << 10, stream);
    stream.synchronize();
  }
  CHECK(count->allocations == count->frees);
  CHECK(count.use_count() == 2);
}

TEST(what_a_resource_of_theirs_throws_arrives_as_it_is)
{
  auto const made = mr::from_cccl(foreign{});
  CHECK_THROWS(device_buffer(std::size_t{1} << 41, cuda_stream_default, made), std::bad_alloc, "");
  CHECK(made.info().live_count == 0);
}

TEST(a_synchronous_resource_serves_too)
{
  synchronous_only theirs;
  auto const count = theirs.count;
  cuda_stream stream{cuda_stream::flags::non_blocking};
  {
    auto const made = mr::from_cccl(theirs, "no streams", cuda_device_id{0});
    CHECK(made.is_host_accessible() && (made.properties() & TENURE_STREAM_ORDERED) == 0);
    device_buffer buffer{4096, stream, made};
    CHECK(count->synchronous == 1);
  }
  CHECK(count->frees == 1);
}

TEST(a_handle_of_ours_comes_back_as_itself)
{
  auto const pool = new_pool();
  CHECK(mr::from_cccl(pool) == pool);
  CHECK(mr::from_cccl(mr::resource_with<on_device>(pool)) == pool);
  ::cuda::mr::resource_ref<on_device> ref{const_cast<mr::pool_memory_resource&>(pool)};
  auto const wrapped = mr::from_cccl(ref, "wrapped");
  CHECK(wrapped.kind() == "wrapped" && wrapped != pool);
  CHECK_THROWS(mr::from_cccl(any{}), logic_error, "empty");
}

TEST(streams_convert_and_stay_the_same_stream)
{
  cuda_stream stream{cuda_stream::flags::non_blocking};
  ::cuda::stream_ref const theirs = stream;
  CHECK(theirs.get() == stream.value() && cuda_stream_view(theirs) == stream.view());
  device_buffer const buffer{64, theirs};
  CHECK(buffer.stream() == theirs);
  ::cuda::stream_ref const back = buffer.stream();
  CHECK(back == theirs);
  cuda_stream_pool pool{2};
  ::cuda::stream_ref const next = pool.get_stream(1);
  CHECK(next.get() == pool.get_stream(1).value());
}

TEST(an_environment_carries_stream_and_resource)
{
  cuda_stream stream{cuda_stream::flags::non_blocking};
  auto pool       = new_pool();
  auto const id   = pool.id();
  auto const env  = execution_env(stream, pool);
  pool.reset();
  CHECK(::cuda::get_stream(env).get() == stream.value());
  auto inside = ::cuda::mr::get_memory_resource(env);
  CHECK(inside.id() == id);
  void* const p = inside.allocate(::cuda::get_stream(env), 100, 16);
  inside.deallocate(::cuda::get_stream(env), p, 100, 16);
  CHECK(::cuda::mr::get_memory_resource(execution_env(stream)) == mr::get_current_device_resource());
}

TEST(process_wide_resources_are_ready_in_one_word)
{
  mr::resource a = mr::cuda_memory_resource{};
  mr::resource b = std::move(a);
  CHECK(a && b && a == b && a.kind() == "cuda");
  mr::resource c;
  c = b;
  swap(c, a);
  CHECK(c == a && c.id() == mr::cuda_memory_resource{}.id());
  auto const raw = c.release();
  CHECK(!c && mr::resource::from_handle(raw) == b);
  CHECK(mr::resource(mr::pinned_host_memory_resource{}) != b);
}

int main() { return check::run_all("cccl.cpp", 2); }
