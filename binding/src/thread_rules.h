// The header's thread rules, checked where NDEBUG is not defined: a broken one ends the process with a sentence.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace calculet {

// Something that one thread at a time may use: an engine, the KV calls, the control calls.
class OneUser {
   public:
    explicit OneUser(const char *name) : name_(name) {}

    // Holds the user's place from entry to exit of a call.
    class Section {
       public:
        explicit Section(OneUser &of) : of_(of) {
#ifndef NDEBUG
            if (of_.is_used_.exchange(true)) {
                std::fprintf(stderr, "calculet_calrt: two threads use %s at once; see calculet_calrt.h\n", of_.name_);
                std::abort();
            }
#endif
        }
        ~Section() { of_.is_used_ = false; }
        Section(const Section &) = delete;
        Section &operator=(const Section &) = delete;

       private:
        OneUser &of_;
    };

   private:
    const char *name_;
    std::atomic<bool> is_used_{false};
};

}  // namespace calculet
