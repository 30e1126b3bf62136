// Page-aligned host memory for one tensor, zeroed, freed with its owner.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace calculet {

class PageMemory {
   public:
    static constexpr std::size_t kPageBytes = 4096;

    explicit PageMemory(std::size_t bytes) : bytes_(bytes) {
        const std::size_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
        memory_.reset(std::aligned_alloc(kPageBytes, whole));
        if (!memory_) throw std::bad_alloc();
        std::memset(memory_.get(), 0, whole);
#ifdef __SANITIZE_ADDRESS__  // what is past the tensor is nobody's, though the last page goes on
        __asan_poison_memory_region(as<char>() + bytes, whole - bytes);
#endif
    }

    template <typename Element>
    Element *as() const {
        return static_cast<Element *>(memory_.get());
    }
    std::size_t bytes() const { return bytes_; }

   private:
    struct Free {
        void operator()(void *memory) const { std::free(memory); }
    };
    std::unique_ptr<void, Free> memory_;
    std::size_t bytes_;
};

}  // namespace calculet
