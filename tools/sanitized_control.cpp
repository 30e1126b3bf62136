// One defect for each sanitizer. Before a daemon is called clean, the same Python under the same options loads these
// and must hear of them: else silence would say nothing.
#include <cstdlib>
#include <thread>

extern "C" {

int race(void) {
    int shared = 0;
    std::thread other([&] { ++shared; });
    ++shared;
    other.join();
    return shared;
}

int overflow(void) {
    volatile char *bytes = static_cast<volatile char *>(std::calloc(1, 4));
    volatile std::size_t beyond = 4;
    const int found = bytes[beyond];
    std::free(const_cast<char *>(bytes));
    return found;
}

int undefined(void) {
    volatile int bits = 32;
    return 1 << bits;
}
}
