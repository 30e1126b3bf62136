/*
 * calrt/emulator.h: what only the emulator has. C99; every call from every thread at any time.
 *
 * The marker symbol tells the emulator from the vendor's library, whatever a file is called. Faults and times can also
 * be given by the environment, read when a device is created, so that a whole daemon can be driven:
 *
 *   CALRT_EMULATOR_FAULTS   FAULT[:ping|:pong][:nth=N][:times=N][:seconds=S], several separated by commas
 *   CALRT_EMULATOR_TIME     every time of a calbin is multiplied by it; 0 for a device without time
 */
#ifndef CALRT_EMULATOR_H
#define CALRT_EMULATOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CALRT_EMULATOR_API __attribute__((visibility("default")))

extern CALRT_EMULATOR_API const char calrt_emulator_marker[]; /* "calrt-emulator" */

#define CALRT_EMULATOR_PLANS_MAX 256
#define CALRT_EMULATOR_ANY_ENGINE (-1)

/*
 * Plans a fault: the `nth` (from 1, counted from now) call that may have it and the `times` - 1 after it have it.
 * Returns 0; or 1 where the name is none of these, a number is out of range, or too many are planned:
 *
 *   infer     device_busy
 *   Wait      late (by `seconds`)   stuck_wait (until calrt_emulator_release)   timeout (the driver's own)
 *             ccu_fault   pcie_error   unknown_dma   device_lost (every later call fails)   output_error
 *             cross_talk (another row's or engine's token)   counter_anomaly (the queue counts a job twice)
 *   KvManager no_capacity   unconfirmed
 *   GetStatus bad_status
 *
 * `engine` is 0, 1 or CALRT_EMULATOR_ANY_ENGINE; KvManager and GetStatus know no engine.
 */
CALRT_EMULATOR_API int calrt_emulator_plan(const char *fault, int engine, uint64_t nth, uint64_t times, double seconds);

/* How often a fault has come about in this process. */
CALRT_EMULATOR_API uint64_t calrt_emulator_happened(const char *fault);

/* Forgets every plan, and a lost device is found again; what is stuck stays so. */
CALRT_EMULATOR_API void calrt_emulator_clear(void);

/* Lets every stuck Wait return, with the error timeout. */
CALRT_EMULATOR_API void calrt_emulator_release(void);

/*
 * Times beside the calbin's: `scale` multiplies everything, `h2d_s` is copying in, `d2h_row_s` copying a row of logits
 * back; `overlaps` says whether two engines compute at once. At first: 1, 0, 0, 0. Returns 1 for a number out of range.
 */
CALRT_EMULATOR_API int calrt_emulator_timing(double scale, double h2d_s, double d2h_row_s, int overlaps);

#ifdef __cplusplus
}
#endif

#endif
