// What tenure's functions for PyTorch meet there, without PyTorch: classes of the same names, with the same signatures and
// visibility, and functions that call tenure's as CUDAPluggableAllocator does.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#define SHOWN __attribute__((visibility("default")))

namespace c10 {

struct SHOWN SourceLocation {
    const char *function;
    const char *file;
    uint32_t line;
};

class SHOWN Error : public std::exception {
    std::string message_;
    std::string what_;

public:
    Error(SourceLocation where, std::string message);
    const char *what() const noexcept override { return what_.c_str(); }
    const std::string &message() const { return message_; }
};

Error::Error(SourceLocation where, std::string message)
    : message_(std::move(message)), what_(message_ + " (" + where.function + ")") {}

#ifdef OLD
// As it is before PyTorch 2.15: the constructor is the base class's, and the class has only a table of functions.
class SHOWN OutOfMemoryError : public Error {
    using Error::Error;
};
// Its table is there because PyTorch itself throws one.
[[noreturn]] SHOWN void throw_one() { throw OutOfMemoryError({"", "", 0}, ""); }
#else
class SHOWN OutOfMemoryError : public Error {
public:
    OutOfMemoryError(SourceLocation where, std::string message);
};
OutOfMemoryError::OutOfMemoryError(SourceLocation where, std::string message) : Error(where, std::move(message)) {}
#endif

namespace cuda::CUDACachingAllocator {
struct SHOWN CUDAAllocator {
    virtual ~CUDAAllocator() = default;
    virtual void *raw_alloc(size_t) = 0;
    virtual void cacheInfo(int8_t device, size_t *largest) = 0;
    virtual int after() = 0;
};
SHOWN std::atomic<CUDAAllocator *> allocator{nullptr};
} // namespace cuda::CUDACachingAllocator
} // namespace c10

namespace torch::cuda::CUDAPluggableAllocator {
struct SHOWN CUDAPluggableAllocator : c10::cuda::CUDACachingAllocator::CUDAAllocator {
    void *raw_alloc(size_t) override;
    void cacheInfo(int8_t device, size_t *largest) override;
    int after() override;
};
void *CUDAPluggableAllocator::raw_alloc(size_t) { return this; }
void CUDAPluggableAllocator::cacheInfo(int8_t, size_t *) { throw std::runtime_error("does not yet support cacheInfo"); }
int CUDAPluggableAllocator::after() { return 7; }
} // namespace torch::cuda::CUDAPluggableAllocator

namespace {
using Malloc = void *(size_t, int, void *);
using Free = void(void *, size_t, int, void *);
using Record = void(void *, void *);
torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator only;

// An object whose end is seen: a frame that the exception leaves must be left properly.
struct Seen {
    int *ended;
    ~Seen() { ++*ended; }
};
} // namespace

extern "C" {

// 0: a block; 1: c10::OutOfMemoryError; 2: another c10::Error; 3: another std::exception; 4: something else.
SHOWN int drive_malloc(uintptr_t function, size_t bytes, int device, void *stream, void **out, char *text, size_t room) {
    int ended = 0, answer = 4;
    text[0] = 0;
    try {
        Seen seen{&ended};
        *out = reinterpret_cast<Malloc *>(function)(bytes, device, stream);
        answer = 0;
    } catch (const c10::OutOfMemoryError &error) {
        answer = 1;
        std::strncpy(text, error.message().c_str(), room - 1);
    } catch (const c10::Error &error) {
        answer = 2;
        std::strncpy(text, error.what(), room - 1);
    } catch (const std::exception &error) {
        answer = 3;
        std::strncpy(text, error.what(), room - 1);
    } catch (...) {
    }
    return ended == 1 ? answer : -1;
}

SHOWN void drive_free(uintptr_t function, void *ptr, size_t bytes, int device, void *stream) {
    reinterpret_cast<Free *>(function)(ptr, bytes, device, stream);
}

SHOWN void drive_record(uintptr_t function, void *ptr, void *stream) { reinterpret_cast<Record *>(function)(ptr, stream); }

SHOWN void drive_reset(uintptr_t function) { reinterpret_cast<void (*)()>(function)(); }

SHOWN void install() { c10::cuda::CUDACachingAllocator::allocator = &only; }

// The largest block, or -1 where the allocator says that it cannot tell. The other functions must still be theirs.
SHOWN long ask_cache_info(int device) {
    auto *allocator = c10::cuda::CUDACachingAllocator::allocator.load();
    if (allocator->raw_alloc(1) != static_cast<void *>(&only) || allocator->after() != 7) return -2;
    try {
        size_t largest = 0;
        allocator->cacheInfo(static_cast<int8_t>(device), &largest);
        return static_cast<long>(largest);
    } catch (const std::exception &) {
        return -1;
    }
}
}
