/* The header is C99, and its structs are as wide as those who describe them elsewhere believe. */
#include <calculet_calrt.h>
#include <calrt/emulator.h>
#include <stdio.h>
#include <string.h>

#define HOLD(name, condition) typedef char name[(condition) ? 1 : -1]
HOLD(lane_work_is_32_bytes, sizeof(calculet_lane_work) == 32);
HOLD(csr_write_is_16_bytes, sizeof(calculet_csr_write) == 16);
HOLD(job_is_32_bytes, sizeof(calculet_job) == 32);
HOLD(result_is_80_bytes, sizeof(calculet_result) == 80);
HOLD(role_is_64_bytes, sizeof(calculet_role) == 64);
HOLD(memory_is_40_bytes, sizeof(calculet_memory) == 40);
HOLD(engine_info_is_24_bytes, sizeof(calculet_engine_info) == 24);

int main(void) {
    calculet_device *device = NULL;
    calculet_open_options options;
    memset(&options, 0, sizeof options);
    options.lock_path = "/nowhere/at/all/lock";
    if (calculet_abi_version() != CALCULET_CALRT_ABI) return 1;
    if (strcmp(calrt_emulator_marker, "calrt-emulator") != 0) return 2;
    if (calculet_device_open(&options, &device) != CALCULET_NO_DEVICE) return 3;
    if (strstr(calculet_error_text(), "lock_path") == NULL) return 4;
    printf("%s\n", calculet_error_text());
    return 0;
}
