// SPDX-License-Identifier: Apache-2.0
//
// Thrust and CUB on a GPU, with memory and scratch of tenure's. Compiled by nvcc in the GPU bundle (tools/bundle/run.sh, part
// cccl), since nothing of it runs without a GPU.

#include "../check.hpp"

#include <tenure/cccl.hpp>
#include <tenure/thrust.hpp>

#include <cub/device/device_reduce.cuh>
#include <cuda_runtime_api.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

using namespace tenure;
using any_resource = ::cuda::mr::any_resource<::cuda::mr::device_accessible>;

static_assert(::cuda::mr::resource_with<mr::pool_memory_resource, ::cuda::mr::device_accessible>);
static_assert(sizeof(mr::resource) == sizeof(void*));

namespace {

mr::statistics_resource_adaptor counted_pool()
{
  return mr::statistics_resource_adaptor{mr::pool_memory_resource{mr::cuda_memory_resource{}, 0}};
}
std::int64_t allocations(mr::statistics_resource_adaptor const& of) { return of.get_allocations_counter().total; }
std::int64_t live(mr::statistics_resource_adaptor const& of) { return of.get_allocations_counter().value; }

__global__ void fill(int* out, int count, int value)
{
  int const at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at < count) { out[at] = value; }
}

}  // namespace

TEST(thrust_sorts_with_our_scratch)
{
  auto const pool = counted_pool();
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  int const count = 1 << 20;
  device_uvector<int> v{static_cast<std::size_t>(count), stream, pool};
  auto const before = allocations(pool);
  thrust::sequence(exec_policy(stream, pool), v.begin(), v.end());
  thrust::sort(exec_policy(stream, pool), v.begin(), v.end(), thrust::greater<int>());
  CHECK(allocations(pool) > before && live(pool) == 1);
  CHECK(v.front_element(stream) == count - 1 && v.back_element(stream) == 0);
  auto const sum = thrust::reduce(exec_policy_nosync(stream, pool), v.begin(), v.end(), 0LL);
  CHECK(sum == static_cast<long long>(count) * (count - 1) / 2 && live(pool) == 1);
}

TEST(thrusts_vectors_hold_our_memory)
{
  auto const pool = counted_pool();
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  {
    device_vector<int> v(1000, 3, mr::thrust_allocator<int>{stream, pool});
    stream.synchronize();
    CHECK(live(pool) == 1 && thrust::reduce(exec_policy(stream, pool), v.begin(), v.end()) == 3000);
    device_vector<int> copy = v;
    copy.resize(5000);
    copy[4999] = 1;
    CHECK(copy.size() == 5000 && copy[4999] == 1);
  }
  CHECK(live(pool) == 0);
}

TEST(thrust_takes_any_resource_of_ours)
{
  // What CCCL erased, named again as one of ours, and below Thrust.
  auto const pool = counted_pool();
  any_resource erased = pool;
  auto const ours = mr::from_cccl(erased);
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  device_uvector<int> v{4096, stream, ours};
  fill<<<16, 256, 0, stream.value()>>>(v.data(), 4096, 2);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(thrust::reduce(exec_policy(stream, ours), v.begin(), v.end()) == 8192);
}

TEST(cub_takes_its_scratch_from_an_environment)
{
  auto const pool = counted_pool();
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  int const count = 1 << 20;
  device_uvector<int> in{static_cast<std::size_t>(count), stream, pool};
  device_scalar<int> out{stream, pool};
  fill<<<(count + 255) / 256, 256, 0, stream.value()>>>(in.data(), count, 3);
  auto const before = allocations(pool);
  CHECK(cub::DeviceReduce::Sum(in.data(), out.data(), count, execution_env(stream, pool)) == cudaSuccess);
  CHECK(allocations(pool) > before);
  CHECK(out.value(stream) == 3 * count && live(pool) == 2);
}

TEST(cub_takes_its_scratch_from_a_buffer)
{
  auto const pool = counted_pool();
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  int const count = 1 << 16;
  device_uvector<int> in{static_cast<std::size_t>(count), stream, pool};
  device_scalar<int> out{stream, pool};
  fill<<<(count + 255) / 256, 256, 0, stream.value()>>>(in.data(), count, 5);
  std::size_t bytes = 0;
  CHECK(cub::DeviceReduce::Sum(nullptr, bytes, in.data(), out.data(), count, stream.value()) == cudaSuccess);
  device_buffer scratch{bytes, stream, pool};
  CHECK(cub::DeviceReduce::Sum(scratch.data(), bytes, in.data(), out.data(), count, stream.value()) == cudaSuccess);
  CHECK(out.value(stream) == 5 * count);
}

TEST(what_runs_under_an_algorithm_is_reported_as_out_of_memory)
{
  mr::limiting_resource_adaptor const small{mr::cuda_memory_resource{}, 1 << 20};
  cuda_stream const stream{cuda_stream::flags::non_blocking};
  device_uvector<int> v{1 << 20, stream, mr::cuda_memory_resource{}};
  thrust::sequence(exec_policy(stream), v.begin(), v.end());
  bool refused = false;
  try {
    thrust::sort(exec_policy(stream, small), v.begin(), v.end(), thrust::greater<int>());
  } catch (std::exception const&) {
    refused = true;  // Thrust makes an exception of its own of whatever is thrown there
  }
  CHECK(refused && small.get_allocated_bytes() == 0);
}

int main() { return check::run_all("cccl.cu"); }
