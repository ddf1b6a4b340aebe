// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/tenure.hpp
 *
 * tenure for C++17: everything in one include. RMM's names, under `tenure::`.
 *
 *     tenure::cuda_stream stream{tenure::cuda_stream::flags::non_blocking};
 *     tenure::device_buffer buffer;
 *     {
 *       tenure::mr::pool_memory_resource pool{tenure::mr::cuda_memory_resource{}, 1 << 20};
 *       buffer = tenure::device_buffer{1 << 16, stream, pool};
 *     }  // the pool's handle is gone; the pool lives on, because the buffer does
 *
 * No object has to be destroyed before or after another. All types default-construct to empty (the four process-wide resources
 * excepted, which are ready), move without throwing, and compare; using an empty one throws a sentence. Destructors never
 * throw: what they find wrong goes to the handler of wrong frees (`set_misuse_handler`). No header of CUDA's is needed.
 *
 * | header        | holds                                                                              |
 * |---------------|------------------------------------------------------------------------------------|
 * | error.hpp     | exceptions; wrong frees that cannot be thrown                                       |
 * | device.hpp    | device ids, the current device                                                     |
 * | stream.hpp    | cuda_stream_view, cuda_stream                                                      |
 * | stream_pool.hpp | cuda_stream_pool                                                                 |
 * | resource.hpp  | mr::resource, owner_of                                                             |
 * | resources.hpp | the concrete resources and adaptors                                                |
 * | adaptors.hpp  | tracking, failure callback, prefetch, aligned, thread-safe                         |
 * | bins.hpp      | fixed-size, binning and arena resources                                            |
 * | logging.hpp   | logs of what passes                                                                |
 * | scopes.hpp    | measurements of a thread or a task                                                 |
 * | callback.hpp  | resources of your own code, resource_cast                                          |
 * | capture.hpp   | memory of graphs: shared_arena, capture_scope                                      |
 * | current.hpp   | the table of current resources, scopes, listeners                                  |
 * | buffer.hpp    | device_buffer                                                                      |
 * | sharing.hpp   | memory of one process in another: shared_memory, share                             |
 * | uvector.hpp   | device_uvector<T>                                                                  |
 * | scalar.hpp    | device_scalar<T>                                                                   |
 * | allocator.hpp | mr::polymorphic_allocator<T>, mr::stream_allocator_adaptor<A>                       |
 * | aligned.hpp   | the arithmetic of alignment                                                        |
 *
 * Three more need other people's headers, and are included by name: cccl.hpp (both ways between tenure's resources and CCCL's),
 * thrust.hpp (policies, vectors), rmm.hpp (a resource for code that takes RMM's, with RMM's exceptions).
 *
 * Link against libtenure.so.0 (CMake: `tenure::tenure`), or define `TENURE_HEADER_ONLY` (CMake: `tenure::headers`) to have the
 * library of the process found at run time: see detail/table.hpp.
 */

#pragma once

#include <tenure/adaptors.hpp>
#include <tenure/aligned.hpp>
#include <tenure/allocator.hpp>
#include <tenure/bins.hpp>
#include <tenure/buffer.hpp>
#include <tenure/callback.hpp>
#include <tenure/capture.hpp>
#include <tenure/current.hpp>
#include <tenure/device.hpp>
#include <tenure/error.hpp>
#include <tenure/logging.hpp>
#include <tenure/low_memory.hpp>
#include <tenure/observe.hpp>
#include <tenure/resource.hpp>
#include <tenure/resources.hpp>
#include <tenure/scalar.hpp>
#include <tenure/scopes.hpp>
#include <tenure/sharing.hpp>
#include <tenure/stream.hpp>
#include <tenure/stream_pool.hpp>
#include <tenure/uvector.hpp>
