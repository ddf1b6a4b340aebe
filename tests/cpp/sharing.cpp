// SPDX-License-Identifier: Apache-2.0

// Memory of one process in another, on whatever device there is: this program starts itself again, and the second process reads
// and writes what the first shares. Descriptors travel over a Unix socket.

#include "check.hpp"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

using namespace tenure;

namespace {

constexpr std::size_t MiB = 1 << 20;
std::string self;

bool exactly(int fd, void* to, std::size_t bytes)
{
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    auto const got = ::read(fd, at, bytes);
    if (got <= 0) { return false; }
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

/** Bytes first, then each descriptor with a byte of its own. */
bool send(int socket, shared_memory const& shared)
{
  std::uint64_t const counts[2] = {shared.bytes().size(), shared.descriptors().size()};
  if (::write(socket, counts, sizeof counts) != static_cast<ssize_t>(sizeof counts)) { return false; }
  if (::write(socket, shared.bytes().data(), counts[0]) != static_cast<ssize_t>(counts[0])) { return false; }
  for (int const fd : shared.descriptors()) {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof fd)] = {};
    msghdr message{};
    message.msg_iov           = &part;
    message.msg_iovlen        = 1;
    message.msg_control       = room;
    message.msg_controllen    = sizeof room;
    cmsghdr* const rights     = CMSG_FIRSTHDR(&message);
    rights->cmsg_level        = SOL_SOCKET;
    rights->cmsg_type         = SCM_RIGHTS;
    rights->cmsg_len          = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    if (::sendmsg(socket, &message, 0) != 1) { return false; }
  }
  return true;
}

shared_memory receive(int socket)
{
  std::uint64_t counts[2] = {};
  CHECK(exactly(socket, counts, sizeof counts));
  std::vector<std::byte> bytes(counts[0]);
  CHECK(exactly(socket, bytes.data(), bytes.size()));
  std::vector<int> fds;
  for (std::uint64_t at = 0; at < counts[1]; ++at) {
    char byte = 0;
    iovec part{&byte, 1};
    int fd                                            = -1;
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof fd)] = {};
    msghdr message{};
    message.msg_iov        = &part;
    message.msg_iovlen     = 1;
    message.msg_control    = room;
    message.msg_controllen = sizeof room;
    CHECK(::recvmsg(socket, &message, 0) == 1);
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    fds.push_back(fd);
  }
  return {std::move(bytes), std::move(fds)};
}

std::string first(device_buffer const& buffer, cuda_stream_view stream)
{
  std::string text(12, '\0');
  copy_async(text.data(), buffer.data(), text.size(), stream);
  stream.synchronize();
  return text;
}

void put(device_buffer& buffer, char const* text, cuda_stream_view stream)
{
  copy_async(buffer.data(), text, 12, stream);
  stream.synchronize();
}

/** The second process. */
int importer(int socket)
{
  auto const stream = cuda_stream{cuda_stream::flags::non_blocking};
  auto const shared = receive(socket);
  auto buffer       = shared.open(stream);
  auto const again  = shared.open(stream);
  CHECK(buffer.data() == again.data());
  CHECK(buffer.size() == shared.size());
  CHECK(first(buffer, stream) == "from parent!");
  CHECK_THROWS(buffer.resize(64 * MiB, stream), unsupported, "nothing is allocated");
  put(buffer, "from child!!", stream);
  return check_failures;
}

void reaches_another_process(mr::resource_ref resource, std::uint32_t kind)
{
  auto const stream = cuda_stream{cuda_stream::flags::non_blocking};
  CHECK((exports(resource) & kind) != 0);
  device_buffer const before{3 * MiB, stream, resource};
  device_buffer buffer{5 * MiB, stream, resource};
  put(buffer, "from parent!", stream);
  auto const shared = share(buffer, kind);
  CHECK(shared.size() == 5 * MiB && shared.kind() == kind && shared.pid() == static_cast<std::uint32_t>(::getpid()));
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  std::string const number = std::to_string(ends[1]);
  auto const child         = ::fork();
  if (child == 0) {
    ::execl(self.c_str(), self.c_str(), "importer", number.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(ends[1]);
  CHECK(send(ends[0], shared));
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ::close(ends[0]);
  CHECK(first(buffer, stream) == "from child!!");
}

}  // namespace

TEST(what_is_current_is_asked_and_what_was_moved_from_is_nothing)
{
  mr::pool_options options;
  options.export_handle_type = TENURE_HANDLE_FD;
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, options};
  CHECK(exports({}) == exports(mr::get_current_device_resource()));
  {
    mr::using_resource const here{pool};
    CHECK((exports({}) & TENURE_HANDLE_FD) != 0);
  }
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  device_buffer const buffer{1 << 16, stream, pool};
  shared_memory first  = share(buffer);
  shared_memory second = std::move(first);
  CHECK(first.size() == 0 && first.bytes().empty() && first.descriptors().empty() && second.size() == 1 << 16);
  CHECK_THROWS(first.open(stream), invalid_argument, "no description");
  first = std::move(second);
  CHECK(second.size() == 0 && first.open(stream).size() == 1 << 16);
}

TEST(a_pool_by_descriptor)
{
  mr::pool_options options;
  options.export_handle_type = TENURE_HANDLE_FD;
  options.chunk_size         = 2 * MiB;
  reaches_another_process(mr::pool_memory_resource{mr::cuda_memory_resource{}, options}, TENURE_HANDLE_FD);
}

TEST(a_driver_pool_by_descriptor)
{
  mr::async_options options;
  options.handle_type = TENURE_HANDLE_FD;
  reaches_another_process(mr::cuda_async_memory_resource{options}, TENURE_HANDLE_FD);
}

TEST(plain_memory_by_legacy_handle)
{
  reaches_another_process(mr::cuda_memory_resource{}, TENURE_HANDLE_LEGACY);
  mr::pool_options options;
  options.plain_chunks = true;
  reaches_another_process(mr::pool_memory_resource{mr::cuda_memory_resource{}, options}, TENURE_HANDLE_LEGACY);
}

TEST(what_cannot_be_shared_says_what_would_be)
{
  auto const stream = cuda_stream{cuda_stream::flags::non_blocking};
  mr::pool_memory_resource const pool{mr::cuda_memory_resource{}, mr::pool_options{}};
  device_buffer const buffer{100, stream, pool};
  CHECK_THROWS(share(buffer), unsupported, "export_handle_type");
  CHECK_THROWS(share(device_buffer{0, stream, pool}), invalid_argument, "no bytes");
  CHECK_THROWS((shared_memory{{}, {}}), invalid_argument, "no description");
  CHECK_THROWS((shared_memory{std::vector<std::byte>(100), {}}), invalid_argument, "no handle of shared memory");
  device_buffer const plain{100, stream, mr::cuda_memory_resource{}};
  CHECK_THROWS(share(plain, 2), invalid_argument, "kinds of handles");
  CHECK_THROWS(share(plain).open(stream), unsupported, "use the buffer that was shared");
}

TEST(the_c_functions_take_nothing_for_granted)
{
  auto const& api = *tenure_get_api(TENURE_ABI_VERSION);
  tenure_shared shared{};
  CHECK(api.shared_free(&shared) == TENURE_OK);
  CHECK(api.shared_free(nullptr) == TENURE_OK);
  CHECK(api.buffer_share(0, 0, &shared) != TENURE_OK);
  CHECK(api.buffer_share(0, 0, nullptr) != TENURE_OK);
  CHECK(api.resource_exports(0, nullptr) != TENURE_OK);
  tenure_buffer buffer = 0;
  CHECK(api.buffer_import(nullptr, 0, nullptr, 0, -1, tenure_stream{}, &buffer) == TENURE_ERROR_INVALID_ARGUMENT);
  CHECK(api.buffer_import("x", 1, nullptr, 0, -1, tenure_stream{}, nullptr) == TENURE_ERROR_INVALID_ARGUMENT);
  tenure_shared_view info{};
  CHECK(api.shared_info("x", 1, &info) == TENURE_ERROR_INVALID_ARGUMENT);
  CHECK(buffer == 0);
}

int main(int count, char** arguments)
{
  if (count == 3 && std::string(arguments[1]) == "importer") { return importer(std::stoi(arguments[2])); }
  self = "/proc/self/exe";
  return check::run_all("sharing.cpp");
}
