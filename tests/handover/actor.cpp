// The actor in C++, over the types of tenure.hpp.

#include "actor.h"

#include <tenure/tenure.hpp>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

namespace {

namespace mr = tenure::mr;

// Runs `body`; what it throws becomes a status and a text.
template <class Body>
tenure_status guarded(char* why, Body body) noexcept
{
  try {
    body();
    return TENURE_OK;
  } catch (tenure::error const& error) {
    std::snprintf(why, ACTOR_ROOM, "%s", error.message().c_str());
    return error.status();
  } catch (std::exception const& error) {
    // A user's own exception, which came back as it was thrown.
    std::snprintf(why, ACTOR_ROOM, "%s", error.what());
    return TENURE_ERROR_CALLBACK;
  }
}

tenure::cuda_stream_view view(tenure_stream stream) { return tenure::cuda_stream_view(stream); }

bool obeyed(actor_book& book, std::uint64_t order)
{
  if (book.fail != order) { return false; }
  book.fail = 0;
  return true;
}

class counting {
 public:
  counting(mr::resource upstream, actor_book& book) : upstream_(std::move(upstream)), book_(&book) {}
  counting(counting&& other) noexcept : upstream_(std::move(other.upstream_)), book_(std::exchange(other.book_, nullptr)) {}
  counting& operator=(counting&&) = delete;
  ~counting()
  {
    if (book_ != nullptr) { ++book_->dropped; }
  }

  void* allocate(tenure::cuda_stream_view stream, std::size_t bytes, std::size_t alignment)
  {
    if (obeyed(*book_, 1)) { throw std::runtime_error("refused by C++"); }
    ++book_->allocations;
    return upstream_.allocate(stream, bytes, alignment);
  }
  void deallocate(tenure::cuda_stream_view stream, void* ptr, std::size_t bytes, std::size_t alignment)
  {
    upstream_.deallocate(stream, ptr, bytes, alignment);
    ++book_->frees;
    if (obeyed(*book_, 2)) { throw std::runtime_error("refused by C++"); }
  }

 private:
  mr::resource upstream_;
  actor_book* book_;
};

// Destroyed when the process ends, in the order of statics.
tenure::device_buffer kept_buffer;
mr::resource kept_resource;

}  // namespace

extern "C" {

tenure_status actor_pool(tenure_resource upstream, tenure_resource* out, char* why)
{
  return guarded(why, [&] { *out = mr::pool_memory_resource{mr::resource::retain(upstream), 0}.release(); });
}

tenure_status actor_callback(tenure_resource upstream, actor_book* book, tenure_resource* out, char* why)
{
  return guarded(
    why, [&] { *out = mr::make_resource(counting(mr::resource::retain(upstream), *book), {"counting"}).release(); });
}

tenure_status actor_release(tenure_resource resource, char* why)
{
  return guarded(why, [&] { auto const taken = mr::resource::from_handle(resource); });
}

tenure_status actor_make(
  std::size_t bytes, std::uint8_t value, tenure_stream stream, tenure_resource resource, tenure_buffer* out, char* why)
{
  return guarded(why, [&] {
    // Resolved once: the very handle is used for everything that follows.
    auto const resolved = resource == TENURE_RESOURCE_CURRENT ? mr::get_current_device_resource()
                                                              : mr::resource::retain(resource);
    tenure::device_buffer made(bytes, view(stream), resolved);
    tenure::fill_async(made.data(), value, bytes, view(stream));
    *out = made.release();
  });
}

tenure_status actor_read(tenure_buffer buffer, std::uint8_t* to, std::size_t bytes, char* why)
{
  auto lent          = tenure::device_buffer::from_handle(buffer);
  auto const outcome = guarded(why, [&] {
    tenure::cuda_stream const mine{tenure::cuda_stream::flags::non_blocking};
    mine.view().wait(lent.stream());
    lent.record_stream(mine);
    tenure::copy_async(to, lent.data(), bytes, mine);
    mine.synchronize();
  });
  (void)lent.release();
  return outcome;
}

tenure_status actor_free(tenure_buffer buffer, std::uint32_t elsewhere, char* why)
{
  auto taken = tenure::device_buffer::from_handle(buffer);
  if (elsewhere == 0) {
    return guarded(why, [&] { taken.close(); });
  }
  tenure_status outcome = TENURE_ERROR_INTERNAL;
  std::thread([&, moved = std::move(taken)]() mutable {
    outcome = guarded(why, [&] { moved.close(); });
  }).join();
  return outcome;
}

tenure_status actor_detach(tenure_buffer buffer, tenure_detached* out, char* why)
{
  auto taken = tenure::device_buffer::from_handle(buffer);
  return guarded(why, [&] {
    auto parts = taken.detach();
    out->ptr       = parts.ptr;
    out->bytes     = parts.bytes;
    out->capacity  = parts.capacity;
    out->alignment = parts.alignment;
    out->stream    = parts.stream.native();
    (void)parts.stream_owner.release();
    out->resource = parts.resource.release();
  });
}

tenure_status actor_adopt(
  void* ptr, std::size_t bytes, tenure_stream stream, tenure_resource resource, tenure_buffer* out, char* why)
{
  return guarded(why, [&] {
    *out = tenure::device_buffer::adopt(ptr, bytes, view(stream), mr::resource::retain(resource)).release();
  });
}

tenure_status actor_allocate(tenure_resource resource, std::size_t bytes, tenure_stream stream, void** out, char* why)
{
  return guarded(why, [&] { *out = mr::resource::retain(resource).allocate(view(stream), bytes); });
}

tenure_status actor_deallocate(
  tenure_resource resource, void* ptr, std::size_t bytes, tenure_stream stream, char* why)
{
  return guarded(why, [&] { mr::resource::retain(resource).deallocate(view(stream), ptr, bytes); });
}

tenure_status actor_owner_of(void* ptr, std::uint64_t* id, char* why)
{
  return guarded(why, [&] {
    auto const found = tenure::owner_of(ptr);
    *id              = found ? found.owner.id() : 0;
  });
}

tenure_status actor_set_current(tenure_resource resource, char* why)
{
  return guarded(why, [&] { mr::set_current_device_resource(mr::resource::retain(resource)); });
}

tenure_status actor_current_id(std::uint64_t* id, char* why)
{
  return guarded(why, [&] { *id = mr::get_current_device_resource().id(); });
}

tenure_status actor_scope(tenure_resource resource, actor_body body, char* why)
{
  return guarded(why, [&] {
    mr::using_resource const scope{mr::resource_ref(resource)};
    body();
  });
}

tenure_status actor_keep(tenure_buffer buffer, tenure_resource resource, char* why)
{
  return guarded(why, [&] {
    kept_buffer   = tenure::device_buffer::from_handle(buffer);
    kept_resource = mr::resource::from_handle(resource);
  });
}
}
