#include "device_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>

#include "failure.h"

namespace calculet {
namespace {

// A record lock of the kernel's: it ends with its process, however that ends, and F_GETLK tells who has it.
struct flock whole_file(short type) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    return lock;
}

// The file that this process has locked, by device and inode: closing any descriptor of it would give the lock up, so
// it is not opened again to ask who has it.
std::mutex held_mutex;
struct stat held {};
bool is_held = false;

bool is_ours(const std::string &path) {
    struct stat found {};
    const std::lock_guard lock(held_mutex);
    return is_held && stat(path.c_str(), &found) == 0 && found.st_dev == held.st_dev && found.st_ino == held.st_ino;
}

Holder named(std::int64_t pid) {
    Holder holder{pid, ""};
    std::ifstream name("/proc/" + std::to_string(pid) + "/comm");
    std::getline(name, holder.name);
    return holder;
}

Holder holder_of(int file) {
    auto lock = whole_file(F_WRLCK);
    if (fcntl(file, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return {};
    if (lock.l_pid <= 0) return {-1, ""};
    return named(lock.l_pid);
}

}  // namespace

DeviceLock::DeviceLock(const std::string &path) : path_(path) {
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    // In a sticky directory the kernel may refuse O_CREAT for a file of another user's, but not opening it.
    if (file_ < 0 && errno == EACCES) file_ = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (file_ < 0) throw Failure(CALCULET_NO_DEVICE, "lock_path: " + path + ": " + std::strerror(errno));
    auto lock = whole_file(F_WRLCK);
    if (fcntl(file_, F_SETLK, &lock) == 0) {
        const std::lock_guard guarded(held_mutex);
        is_held = fstat(file_, &held) == 0;
        return;
    }
    const int error = errno;
    const Holder other = holder_of(file_);
    close(file_);
    if (error != EAGAIN && error != EACCES)
        throw Failure(CALCULET_NO_DEVICE, "lock_path: " + path + ": " + std::strerror(error));
    const std::string who = other.pid < 0    ? "a process of another container"
                            : other.pid == 0 ? "a process that has just ended"
                                             : "process " + std::to_string(other.pid) + " (" + other.name + ")";
    throw Failure(CALCULET_LOCKED, "the device is held by " + who + ", by the lock " + path);
}

DeviceLock::~DeviceLock() {
    const std::lock_guard guarded(held_mutex);
    is_held = false;
    close(file_);
}

Holder DeviceLock::holder(const std::string &path) {
    if (is_ours(path)) return named(getpid());
    const int file = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) return {};
    if (file < 0) throw Failure(CALCULET_INVALID, "lock_path: " + path + ": " + std::strerror(errno));
    Holder found = holder_of(file);
    close(file);
    return found;
}

}  // namespace calculet
