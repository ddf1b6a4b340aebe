// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/error.hpp
 *
 * The errors of the library as exceptions.
 *
 *     std::bad_alloc ........ tenure::bad_alloc <- tenure::out_of_memory
 *     std::logic_error ...... tenure::logic_error <- tenure::ownership_error, tenure::bad_handle
 *     std::invalid_argument . tenure::invalid_argument
 *     std::out_of_range ..... tenure::out_of_range
 *     std::runtime_error .... tenure::cuda_error, tenure::unsupported, tenure::runtime_error
 *
 * Each of them is a `tenure::error` too, which has the status and the figures: `catch (tenure::error const& e)` catches what
 * the library says, and `catch (tenure::out_of_memory const&)` the one kind after which trying again can help. Copying an
 * exception does not throw.
 *
 * Destructors do not throw. What they find wrong goes to the handler of wrong frees: see `tenure::misuse_count`.
 */

#pragma once

#include <tenure/detail/table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tenure {

/** What the library knows about an error. Sizes are in bytes. */
struct error_details {
  tenure_status status{TENURE_ERROR_INTERNAL};  ///< `TENURE_ERROR_...`
  std::string message{};                        ///< One line: what happened and what to do.
  std::int32_t cuda_code{};                     ///< CUDA: the driver's code.
  std::string cuda_name{};                      ///< CUDA: its name.
  std::string cuda_call{};                      ///< CUDA: the call that failed.
  std::uint64_t requested{};                    ///< Out of memory: asked for.
  std::uint64_t live{};                         ///< Out of memory: handed out by the resource.
  std::uint64_t reserved{};                     ///< Out of memory: held by the resource.
  std::uint64_t limit{};                        ///< Out of memory: the limit that was met, or 0.
  std::uint64_t largest_free{};                 ///< Out of memory: the largest block still to be had.
  std::uint64_t driver_free{};                  ///< Out of memory: free on the device, 0 when not asked.
  std::uint64_t driver_total{};                 ///< Out of memory: all of the device, 0 when not asked.
  std::string resource{};                       ///< Out of memory: the stack of resources.
  std::uint64_t ptr{};                          ///< Ownership: the pointer that was named.
  std::uint64_t bytes{};                        ///< Ownership: the size that was named.
  std::uint64_t asked{};                        ///< Ownership: the id of the resource that was asked.
  std::uint64_t owner{};                        ///< Ownership: the id of the owner, 0 when unknown.
  std::uint64_t owner_bytes{};                  ///< Ownership: the size of the block, 0 when unknown.
  std::uint32_t misuse_kind{};                  ///< Ownership: `tenure_error::misuse_kind`.
  std::uint64_t cached{};                       ///< Out of memory: held by the resource and not handed out.
  std::uint64_t unproven{};                     ///< Out of memory: what of it waits for the device before other streams may have it.
  std::string pending{};                        ///< Out of memory: the streams that hold most of it, for people.
  std::string tried{};                          ///< Out of memory: what was tried and what came of it, for people.
  std::vector<std::string> notes{};             ///< Out of memory: what else there is to say, at most eight lines.
};

/** What all exceptions of the library have. Not a `std::exception` itself: each kind is one by its other base. */
class error {
 public:
  explicit error(error_details details) : details_(std::make_shared<error_details const>(std::move(details))) {}
  error(error const&) noexcept            = default;
  error& operator=(error const&) noexcept = default;
  virtual ~error()                        = default;

  /** `TENURE_ERROR_...` */
  [[nodiscard]] tenure_status status() const noexcept { return details_->status; }
  /** The figures. */
  [[nodiscard]] error_details const& details() const noexcept { return *details_; }
  /**
   * What else there is to say where memory could not be had, a line each: who holds most, what is cached, what other streams
   * hold back, the largest free block, what was tried, and the setting that would have helped, where the books show one.
   */
  [[nodiscard]] std::vector<std::string> const& notes() const noexcept { return details_->notes; }
  /** The text, which `what()` has too. */
  [[nodiscard]] std::string const& message() const noexcept { return details_->message; }

 private:
  std::shared_ptr<error_details const> details_;
};

namespace detail {

/** An exception that is a `Base` by its kind and an `error` by its contents. */
template <class Base>
class error_with_base : public Base, public error {
 public:
  explicit error_with_base(error_details details) : Base(details.message), error(std::move(details)) {}
};

}  // namespace detail

/** Memory could not be had. */
class bad_alloc : public std::bad_alloc, public error {
 public:
  using error::error;
  [[nodiscard]] char const* what() const noexcept override { return message().c_str(); }
};

/** No memory: the only error after which freeing something and trying again can help. */
class out_of_memory : public bad_alloc {
 public:
  using bad_alloc::bad_alloc;
};

/** The program is wrong: something empty, finished or not its own was used. */
class logic_error : public detail::error_with_base<std::logic_error> {
 public:
  using error_with_base::error_with_base;
};

/** A pointer was named that does not belong where it was named. Nothing happened, and the block stays live. */
class ownership_error : public logic_error {
 public:
  using logic_error::logic_error;
};

/** A handle that is null, was released, or is not of this library. */
class bad_handle : public logic_error {
 public:
  using logic_error::logic_error;
};

/** An argument is out of range. */
class invalid_argument : public detail::error_with_base<std::invalid_argument> {
 public:
  using error_with_base::error_with_base;
};

/** An index is beyond the end. */
class out_of_range : public detail::error_with_base<std::out_of_range> {
 public:
  using error_with_base::error_with_base;
};

/** Everything that only the run can show: a forked child, the end of the process, no device, a failed callback. */
class runtime_error : public detail::error_with_base<std::runtime_error> {
 public:
  using error_with_base::error_with_base;
};

/** This resource, device or build cannot do it. */
class unsupported : public runtime_error {
 public:
  using runtime_error::runtime_error;
};

/** The driver failed. */
class cuda_error : public runtime_error {
 public:
  using runtime_error::runtime_error;
  /** The driver's code. */
  [[nodiscard]] int code() const noexcept { return details().cuda_code; }
  /** The name of the code, such as `CUDA_ERROR_INVALID_VALUE`. */
  [[nodiscard]] std::string const& name() const noexcept { return details().cuda_name; }
  /** The call that failed, such as `cuMemAlloc`. */
  [[nodiscard]] std::string const& call() const noexcept { return details().cuda_call; }
};

namespace detail {

/// Says who can read a payload: C++ of the same standard library. 'CPX' and a letter for the library.
#if defined(_LIBCPP_VERSION)
inline constexpr std::uint32_t payload_kind = 0x4350584CU;
#else
inline constexpr std::uint32_t payload_kind = 0x43505847U;
#endif

inline void release_payload(void* payload) { delete static_cast<std::exception_ptr*>(payload); }

[[noreturn]] inline void raise(error_details details)
{
  switch (details.status) {
    case TENURE_ERROR_OUT_OF_MEMORY: throw out_of_memory(std::move(details));
    case TENURE_ERROR_OWNERSHIP: throw ownership_error(std::move(details));
    case TENURE_ERROR_CUDA: throw cuda_error(std::move(details));
    case TENURE_ERROR_INVALID_ARGUMENT: throw invalid_argument(std::move(details));
    case TENURE_ERROR_UNSUPPORTED: throw unsupported(std::move(details));
    case TENURE_ERROR_BAD_HANDLE: throw bad_handle(std::move(details));
    default: throw runtime_error(std::move(details));
  }
}

/** An error that the header itself finds. */
template <class Error>
[[noreturn]] void raise_own(tenure_status status, std::string message)
{
  error_details details;
  details.status  = status;
  details.message = std::move(message);
  throw Error(std::move(details));
}

inline std::string text(char const* from) { return from != nullptr ? std::string(from) : std::string(); }

inline std::vector<std::string> lines(std::string const& from)
{
  std::vector<std::string> found;
  for (std::size_t at = 0; at < from.size();) {
    auto const end = std::min(from.find('\n', at), from.size());
    found.push_back(from.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

/** Throws what the last failing call on this thread said: the very exception of a C++ callback, if it was one. */
[[noreturn]] inline void raise_last(tenure_status status)
{
  tenure_error raw{};
  raw.size = sizeof raw;
  error_details details;
  if (TENURE_DETAIL_CALL(error_get)(&raw) != TENURE_OK || raw.status != status) {
    details.status  = status;
    details.message = "tenure: a call failed with status " + std::to_string(status) + " and left no detail";
    raise(std::move(details));
  }
  if (raw.payload_kind == payload_kind) {
    void* payload = nullptr;
    if (TENURE_DETAIL_CALL(error_take_payload)(payload_kind, &payload) == TENURE_OK && payload != nullptr) {
      std::unique_ptr<std::exception_ptr> const thrown(static_cast<std::exception_ptr*>(payload));
      std::rethrow_exception(*thrown);
    }
  }
  details.status       = raw.status;
  details.message      = text(raw.message);
  details.cuda_code    = raw.cuda_code;
  details.cuda_name    = text(raw.cuda_name);
  details.cuda_call    = text(raw.cuda_call);
  details.requested    = raw.requested;
  details.live         = raw.live;
  details.reserved     = raw.reserved;
  details.limit        = raw.limit;
  details.largest_free = raw.largest_free;
  details.driver_free  = raw.driver_free;
  details.driver_total = raw.driver_total;
  details.resource     = text(raw.resource);
  details.ptr          = raw.ptr;
  details.bytes        = raw.bytes;
  details.asked        = raw.asked;
  details.owner        = raw.owner;
  details.owner_bytes  = raw.owner_bytes;
  details.misuse_kind  = raw.misuse_kind;
  details.cached       = raw.cached;
  details.unproven     = raw.unproven;
  details.pending      = text(raw.pending);
  details.tried        = text(raw.tried);
  details.notes        = lines(text(raw.notes));
  raise(std::move(details));
}

/** Turns a status into an exception. */
inline void check(tenure_status status)
{
  if (status > TENURE_OK) { raise_last(status); }
}

/** Ends something where nothing can be thrown. A process that is ending or was forked has nothing left to free. */
inline void finish(tenure_status status) noexcept
{
  if (status > TENURE_OK && status != TENURE_ERROR_EXITING && status != TENURE_ERROR_FORKED) {
    (void)TENURE_DETAIL_CALL(misuse_report)();
  }
}

inline tenure_status set_error(tenure_status status, char const* message) noexcept
{
  auto* const payload = new (std::nothrow) std::exception_ptr(std::current_exception());
  auto const kept =
    TENURE_DETAIL_CALL(error_set)(status, message, payload != nullptr ? payload_kind : 0U, payload, &release_payload);
  if (kept != TENURE_OK) { delete payload; }
  return status;
}

/** Within a catch block of a callback: hands the exception to the library and says which status to return. */
inline tenure_status hand_over_exception() noexcept
{
  try {
    throw;
  } catch (error const& thrown) {
    auto const status = thrown.status() > TENURE_OK ? thrown.status() : TENURE_ERROR_CALLBACK;
    return set_error(status, thrown.message().c_str());
  } catch (std::bad_alloc const& thrown) {
    return set_error(TENURE_ERROR_OUT_OF_MEMORY, thrown.what());
  } catch (std::exception const& thrown) {
    return set_error(TENURE_ERROR_CALLBACK, thrown.what());
  } catch (...) {
    return set_error(TENURE_ERROR_CALLBACK, "a C++ callback threw something that is not a std::exception");
  }
}

/** Calls something of the user's where an exception has nowhere to go: it is reported like a wrong free. */
template <class Function>
void call_and_report(Function&& function) noexcept
{
  try {
    std::forward<Function>(function)();
  } catch (...) {
    (void)hand_over_exception();
    (void)TENURE_DETAIL_CALL(misuse_report)();
  }
}

/** Keeps a C++ object for the library, which deletes it when nothing needs it any more. */
template <class Object>
void delete_object(void* object)
{
  delete static_cast<Object*>(object);
}

/** `count` elements of `Element` in bytes, or an error where that is more than a size can say. */
template <class Element>
[[nodiscard]] std::size_t bytes_of(std::size_t count)
{
  if (count > static_cast<std::size_t>(-1) / sizeof(Element)) {
    raise_own<invalid_argument>(TENURE_ERROR_INVALID_ARGUMENT,
                                "tenure: " + std::to_string(count) + " elements of " + std::to_string(sizeof(Element)) +
                                  " bytes are more than a size can say; ask for fewer");
  }
  return count * sizeof(Element);
}

}  // namespace detail

/** How often a free that could not return an error was wrong. A test suite asserts that it is 0. */
[[nodiscard]] inline std::uint64_t misuse_count()
{
  std::uint64_t count = 0;
  detail::check(TENURE_DETAIL_CALL(misuse_count)(&count));
  return count;
}

/**
 * Installs a handler for wrong frees that cannot throw (in destructors, for instance), instead of the line on stderr. An
 * empty function restores the default. The library owns the function. It must not throw; what it throws is dropped.
 */
inline void set_misuse_handler(std::function<void(std::string_view)> handler)
{
  using function = std::function<void(std::string_view)>;
  if (!handler) {
    detail::check(TENURE_DETAIL_CALL(misuse_set_handler)(nullptr, tenure_owner{nullptr, nullptr}));
    return;
  }
  auto owned      = std::make_unique<function>(std::move(handler));
  auto const call = [](void* context, char const* message) {
    try {
      (*static_cast<function*>(context))(message != nullptr ? std::string_view(message) : std::string_view());
    } catch (...) {
      // Nobody is left to tell: this is where such errors are told.
    }
  };
  detail::check(TENURE_DETAIL_CALL(misuse_set_handler)(
    call, tenure_owner{owned.get(), &detail::delete_object<function>}));
  (void)owned.release();
}

/** The version of the library, such as "0.1.0". */
[[nodiscard]] inline std::string_view version() { return TENURE_DETAIL_CALL(version)(); }

/** What is here, as JSON: version, device layer, driver, devices, or why there is none. */
[[nodiscard]] inline std::string describe()
{
  tenure_text raw{};
  detail::check(TENURE_DETAIL_CALL(describe)(&raw));
  struct give_back {
    tenure_text* text;
    ~give_back() { detail::finish(TENURE_DETAIL_CALL(text_free)(text)); }
  } const guard{&raw};
  return std::string(raw.data, raw.size);
}

}  // namespace tenure
