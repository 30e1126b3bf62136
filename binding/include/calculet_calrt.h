/*
 * calculet_calrt.h: the C ABI between calculet-trio and CalRT 0.7.6, the native runtime of a Calculet board.
 *
 * Every call returns a code; any other than CALCULET_OK leaves a sentence in calculet_error_text() of the calling
 * thread, which names the field and the limit that was not kept. No exception passes this boundary. Strings are UTF-8
 * and end with NUL; those in structs are cut to their field. Pointers that a call takes are read during the call only.
 *
 * Units stand last in a name. Rows are rows of one batch, lanes are places of the device's KV memory.
 *
 * Threads. A process has one device. Unless its comment says otherwise, a call belongs to the *control thread*: one
 * call at a time, and no job is prepared or in flight meanwhile. `engine` calls come from one thread at a time and
 * engine; different engines from different threads. `any` calls come from every thread at any time. A debug build
 * (NDEBUG undefined) ends the process with a message where a rule is broken.
 *
 * A change of any struct, constant or call raises CALCULET_CALRT_ABI; compare it before the first other call.
 *
 * Source: SPEC section 1, 7, 9, 14 (A section 4, 5; S section 3, 9, 14).
 */
#ifndef CALCULET_CALRT_H
#define CALCULET_CALRT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CALCULET_CALRT_ABI 2u

#if defined(__GNUC__)
#define CALCULET_API __attribute__((visibility("default")))
#else
#define CALCULET_API
#endif

/* ---- codes -------------------------------------------------------------------------------------------------- */

typedef int32_t calculet_code;

#define CALCULET_OK 0
#define CALCULET_INVALID 1       /* an argument is wrong: the text names it and its limit; nothing was done */
#define CALCULET_WRONG_STATE 2   /* the call does not fit what was done before: the text says what must come first */
#define CALCULET_LOCKED 3        /* another process holds the device: the text says which */
#define CALCULET_NO_DEVICE 4     /* there is none, or it does not open */
#define CALCULET_NO_FILE 5       /* a calbin shard is not there or cannot be read */
#define CALCULET_BAD_CALBIN 6    /* the calbin is not what it should be, or lacks a named submodel, tensor or CSR */
#define CALCULET_NO_CAPACITY 7   /* no room for another sequence, or for so many tokens */
#define CALCULET_NO_MEMORY 8     /* the host has no memory left */
#define CALCULET_DEVICE_BUSY 9   /* the device did not take the job; a later try may do */
#define CALCULET_TIMEOUT 10      /* the wait ended by its timeout: the engine is lost, and its buffers with it */
#define CALCULET_ENGINE_LOST 11  /* a waiter of this engine is stuck: the process uses the engine no more */
#define CALCULET_OUTPUT_ERROR 12 /* the device is done and its output is unusable */
#define CALCULET_CCU_FAULT 13    /* the device's control unit reports a fault: the job's KV is unknown */
#define CALCULET_PCIE_ERROR 14   /* the bus reports an error: the job's KV is unknown */
#define CALCULET_UNKNOWN_DMA 15  /* a transfer's end is unknown: it may still write */
#define CALCULET_DEVICE_LOST 16  /* the device answers no more */
#define CALCULET_UNCONFIRMED 17  /* the runtime did not confirm it: treat the lane as unknown */
#define CALCULET_NOT_QUIET 18    /* done as far as it goes; the device may still be working on a lost job */
#define CALCULET_UNSUPPORTED 19  /* this runtime or calbin does not have it */
#define CALCULET_VENDOR_ERROR 20 /* the vendor failed in a way that has no code here; the text is its words */

/* any. The code's name in lower case ("device_busy"); "?" for a number that is none. Never NULL. */
CALCULET_API const char *calculet_code_name(calculet_code code);

/* any. What went wrong in this thread's last failed call; "" before the first. Valid until this thread's next call. */
CALCULET_API const char *calculet_error_text(void);

/* any. CALCULET_CALRT_ABI of the library. */
CALCULET_API uint32_t calculet_abi_version(void);

/* ---- bounds ------------------------------------------------------------------------------------------------- */

#define CALCULET_NAME_BYTES 132       /* 128 characters at most, and NUL */
#define CALCULET_TEXT_BYTES 256
#define CALCULET_ENGINES_MAX 2       /* ping and pong */
#define CALCULET_PING 0u
#define CALCULET_PONG 1u
#define CALCULET_SHARDS_MAX 64u      /* the reference calbin has two */
#define CALCULET_SUBMODELS_MAX 64u
#define CALCULET_TENSORS_MAX 64u     /* inputs and outputs of one submodel */
#define CALCULET_CSRS_MAX 64u
#define CALCULET_BATCH_MAX 64u
#define CALCULET_LANES_MAX 1024u
#define CALCULET_RANK_MAX 8u
#define CALCULET_WAIT_S_MAX 86400.0  /* a day; a longer wait is a mistake of its unit */

/* ---- the device --------------------------------------------------------------------------------------------- */

typedef struct calculet_device calculet_device;

typedef struct calculet_open_options {
    const char *lock_path;          /* the exclusive lock's file; NULL for /run/lock/calculet0.lock */
    const char *pci_root;           /* where PCI devices are listed; NULL for /sys/bus/pci/devices */
    uint64_t declared_memory_bytes; /* the board's memory as a manifest or operator says; 0 for unknown */
} calculet_open_options;

/* Opens the process's one device and takes its lock. `options` may be NULL. LOCKED says who holds it; WRONG_STATE if
 * this process has one open. Blocks as long as the vendor's constructor does. */
CALCULET_API calculet_code calculet_device_open(const calculet_open_options *options, calculet_device **device);

/* Gives device and lock back; every calbin and model must be closed before; the handle ends with the call. NOT_QUIET
 * where an engine is lost: the vendor's objects and the lock are kept then for the life of the process, which cannot
 * open a device again. */
CALCULET_API calculet_code calculet_device_close(calculet_device *device);

/* any. Who holds a lock, without taking it: `pid` is 0 for nobody; -1 for a process that this one cannot see (another
 * container). `name` gets its command name, or "". */
CALCULET_API calculet_code calculet_device_holder(const char *lock_path, int64_t *pid, char name[CALCULET_NAME_BYTES]);

typedef struct calculet_device_info {
    char kind[CALCULET_NAME_BYTES];            /* "calculet", "calrt-emulator" or "unknown", see below */
    char pci_address[CALCULET_NAME_BYTES];     /* "0000:01:00.0", or "" */
    char pci_id[CALCULET_NAME_BYTES];          /* "20f5:c001", or "" */
    char driver[CALCULET_NAME_BYTES];          /* the driver bound to it: "calculet_pci", or "" */
    char driver_version[CALCULET_NAME_BYTES];  /* from sysfs, or "" */
    char calrt_version[CALCULET_NAME_BYTES];   /* as the library says */
    char calcore_version[CALCULET_NAME_BYTES]; /* as the device says */
    char library_path[CALCULET_TEXT_BYTES];    /* the vendor library that is loaded */
    uint32_t is_emulator;                      /* 1: the library carries the emulator's marker */
    uint32_t engines;                          /* job engines that it offers */
} calculet_device_info;

/* any. What was opened. `kind` is "calrt-emulator" where the marker is, "calculet" where the PCI bus has a 20f5:c001
 * that calculet_pci drives and no marker is, else "unknown". A library's name decides nothing. */
CALCULET_API calculet_code calculet_device_inspect(calculet_device *device, calculet_device_info *info);

#define CALCULET_SIZE_UNKNOWN 0u
#define CALCULET_SIZE_DECLARED 1u /* calculet_open_options.declared_memory_bytes */
#define CALCULET_SIZE_PCI 2u      /* what boards of this PCI id have (32768 MiB for 20f5:c001) */

typedef struct calculet_memory {
    double used_mib;            /* as the vendor's library says */
    double total_mib;           /* as the vendor's library says: 3.05e-05 in 0.7.6 */
    uint64_t used_bytes;        /* of used_mib */
    uint64_t size_bytes;        /* the device's size from another source, 0 for unknown: never measured */
    uint32_t size_source;       /* CALCULET_SIZE_... */
    uint32_t total_is_nonsense; /* 1: total_mib is below one MiB or below used_mib, so it must not be used */
} calculet_memory;

/* any. */
CALCULET_API calculet_code calculet_device_memory(calculet_device *device, calculet_memory *memory);

#define CALCULET_ENGINE_IDLE 0u
#define CALCULET_ENGINE_PREPARED 1u /* buffers are filled, nothing was submitted */
#define CALCULET_ENGINE_RUNNING 2u  /* submitted, the waiter waits */
#define CALCULET_ENGINE_ANSWERED 3u /* the vendor's wait came back, nobody took the result yet */
#define CALCULET_ENGINE_LOST_FOR_GOOD 4u /* a wait timed out: refused until the process ends */

typedef struct calculet_engine_info {
    uint32_t state;        /* CALCULET_ENGINE_... */
    uint32_t has_returned; /* 1: a lost engine's waiter came back after all (the engine stays refused) */
    uint64_t submitted;    /* jobs that this library handed over */
    uint64_t answered;     /* jobs whose vendor wait came back, late ones included */
} calculet_engine_info;

typedef struct calculet_status {
    uint32_t ok;                      /* 1: the device answers and its word is good */
    uint32_t word;                    /* the device's own status word */
    char text[CALCULET_TEXT_BYTES];   /* what it means, as far as is known */
    uint64_t queue_submitted;         /* the device's own counters, both engines */
    uint64_t queue_completed;
    uint32_t engines;
    calculet_engine_info engine[CALCULET_ENGINES_MAX];
} calculet_status;

/* any. */
CALCULET_API calculet_code calculet_device_status(calculet_device *device, calculet_status *status);

/* Clears the device's configuration; every model must be unloaded before. NOT_QUIET where an engine is lost and its
 * waiter has not come back: the device may still write. Blocks as long as the vendor's call. */
CALCULET_API calculet_code calculet_device_reset_configuration(calculet_device *device);

/* ---- calbins: what they say of themselves, unchecked ---------------------------------------------------------- */

typedef struct calculet_calbin calculet_calbin;

/* Opens the shards of one calbin, in their order. */
CALCULET_API calculet_code calculet_calbin_open(
    calculet_device *device, const char *const *shards, uint32_t shard_count, calculet_calbin **calbin);

/* Its models must be unloaded before. */
CALCULET_API calculet_code calculet_calbin_close(calculet_calbin *calbin);

typedef struct calculet_calbin_info {
    char schema_version[CALCULET_NAME_BYTES]; /* "v0.1" */
    uint32_t max_batch_size;
    uint32_t max_seq_len;
    uint32_t lanes;         /* KV sequences that fit at once */
    uint32_t submodels;
    uint32_t chips;
    uint32_t vocab_size;
    uint64_t kv_token_bytes; /* 0: it does not say */
} calculet_calbin_info;

CALCULET_API calculet_code calculet_calbin_inspect(calculet_calbin *calbin, calculet_calbin_info *info);

typedef struct calculet_submodel_info {
    char name[CALCULET_NAME_BYTES];       /* exact */
    char model_type[CALCULET_NAME_BYTES]; /* as tagged: a prefill may be tagged "llm_decode" */
    uint32_t workload;                    /* as tagged: known to be 0 */
    uint32_t target_chips;                /* entries of its chip list: known to be none */
    uint32_t batch;
    uint32_t max_seq_len;
    uint32_t tensors;
    uint32_t csrs;
} calculet_submodel_info;

CALCULET_API calculet_code calculet_submodel_inspect(
    calculet_calbin *calbin, uint32_t submodel, calculet_submodel_info *info);

#define CALCULET_INPUT 0u
#define CALCULET_OUTPUT 1u
#define CALCULET_DYNAMIC (-1) /* a dimension that a job decides */

typedef struct calculet_tensor_info {
    char name[CALCULET_NAME_BYTES];
    char dtype[16]; /* "int32", "bfloat16", "uint8", "float32" */
    uint32_t direction;
    uint32_t rank;
    int64_t shape[CALCULET_RANK_MAX];
} calculet_tensor_info;

CALCULET_API calculet_code calculet_tensor_inspect(
    calculet_calbin *calbin, uint32_t submodel, uint32_t tensor, calculet_tensor_info *info);

typedef struct calculet_csr_info {
    char name[CALCULET_NAME_BYTES];
    uint32_t elements;
} calculet_csr_info;

CALCULET_API calculet_code calculet_csr_inspect(
    calculet_calbin *calbin, uint32_t submodel, uint32_t csr, calculet_csr_info *info);

/* ---- models: a calbin on the device --------------------------------------------------------------------------- */

typedef struct calculet_model calculet_model;

#define CALCULET_PREFILL 1u
#define CALCULET_DECODE 2u

/* What a submodel is for, and which of its tensors and CSRs are what: from the package's manifest, by exact name. A
 * NULL name is the reference calbin's, in brackets. */
typedef struct calculet_role {
    uint32_t role;                  /* CALCULET_PREFILL or CALCULET_DECODE: the tag in the calbin is not asked */
    const char *submodel;           /* must be given */
    const char *tokens;             /* [inputs[0]] int32 */
    const char *positions;          /* [inputs[1]] int32 */
    const char *logits;             /* [outputs[0]] bfloat16 or float32 */
    const char *lane_mask;          /* uint8, one element a row; NULL: the submodel has no mask contract */
    const char *past_length_csr;    /* [past_kv_cur_seq_len] one element a row */
    const char *current_length_csr; /* [cur_seq_len] one element a row */
} calculet_role;

/* Puts the calbin on the device, finds every tensor and CSR, and makes one set of page-aligned buffers for each engine
 * and role: nothing is looked up or allocated for a job. In later calls a submodel is its index in `roles`. A failure
 * undoes what was begun. Blocks as long as the vendor's configure (seconds for the reference model). */
CALCULET_API calculet_code calculet_model_configure(
    calculet_calbin *calbin, const calculet_role *roles, uint32_t role_count, calculet_model **model);

/* Forgets its sequences and frees its buffers; the handle ends with the call. NOT_QUIET where one of its jobs is lost:
 * then what that job may touch is kept for the life of the process. It does not clear the device's configuration. */
CALCULET_API calculet_code calculet_model_unload(calculet_model *model);

typedef struct calculet_golden {
    uint32_t cases;            /* recorded ones that were replayed; 0: the calbin has none */
    uint32_t passed;           /* cases whose best token is the recorded one */
    float largest_difference;  /* of a logit to its recorded value */
    char text[CALCULET_TEXT_BYTES];
} calculet_golden;

/* Replays the calbin's recorded inputs on engine ping; needs a free lane. `timeout_s` bounds each case. */
CALCULET_API calculet_code calculet_model_golden(calculet_model *model, double timeout_s, calculet_golden *golden);

/* ---- KV sequences ------------------------------------------------------------------------------------------------
 * All of them: kv. One thread at a time, while jobs of other sequences may run. */

/* kv. The runtime's hint whether so many more sequences would fit. */
CALCULET_API calculet_code calculet_kv_can_allocate(calculet_model *model, uint32_t sequences, uint32_t *fits);

/* kv. An empty sequence of up to `tokens` in `lane`; NO_CAPACITY at once where there is no room. */
CALCULET_API calculet_code calculet_kv_allocate(
    calculet_model *model, uint32_t lane, uint32_t tokens, uint64_t *sequence);

/* kv. OK: the runtime confirmed that the lane is empty. UNCONFIRMED: it did not, or a job holds the sequence. */
CALCULET_API calculet_code calculet_kv_release(calculet_model *model, uint64_t sequence);

/* kv. Drops the last `tokens` of a sequence that no job holds. */
CALCULET_API calculet_code calculet_kv_remove_tail(calculet_model *model, uint64_t sequence, uint32_t tokens);

typedef struct calculet_kv_info {
    uint32_t lanes;
    uint32_t sequences; /* held now */
} calculet_kv_info;

/* kv. */
CALCULET_API calculet_code calculet_kv_inspect(calculet_model *model, calculet_kv_info *info);

/* ---- jobs ----------------------------------------------------------------------------------------------------- */

typedef struct calculet_lane_work {
    uint64_t sequence;     /* of calculet_kv_allocate */
    const int32_t *tokens; /* to append, in order; copied */
    uint32_t token_count;  /* 1 for a decode */
    uint32_t position;     /* of the first of them: the sequence's committed length */
    uint32_t row;          /* its row of the batch, and of the logits */
} calculet_lane_work;

typedef struct calculet_csr_write {
    uint32_t csr; /* its index in the submodel */
    uint32_t element;
    int64_t value;
} calculet_csr_write;

typedef struct calculet_job {
    const calculet_lane_work *lanes; /* distinct rows; a row that is missing is inactive: masked out */
    const calculet_csr_write *csrs;  /* beside the two length CSRs, which are set from the lanes; may be NULL */
    uint32_t submodel;
    uint32_t lane_count;
    uint32_t csr_count;
    uint32_t wants_logits; /* 0: the result names none (today's runtime copies them back all the same) */
} calculet_job;

/* engine. Checks the whole job, then fills the engine's buffers. INVALID or NO_CAPACITY: nothing was touched. A second
 * prepare before the submit replaces the first. Ends the life of the engine's last logits. */
CALCULET_API calculet_code calculet_job_prepare(calculet_model *model, uint32_t engine, const calculet_job *job);

/* engine. Hands the prepared job over. DEVICE_BUSY, INVALID: nothing happened, it is still prepared, and DEVICE_BUSY may
 * be tried again. Any other code: the device may or may not have it, so its sequences are unknown. */
CALCULET_API calculet_code calculet_job_submit(calculet_model *model, uint32_t engine, uint64_t *ticket);

/* engine. Prepares and submits, in one call: a caller that shares a lock with other threads, as Python's do, has it taken
 * away once and not twice before the device begins. Codes are those of the two; after DEVICE_BUSY the job is prepared. */
CALCULET_API calculet_code calculet_job_start(
    calculet_model *model, uint32_t engine, const calculet_job *job, uint64_t *ticket);

typedef struct calculet_result {
    const void *logits;        /* rows of the batch (prefill: its last row alone); NULL if none were wanted or usable */
    uint64_t row_stride_bytes;
    uint32_t rows;
    uint32_t vocab_size;
    uint32_t is_bfloat16;      /* 1: elements are bfloat16; 0: float32 */
    uint32_t vendor_status;    /* the vendor's own word for this job */
    uint64_t queue_submitted;  /* the device's counters of this engine when the job ended */
    uint64_t queue_completed;
    double infer_s;            /* of the vendor: computing (GetWaitTime) */
    double h2d_s;              /* copying in (GetInputTransferTime) */
    double d2h_s;              /* copying back (GetOutputTransferTime) */
    double total_s;            /* from submit to the vendor's answer, by the host's clock */
} calculet_result;

/* engine. Waits for the *waiter*, never for the vendor, so `timeout_s` (0 to CALCULET_WAIT_S_MAX) always holds. OK: its
 * KV is committed and the logits are valid until the engine's next prepare. OUTPUT_ERROR: the answer is unusable and
 * nothing is committed. CCU_FAULT, PCIE_ERROR, UNKNOWN_DMA, DEVICE_LOST, VENDOR_ERROR: the job is over and its KV is
 * unknown. TIMEOUT: nobody knows; the engine, the job's buffers and its sequences are lost for the life of the
 * process. Once for each ticket. */
CALCULET_API calculet_code calculet_job_wait(
    calculet_model *model, uint32_t engine, uint64_t ticket, double timeout_s, calculet_result *result);

/* any. bfloat16 to float32, `count` elements; the buffers do not overlap. */
CALCULET_API void calculet_widen(const uint16_t *bfloat16, float *float32, size_t count);

#ifdef __cplusplus
}
#endif

#endif
