// The board's exclusive lock: one process has it, and everybody can ask who.
#pragma once

#include <cstdint>
#include <string>

namespace calculet {

struct Holder {
    std::int64_t pid = 0;  // 0: nobody; -1: a process that this one cannot see
    std::string name;
};

class DeviceLock {
   public:
    // Throws LOCKED, with the holder in the text, or NO_DEVICE where the file cannot be made.
    explicit DeviceLock(const std::string &path);
    ~DeviceLock();
    DeviceLock(const DeviceLock &) = delete;
    DeviceLock &operator=(const DeviceLock &) = delete;

    const std::string &path() const { return path_; }

    // Who holds the lock at `path`.
    static Holder holder(const std::string &path);

   private:
    std::string path_;
    int file_;
};

}  // namespace calculet
