// Opening, the lock, what is known of the board, and the order in which things are closed.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "pci_board.h"
#include "rig.h"

namespace {

using Device = test::Rig;
namespace fs = std::filesystem;

// A board in a sysfs of our own.
void make_board(const std::string &root, const std::string &address, const char *vendor, const char *driver) {
    const fs::path device = fs::path(root) / address, drivers = fs::path(root) / "drivers" / driver / "module";
    fs::create_directories(device);
    fs::create_directories(drivers);
    std::ofstream(device / "vendor") << vendor << "\n";
    std::ofstream(device / "device") << "0xc001\n";
    std::ofstream(drivers / "version") << "1.0.0\n";
    fs::create_directory_symlink(drivers.parent_path(), device / "driver");
}

TEST(Abi, TheLibraryIsTheHeaders) { EXPECT_EQ(calculet_abi_version(), CALCULET_CALRT_ABI); }

TEST(Abi, EveryCodeHasAName) {
    for (calculet_code code = 0; code <= CALCULET_VENDOR_ERROR; ++code) EXPECT_STRNE(calculet_code_name(code), "?");
    EXPECT_STREQ(calculet_code_name(-1), "?");
    EXPECT_STREQ(calculet_code_name(CALCULET_VENDOR_ERROR + 1), "?");
    EXPECT_STREQ(calculet_code_name(CALCULET_NOT_QUIET), "not_quiet");
}

TEST(Abi, NothingGivenIsRefusedByName) {
    EXPECT_CODE(CALCULET_INVALID, calculet_device_open(nullptr, nullptr));
    EXPECT_TEXT("device");
    EXPECT_CODE(CALCULET_INVALID, calculet_device_close(nullptr));
    EXPECT_CODE(CALCULET_INVALID, calculet_calbin_close(nullptr));
    EXPECT_CODE(CALCULET_INVALID, calculet_model_unload(nullptr));
    EXPECT_CODE(CALCULET_INVALID, calculet_job_prepare(nullptr, 0, nullptr));
    EXPECT_CODE(CALCULET_INVALID, calculet_kv_release(nullptr, 1));
}

TEST_F(Device, TheEmulatorIsCalledSoWhateverThePciBusHas) {
    const test::CalbinDirectory directory;
    const std::string lock = directory.path("lock"), pci = directory.path("pci");
    make_board(pci, "0000:01:00.0", "0x20f5", "calculet_pci");
    const calculet_open_options options{lock.c_str(), pci.c_str(), 0};
    ASSERT_CODE(CALCULET_OK, calculet_device_open(&options, &device));
    calculet_device_info info;
    ASSERT_CODE(CALCULET_OK, calculet_device_inspect(device, &info));
    EXPECT_STREQ(info.kind, "calrt-emulator");
    EXPECT_EQ(info.is_emulator, 1U);
    EXPECT_STREQ(info.pci_id, "20f5:c001");
    EXPECT_STREQ(info.pci_address, "0000:01:00.0");
    EXPECT_STREQ(info.driver, "calculet_pci");
    EXPECT_STREQ(info.driver_version, "1.0.0");
    EXPECT_STREQ(info.calrt_version, "0.7.6");
    EXPECT_EQ(fs::path(info.library_path).filename(), "libcalrt-linux-x86_64.so.0.7.6");
    EXPECT_NE(dlsym(RTLD_DEFAULT, "calrt_emulator_marker"), nullptr);
    calculet_memory memory;
    ASSERT_CODE(CALCULET_OK, calculet_device_memory(device, &memory));
    EXPECT_EQ(memory.size_source, CALCULET_SIZE_PCI);
    EXPECT_EQ(memory.size_bytes, 32768ULL << 20);
}

TEST(PciBoard, OnlyIdAndDriverMakeItACalculetBoard) {
    const test::CalbinDirectory directory;
    EXPECT_FALSE(calculet::find_board(directory.path("nowhere")).is_calculet());
    make_board(directory.path("other"), "0000:01:00.0", "0x10de", "calculet_pci");
    EXPECT_FALSE(calculet::find_board(directory.path("other")).is_calculet());
    make_board(directory.path("unbound"), "0000:01:00.0", "0x20f5", "vfio-pci");
    const auto unbound = calculet::find_board(directory.path("unbound"));
    EXPECT_EQ(unbound.id, "20f5:c001");
    EXPECT_FALSE(unbound.is_calculet());
    make_board(directory.path("two"), "0000:09:00.0", "0x20f5", "calculet_pci");
    make_board(directory.path("two"), "0000:03:00.0", "0x20f5", "calculet_pci");
    const auto first = calculet::find_board(directory.path("two"));
    EXPECT_TRUE(first.is_calculet());
    EXPECT_EQ(first.address, "0000:03:00.0");
}

TEST_F(Device, ThereIsOneAProcess) {
    open();
    calculet_device *second = nullptr;
    EXPECT_CODE(CALCULET_WRONG_STATE, calculet_device_open(nullptr, &second));
    EXPECT_EQ(second, nullptr);
    close();
    open();  // after closing it can be had again
}

TEST_F(Device, AnotherProcessIsToldWhoHoldsIt) {
    open();
    const std::string lock = files->path("lock");
    std::int64_t pid = 0;
    char name[CALCULET_NAME_BYTES];
    ASSERT_CODE(CALCULET_OK, calculet_device_holder(lock.c_str(), &pid, name));
    EXPECT_EQ(pid, getpid()) << "its own process knows it, too, and does not lose the lock by asking";
    EXPECT_STRNE(name, "");
    // Another program, so that nothing of this process's state is there: this one again, with the path to ask for.
    const std::string command = "/proc/self/exe";
    const pid_t child = fork();
    if (child == 0) {
        setenv("CALCULET_TEST_LOCK", lock.c_str(), 1);
        execl(command.c_str(), command.c_str(), "--gtest_filter=DISABLED_Other.ProcessIsRefused",
              "--gtest_also_run_disabled_tests", nullptr);
        _exit(99);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    const std::string nobody = files->path("another-lock");
    ASSERT_CODE(CALCULET_OK, calculet_device_holder(nobody.c_str(), &pid, name));
    EXPECT_EQ(pid, 0);
    EXPECT_STREQ(name, "");
}

TEST(DISABLED_Other, ProcessIsRefused) {  // run by the test above, in a process of its own
    const char *lock = std::getenv("CALCULET_TEST_LOCK");
    ASSERT_NE(lock, nullptr);
    std::int64_t pid = 0;
    char name[CALCULET_NAME_BYTES];
    ASSERT_CODE(CALCULET_OK, calculet_device_holder(lock, &pid, name));
    EXPECT_EQ(pid, getppid());
    const calculet_open_options options{lock, nullptr, 0};
    calculet_device *device = nullptr;
    EXPECT_CODE(CALCULET_LOCKED, calculet_device_open(&options, &device));
    EXPECT_TEXT("process " + std::to_string(getppid()));
}

TEST_F(Device, AFailedOpenGivesTheProcessBack) {
    const calculet_open_options options{"/nowhere/at/all/lock", nullptr, 0};
    EXPECT_CODE(CALCULET_NO_DEVICE, calculet_device_open(&options, &device));
    EXPECT_TEXT("/nowhere/at/all/lock");
    open();
}

TEST_F(Device, ItsTotalMemoryIsKnownNonsense) {
    open();
    calculet_memory memory;
    ASSERT_CODE(CALCULET_OK, calculet_device_memory(device, &memory));
    EXPECT_NEAR(memory.total_mib, 3.05e-05, 1e-7);
    EXPECT_EQ(memory.total_is_nonsense, 1U);
    EXPECT_EQ(memory.size_source, CALCULET_SIZE_UNKNOWN);
    EXPECT_EQ(memory.size_bytes, 0U);
    EXPECT_EQ(memory.used_bytes, 12U + 4U * 128U * 98304U);
    close();
    const test::CalbinDirectory directory;
    const std::string lock = directory.path("lock"), pci = directory.path("no-pci");
    const calculet_open_options options{lock.c_str(), pci.c_str(), 1ULL << 35};
    ASSERT_CODE(CALCULET_OK, calculet_device_open(&options, &device));
    ASSERT_CODE(CALCULET_OK, calculet_device_memory(device, &memory));
    EXPECT_EQ(memory.size_source, CALCULET_SIZE_DECLARED);
    EXPECT_EQ(memory.size_bytes, 1ULL << 35);
}

TEST_F(Device, ClosesInOrderOnly) {
    open();
    EXPECT_CODE(CALCULET_WRONG_STATE, calculet_device_close(device));
    EXPECT_CODE(CALCULET_WRONG_STATE, calculet_calbin_close(calbin));
    EXPECT_CODE(CALCULET_WRONG_STATE, calculet_device_reset_configuration(device));
    auto sequence = allocate(0);
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PING, 0, sequence, {1, 2, 3})) << "nothing of that did any harm";
}

TEST_F(Device, HoldsOneModelUntilItsConfigurationIsReset) {
    open();
    ASSERT_CODE(CALCULET_OK, calculet_model_unload(model));
    model = nullptr;
    EXPECT_CODE(CALCULET_DEVICE_BUSY, calculet_model_configure(calbin, roles.data(), 2, &model));
    EXPECT_CODE(CALCULET_OK, calculet_device_reset_configuration(device));
    ASSERT_CODE(CALCULET_OK, calculet_model_configure(calbin, roles.data(), 2, &model));
    auto sequence = allocate(3);
    EXPECT_CODE(CALCULET_OK, run(CALCULET_PONG, 0, sequence, {1}));
}

}  // namespace
