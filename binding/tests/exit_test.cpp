// A process whose waiter is stuck ends at once: by `exit` with everything left open, or by returning from main after
// closing what can be closed. The argument says which; the bound is ctest's.
#include <cstring>

#include "rig.h"

namespace {

class Stuck : public test::Rig {
   public:
    void TestBody() override {}
    using Rig::close;

    void lose_ping() {
        open();
        auto sequence = allocate(0);
        calrt_emulator_plan("stuck_wait", CALCULET_PING, 1, 1, 0);
        EXPECT_CODE(CALCULET_TIMEOUT, run(CALCULET_PING, 0, sequence, {1}, nullptr, 0.05));
        is_lost_expected = true;
        files.reset();  // nobody removes the directory later
    }
};

}  // namespace

int main(int count, char **arguments) {
    auto *stuck = new Stuck;
    stuck->lose_ping();
    if (::testing::Test::HasFailure()) return 1;
    if (count > 1 && std::strcmp(arguments[1], "open") == 0) std::exit(0);
    stuck->close();
    delete stuck;
    return ::testing::Test::HasFailure() ? 1 : 0;
}
