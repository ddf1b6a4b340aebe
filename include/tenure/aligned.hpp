// SPDX-License-Identifier: Apache-2.0

/**
 * \file tenure/aligned.hpp
 *
 * Alignment: how far apart blocks lie, and the arithmetic of it. All of it is constexpr and calls nothing.
 */

#pragma once

#include <cstddef>
#include <cstdint>

namespace tenure {

/** What a resource aligns to where nothing else is asked for, in bytes. */
inline constexpr std::size_t CUDA_ALLOCATION_ALIGNMENT = 256;

/** Whether `value` is a power of two; 0 is none. */
[[nodiscard]] constexpr bool is_pow2(std::size_t value) noexcept { return value != 0 && (value & (value - 1)) == 0; }
/** Whether a resource takes this alignment: a power of two. */
[[nodiscard]] constexpr bool is_supported_alignment(std::size_t alignment) noexcept { return is_pow2(alignment); }
/** Whether memory has this alignment without anybody asking for it. */
[[nodiscard]] constexpr bool is_supported_base_resource_alignment(std::size_t alignment) noexcept
{
  return is_pow2(alignment) && alignment <= CUDA_ALLOCATION_ALIGNMENT;
}
/** `value` raised to a multiple of `alignment`, a power of two. A value within `alignment` of the largest one wraps around. */
[[nodiscard]] constexpr std::size_t align_up(std::size_t value, std::size_t alignment) noexcept
{
  return (value + alignment - 1) & ~(alignment - 1);
}
/** `value` lowered to a multiple of `alignment`, a power of two. */
[[nodiscard]] constexpr std::size_t align_down(std::size_t value, std::size_t alignment) noexcept
{
  return value & ~(alignment - 1);
}
/** Whether `value` is a multiple of `alignment`, a power of two. */
[[nodiscard]] constexpr bool is_aligned(std::size_t value, std::size_t alignment) noexcept
{
  return (value & (alignment - 1)) == 0;
}
/** Whether `ptr` is a multiple of `alignment`, a power of two. */
[[nodiscard]] inline bool is_pointer_aligned(void const* ptr,
                                             std::size_t alignment = CUDA_ALLOCATION_ALIGNMENT) noexcept
{
  return is_aligned(static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(ptr)), alignment);
}

}  // namespace tenure
